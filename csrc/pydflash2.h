/* pydflash2: DFlash 1 and 2 speculative decoding on GGUF files. The whole C ABI.
 *
 *     pd2_engine_params params;
 *     pd2_engine_default_params(&params);
 *     params.target_path = "target.gguf";
 *     params.head_path   = "head.gguf";
 *
 *     pd2_sampling sampling;
 *     pd2_sampling_default(&sampling);
 *     sampling.temperature = 0.7f;
 *     sampling.seed        = 1;
 *
 *     pd2_draft_params drafting;
 *     pd2_draft_default_params(&drafting);
 *
 *     pd2_engine   * engine;
 *     pd2_sequence * sequence;
 *     if (pd2_engine_load(&params, &engine) || pd2_sequence_create(engine, &sequence)) die(pd2_last_error());
 *
 *     int32_t n_reused, n_left, prompt[512];
 *     int32_t n_prompt = pd2_tokenize(engine, text, strlen(text), true, false, prompt, 512);
 *     pd2_sequence_begin(sequence, prompt, n_prompt, true, &sampling, &n_reused);
 *     do { pd2_sequence_prefill(sequence, 0, &n_left); } while (n_left > 0);  // one chunk a call: poll signals here
 *
 *     while (!verdict.finished) {                        // a round:
 *         pd2_sequence_draft (sequence, &drafting, &draft);  // proposes, changes nothing that was emitted
 *         pd2_sequence_verify(sequence, &draft.proposal, -1, &verdict);
 *         use(verdict.tokens, verdict.n);                // accepted drafts, then the target's own next token
 *     }
 *
 *     pd2_sequence_free(sequence);
 *     pd2_engine_free(engine);
 *
 * Every function that returns pd2_status returns PD2_OK (0) or a reason; pd2_last_error() then says, for the calling
 * thread, what failed, why, and one thing to do. A failed call changes nothing unless it says so.
 * An engine, its sequences and its batches belong to one thread at a time. No function calls back into the caller.
 * Widths count drafted tokens: the anchor is not among them.
 *
 * The text between the cdef marks is read by cffi as it stands: plain C99, no preprocessor.
 */
#ifndef PYDFLASH2_H
#define PYDFLASH2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

typedef enum {
    PD2_OK                     = 0,
    PD2_ERROR_ARGUMENT         = 1, /* the caller's argument is wrong */
    PD2_ERROR_MODEL_FILE       = 2, /* a file is missing, damaged or of the wrong kind */
    PD2_ERROR_HEAD_FORMAT      = 3, /* the file is a head, but not one this build can run */
    PD2_ERROR_HEAD_MISMATCH    = 4, /* the head was made for another target */
    PD2_ERROR_BACKEND          = 5, /* a device or back end that was asked for is not there */
    PD2_ERROR_CONTEXT_OVERFLOW = 6, /* the text does not fit the context; nothing was changed */
    PD2_ERROR_MEMORY           = 7,
    PD2_ERROR_NATIVE           = 8 /* llama.cpp or ggml reported a failure */
} pd2_status;

/* Never NULL; valid until the thread's next failing call. */
const char * pd2_last_error(void);

/* ---- What this build is ------------------------------------------------------------------------------------- */

const char * pd2_llama_cpp_pin(void); /* "llama-cpp-python 0.3.36 (llama.cpp 0c1e57098)" */
const char * pd2_system_info(void);   /* llama.cpp's line of CPU features and back-end switches */

typedef struct {
    char     name[64]; /* "CPU", "CUDA0", ... */
    char     description[128];
    char     backend[32]; /* "CPU", "CUDA", "Metal", "Vulkan", ... */
    bool     is_gpu;
    uint64_t memory_free;  /* bytes */
    uint64_t memory_total; /* bytes */
} pd2_device_info;

int32_t    pd2_device_count(void);
pd2_status pd2_device_get(int32_t index, pd2_device_info * info);

/* llama.cpp's and our own log lines, kept in a bounded queue until they are read. Returns the line's length without
 * its end, -1 when the queue is empty; a longer line than `size` is cut. level: 1 debug, 2 info, 3 warning, 4 error. */
int32_t pd2_log_next(int32_t * level, char * line, int32_t size);

/* ---- Engine: a target and, where given, its head ------------------------------------------------------------- */

typedef struct pd2_engine   pd2_engine;
typedef struct pd2_sequence pd2_sequence;
typedef struct pd2_batch    pd2_batch;

typedef enum {
    PD2_TAPS_AUTO     = 0, /* wired where the target's graph has them, else the callback */
    PD2_TAPS_WIRED    = 1, /* llama_set_embeddings_layer_inp; an error where the graph lacks them */
    PD2_TAPS_CALLBACK = 2  /* the scheduler's evaluation callback on l_out-<layer> */
} pd2_taps;

typedef enum {                       /* how a target lies on several devices, as llama.cpp's --split-mode has it */
               PD2_SPLIT_LAYER  = 0, /* whole layers on each */
               PD2_SPLIT_NONE   = 1, /* all on the first */
               PD2_SPLIT_ROW    = 2, /* rows of the large tensors spread over them */
               PD2_SPLIT_TENSOR = 3  /* every tensor spread over them, and computed together */
} pd2_split;

typedef struct {
    const char * target_path;
    const char * head_path;    /* NULL: plain decoding only */
    int32_t      context_size; /* tokens; 0: what the target was trained on, 8192 at most */
    int32_t      batch_size;   /* tokens a prefill chunk decodes at most; 0: 512 */
    int32_t      n_threads;    /* 0: one a physical core */
    int32_t      n_gpu_layers; /* layers offloaded; -1: all where there is a device, 0: none */
    int32_t      n_devices;    /* 0: every GPU there is, else the CPU */
    const char * const *
                  devices; /* [n_devices] "cuda:0", "cuda" (all), "metal", "vulkan:1", "rpc:host:port", "CUDA0"; or
                                     "cpu" alone */
    int32_t       n_device_shares; /* 0: the target's weights are dealt out by free memory */
    const float * device_shares;   /* [n_device_shares] of them, one a device */
    pd2_split     split;
    const char *
        draft_device;     /* one device; NULL: beside the target's output table, or this machine's last GPU in use */
    const char * kv_type; /* the target's cache: "f16" (NULL), "f32", "bf16", "q8_0", ... */
    const char * drafter_kv_type; /* the drafter's cache: "f16" (NULL), "f32", "bf16" */
    pd2_taps     taps;
    bool         use_mmap;
    int32_t      draft_vocabulary; /* tokens that drafts are made of; 0: chosen by the vocabulary's size, -1: all */
    bool    batch_invariant; /* kernels that treat a row alike however many it is decoded with, where there are any */
    int32_t n_taps_read;
    const int32_t * taps_read; /* [n_taps_read] without a head: layers whose outputs pd2_sequence_read_features gives */
} pd2_engine_params;

void       pd2_engine_default_params(pd2_engine_params * params);
pd2_status pd2_engine_load(const pd2_engine_params * params, pd2_engine ** engine);
void       pd2_engine_free(pd2_engine * engine); /* NULL is fine; free its sequences and batches first */

typedef struct {
    char     architecture[64];
    char     description[128];
    char     devices[512]; /* where the weights run, comma separated */
    int32_t  n_vocab;
    int32_t  n_embd;
    int32_t  n_layer;
    int32_t  context_size; /* tokens this engine can hold */
    int32_t  context_trained;
    int32_t  n_threads;
    uint64_t n_params;
    uint64_t weight_bytes;
    bool     has_encoder;
    bool     is_recurrent;   /* has a state that cannot drop tokens (Mamba, gated delta net, ...) */
    int32_t  rollback_limit; /* tokens a recurrent target can take back in one step; -1: any number */
    bool     taps_wired;     /* features come from the graph's own outputs, not from the callback */
} pd2_target_info;

typedef struct {
    int32_t  version;    /* 1: DFlash, 2: DFlash 2 */
    int32_t  block_size; /* rows of a full block, anchor included */
    int32_t  n_layer;
    int32_t  n_embd;
    int32_t  n_head;
    int32_t  n_head_kv;
    int32_t  head_dim;
    int32_t  n_vocab;       /* ids the codebooks or the own output head cover */
    int32_t  n_draft_vocab; /* rows of the output head; smaller than n_vocab with a d2t table */
    int32_t  mask_token;
    int32_t  n_taps;
    int32_t  taps[64]; /* layer outputs, as in the checkpoint's target_layer_ids */
    int32_t  window;   /* positions a sliding layer sees; 0: none is sliding */
    int32_t  n_sliding_layers;
    int32_t  causal;      /* 0 no, 1 yes, -1 absent: sliding layers are, full ones are not */
    int32_t  conv_kernel; /* 0 for DFlash 1 */
    int32_t  conv_group;
    int32_t  selector_rank;
    int32_t  top_k; /* candidates a position keeps */
    bool     own_embedding;
    bool     own_output;
    uint64_t weight_bytes;     /* draft vocabulary included */
    uint64_t vocabulary_bytes; /* of the draft vocabulary; 0: drafts are made of all tokens, or of the head's own */
    uint64_t cache_bytes;      /* K and V of all layers */
    uint64_t cache_per_token;  /* bytes of it that each token of context_size takes; 0: all layers slide */
    uint64_t compute_bytes;    /* scratch of the drafter's graphs; 0: ggml's schedulers have it, one a graph */
    int32_t  n_candidates;     /* tokens that drafts are made of: of the draft vocabulary, where there is one */
    int32_t  round_nodes;      /* operations in the graph of a whole round: injection, block, selector */
    int32_t  round_splits;     /* parts of that graph that run on one device each; 1 where one has them all */
    char     device[64];       /* that the head is to run on; what it can't do runs on the CPU */
} pd2_head_info;

typedef struct {
    char name[64]; /* as in the head's file; "output.weight (target's)" and the like where it is borrowed or copied */
    char type[16];
    char device[64];
    uint64_t bytes;
    bool     is_borrowed; /* lies in the target */
} pd2_tensor_place;

typedef struct {
    char    operation[32]; /* of ggml, such as "MUL_MAT" */
    char    device[64];
    int32_t n; /* in the graph of a whole round */
} pd2_operation_place;

pd2_status pd2_engine_target_info(const pd2_engine * engine, pd2_target_info * info);
pd2_status pd2_engine_head_info(const pd2_engine * engine,
                                pd2_head_info *    info); /* PD2_ERROR_ARGUMENT without a head */

/* Where the head's tensors lie and its operations run. Each gives at most `capacity` and says how many there are; 0 without a
 * head. */
int32_t pd2_engine_head_tensors(const pd2_engine * engine, pd2_tensor_place * places, int32_t capacity);
int32_t pd2_engine_head_operations(const pd2_engine * engine, pd2_operation_place * places, int32_t capacity);

/* ---- Text <-> tokens ------------------------------------------------------------------------------------------ */

/* Return the number of tokens or bytes; when `capacity` is too small, minus the number needed and nothing is written;
 * INT32_MIN after a failure that pd2_last_error describes. */
int32_t pd2_tokenize(const pd2_engine * engine, const char * text, int32_t length, bool add_special, bool parse_special,
                     int32_t * tokens, int32_t capacity);
int32_t pd2_token_bytes(const pd2_engine * engine, int32_t token, bool special, char * bytes, int32_t capacity);

bool         pd2_token_is_end(const pd2_engine * engine, int32_t token); /* any end-of-generation token */
const char * pd2_chat_template(const pd2_engine * engine);               /* NULL when the target has none */

/* ---- Structured output ------------------------------------------------------------------------------------------ */

/* The grammar that matches JSON documents of a schema, both texts in UTF-8. Returns the number of bytes, without an end;
 * when `capacity` is too small, minus the number needed and nothing is written; INT32_MIN after a failure. */
int32_t pd2_json_schema_to_grammar(const char * schema_json, char * grammar, int32_t capacity);

/* PD2_ERROR_ARGUMENT, with what is wrong and where, for a GBNF text that the grammar sampler would not take or would
 * need too long for. Its start is the rule `root`; tokens in it, <[id]> or <name>, are the engine's target's. */
pd2_status pd2_check_grammar(const pd2_engine * engine, const char * grammar);

/* ---- Sequence: one text with its caches ------------------------------------------------------------------------ */

pd2_status pd2_sequence_create(pd2_engine * engine, pd2_sequence ** sequence); /* one a engine, for now */
void       pd2_sequence_free(pd2_sequence * sequence);

/* How a token is chosen from the target's logits: llama.cpp's samplers, in the order of these fields, the grammar after
 * the penalties. pd2_sampling_default fills in what leaves each of them out: greedy decoding. */
typedef struct {
    int32_t         n_logit_bias;
    const int32_t * bias_tokens;       /* [n_logit_bias] */
    const float *   bias_values;       /* [n_logit_bias] added to the logits; minus infinity forbids a token */
    float           repeat_penalty;    /* 1: none */
    float           presence_penalty;  /* 0: none */
    float           frequency_penalty; /* 0: none */
    int32_t         penalty_last_n;    /* tokens the three penalties look back at, prompt included; -1: all */
    const char *    grammar;           /* GBNF with a rule named root; NULL: none */
    int32_t         top_k;             /* 0: all */
    float           typical_p;         /* 1: all */
    float           top_p;             /* 1: all */
    float           min_p;             /* 0: all */
    float           temperature;       /* 0: the likeliest of what bias, penalties and grammar leave is certain */
    uint64_t        seed;
    int32_t         n_logprobs; /* likeliest tokens reported beside each committed one; -1: no report at all */
} pd2_sampling;

void       pd2_sampling_default(pd2_sampling * sampling);
pd2_status pd2_sampling_check(const pd2_engine * engine, const pd2_sampling * sampling); /* what begin would refuse */

/* Sets the prompt, [n_tokens]. What the caches already hold of it is kept: n_reused tokens need no prefill.
 * drafting: read features and inject them, so that pd2_sequence_draft can be called after the prefill.
 * sampling: NULL for the default. */
pd2_status pd2_sequence_begin(pd2_sequence * sequence, const int32_t * tokens, int32_t n_tokens, bool drafting,
                              const pd2_sampling * sampling, int32_t * n_reused);

/* Decodes at most max_tokens more of the prompt (0: a full chunk). When n_left becomes 0 the anchor has been chosen.
 * Between two calls the sequence may be begun anew. */
pd2_status pd2_sequence_prefill(pd2_sequence * sequence, int32_t max_tokens, int32_t * n_left);

typedef enum {
    PD2_WALK_ARGMAX          = 0, /* the likeliest token after the one before */
    PD2_WALK_EXPECTED_LENGTH = 1  /* the path whose accepted length the selector expects to be largest */
} pd2_walk;

typedef struct {
    int32_t  width;           /* tokens at most */
    float    temperature;     /* 0: the path `walk` says; else drawn from softmax(score / temperature) */
    float    min_probability; /* the draft ends before the path's probability falls below this; 0: it does not */
    pd2_walk walk;            /* at temperature 0, and without a grammar (argmax with one) */
} pd2_draft_params;

void pd2_draft_default_params(pd2_draft_params * params); /* as wide as the head allows, at temperature 0 */

/* Tokens to be verified, and what each was drawn from: what makes the committed text follow the target's distribution. */
typedef struct {
    int32_t         n;
    const int32_t * tokens;     /* [n] */
    int32_t         k;          /* candidates a token */
    const int32_t * candidates; /* [n, k] */
    const float *   q;          /* [n, k] their probabilities; NULL: every token was certain, as in a greedy draft */
} pd2_proposal;

typedef struct {
    pd2_proposal    proposal;  /* n: min(width, block_size - 1, room in the context), fewer where the path was cut */
    int32_t         n_lattice; /* positions of the lattice, proposal.n at least */
    const float *   probabilities; /* [n]           with which the token was chosen; at temperature 0, as at 1 */
    const int32_t * candidates;    /* [n_lattice, k]        token ids */
    const float *   unary;         /* [n_lattice, k]        the candidates' logits */
    const float *   scores;  /* [n_lattice, k, k]     scores[t][a][b]: candidate b at t after candidate a at t - 1;
                                                            at t = 0 every row a holds the scores after the anchor */
    double          seconds; /* that the draft took */
} pd2_draft;                 /* arrays belong to the sequence, valid until its next call */

/* Proposes tokens after the anchor, along the lattice; none where the path was cut at once. A grammar given at begin cuts
 * what it forbids. Needs drafting = true at begin. Drawing moves the text's source of chance on. */
pd2_status pd2_sequence_draft(pd2_sequence * sequence, const pd2_draft_params * params, pd2_draft * draft);

typedef struct {
    int32_t         n;          /* tokens committed: accepted drafts, then the bonus token unless an end cut the run */
    int32_t         n_accepted; /* drafts among them */
    const int32_t * tokens;     /* [n] */
    bool            has_bonus;  /* the last one is not a draft: the target's own choice */
    bool            finished;   /* the last one is an end-of-generation token */
    double          seconds;    /* that the verification took */
} pd2_verdict;

/* Decodes anchor and draft (n = 0: plain decoding of one token). Each drafted token is accepted with probability
 * min(1, p / q), p being the target's probability after its samplers; the first rejected one is replaced by a draw from
 * max(p - q, 0), and after the last accepted one follows a draw from p. At temperature 0 that is the longest match with the
 * target's own choices. Commits these, cuts at the first end-of-generation token, injects the features, takes back what was
 * rejected. max_commit: tokens committed at most, -1 for no limit. */
pd2_status pd2_sequence_verify(pd2_sequence * sequence, const pd2_proposal * draft, int32_t max_commit,
                               pd2_verdict * verdict);

/* ---- Rounds that choose their own draft ------------------------------------------------------------------------- */

typedef enum {
    PD2_DRAFTER_NONE    = 0, /* plain decoding */
    PD2_DRAFTER_HEAD    = 1,
    PD2_DRAFTER_MAP_K4V = 2, /* looked up in the text: what the places agree on where its last tokens stood before */
    PD2_DRAFTER_MOD     = 3  /* looked up in the text: what followed its last token where it last stood, and so on */
} pd2_drafter;

typedef enum {
    PD2_LOOKUP_AUTO    = 0, /* where it pays */
    PD2_LOOKUP_OFF     = 1,
    PD2_LOOKUP_MAP_K4V = 2, /* wherever it finds something; else the head drafts */
    PD2_LOOKUP_MOD     = 3
} pd2_lookup;

typedef struct {
    int32_t          max_draft_tokens; /* of the head; -1: chosen each round; 0: it does not draft */
    pd2_lookup       lookup;       /* with a number in max_draft_tokens, auto is off: the head alone, at that width */
    bool             reproducible; /* no measured time may change a width: for texts that are drawn from a seed */
    pd2_draft_params walk;         /* its width is not looked at */
    int32_t          max_commit;   /* tokens committed at most, -1 for no limit */
} pd2_round_params;

void pd2_round_default_params(pd2_round_params * params);

typedef struct {
    pd2_verdict verdict;
    pd2_drafter drafter;
    int32_t     n_drafted;     /* drafted tokens that were verified; 0 with a drafter: its draft was cut to nothing */
    double      draft_seconds; /* choosing and looking up included */
} pd2_round;                   /* arrays belong to the sequence, valid until its next call */

/* Chooses what to draft by expected tokens a second, drafts and verifies: pd2_sequence_draft and _verify in one. What drafts
 * cost and how many of their tokens stand is learned from round to round. */
pd2_status pd2_sequence_round(pd2_sequence * sequence, const pd2_round_params * params, pd2_round * round);

/* The only numbers of drafted tokens that pd2_sequence_round may have verified beside 0, [n]; NULL: any. Forgets what was
 * learned. */
pd2_status pd2_sequence_allow_widths(pd2_sequence * sequence, const int32_t * widths, int32_t n);

/* What a step takes: a verification by its rows (1: a plain step), or the head's draft by its width. Set from an earlier
 * measurement, so that nothing has to be learned. Numbers out of range are ignored. */
pd2_status pd2_sequence_set_cost(pd2_sequence * sequence, pd2_drafter drafter, int32_t size, double seconds);
pd2_status pd2_sequence_cost(pd2_sequence * sequence, pd2_drafter drafter, int32_t size, double * seconds);

typedef struct {
    int32_t         n; /* tokens the last prefill or verify committed; 0 unless begin asked for log-probabilities */
    int32_t         n_top;
    const float *   chosen;     /* [n]        log softmax of the target's logits, before any sampler */
    const int32_t * top_tokens; /* [n, n_top] likeliest first */
    const float *   top;        /* [n, n_top] */
} pd2_logprobs;                 /* valid until the sequence's next call */

pd2_status pd2_sequence_logprobs(const pd2_sequence * sequence, pd2_logprobs * logprobs);

int32_t         pd2_sequence_n_tokens(const pd2_sequence * sequence); /* committed, anchor included */
const int32_t * pd2_sequence_tokens(const pd2_sequence * sequence);   /* valid until the next call */

/* Why pd2_sequence_draft would refuse, or NULL when it would not. */
const char * pd2_sequence_draft_obstacle(const pd2_sequence * sequence);

/* Rows of the last decode, for those who sample or compare themselves: logits [n_rows, n_vocab] (only the last row
 * after a prefill chunk), features [n_rows, n_taps * n_embd]. */
pd2_status pd2_sequence_logits(const pd2_sequence * sequence, const float ** logits, int32_t * n_rows);
pd2_status pd2_sequence_features(const pd2_sequence * sequence, const float ** features, int32_t * n_rows);

/* Empties the sequence, reads a whole text and gives the features of all its tokens, [n_tokens, n_taps * n_embd]: what a
 * head is trained on. They are valid until the sequence's next call; the sequence is empty then. For engines that were
 * loaded with taps_read or with a head. PD2_ERROR_CONTEXT_OVERFLOW where the text is longer than the context. */
pd2_status pd2_sequence_read_features(pd2_sequence * sequence, const int32_t * tokens, int32_t n_tokens,
                                      const float ** features);

/* ---- Many texts at once: training data ------------------------------------------------------------------------------ */

/* A batch decodes up to n_texts texts side by side, plainly: on a CPU that gives several times the tokens a second of one text.
 * It shares the engine's weights and has caches of its own; the engine's sequence is not touched. What a text becomes depends
 * on its prompt, its sampling and its seed, not on its slot or on the other texts, beyond what kernels round.
 * text_size: tokens a text can have, prompt included. n_top: likeliest tokens reported beside each chosen one. */
pd2_status pd2_batch_create(const pd2_engine * engine, int32_t n_texts, int32_t text_size, int32_t n_top,
                            pd2_batch ** batch);
void       pd2_batch_free(pd2_batch * batch);

/* Puts a text that begins with a prompt, [n_tokens], into a slot, in the place of what was there. The prompt is read by the
 * steps that follow. sampling: NULL for the default; its n_logprobs is not looked at. */
pd2_status pd2_batch_begin(pd2_batch * batch, int32_t slot, const int32_t * tokens, int32_t n_tokens,
                           const pd2_sampling * sampling);
pd2_status pd2_batch_end(pd2_batch * batch, int32_t slot); /* empties the slot; nothing is wrong where it is empty */

typedef struct {
    int32_t slot;
    int32_t token;
    bool    finished; /* the text's last token: an end-of-generation token, or the one that filled text_size */
    bool    is_end;   /* it is an end-of-generation token */
} pd2_chosen;

typedef struct {
    int32_t            n;
    const pd2_chosen * chosen;     /* [n] by slot */
    const int32_t *    top_tokens; /* [n, n_top] likeliest first */
    const float *      top;        /* [n, n_top] log softmax of the target's logits, before any sampler */
} pd2_step;                        /* arrays belong to the batch, valid until its next call */

/* Reads up to batch_size tokens of the prompts begun, then chooses the next token of each text whose prompt has been read;
 * none may be that far yet. A finished text rests until its slot is begun anew. PD2_ERROR_ARGUMENT where no text is left. */
pd2_status pd2_batch_step(pd2_batch * batch, pd2_step * step);

/* ---- Row check: whether a row's logits depend on how many rows are decoded with it ---------------------------------- */

/* Empties the sequence: its text and its caches. */
pd2_status pd2_sequence_forget(pd2_sequence * sequence);

/* Empties the sequence and begins a check with pseudo-random tokens, which `probe` chooses: after `depth` of them
 * max_rows more are decoded row by row, then 2 .. max_rows at once, and their logits compared bit by bit. */
pd2_status pd2_sequence_check_begin(pd2_sequence * sequence, int32_t max_rows, int32_t depth, int32_t probe);

/* Decodes once for the check. When `more` becomes false it is over, and the sequence is empty; it is broken off by any
 * pd2_sequence_begin. differences, [max_rows]: the largest |difference| of a logit at 1 .. max_rows rows so far; 0
 * exactly when all bits are equal, infinite where one is not a number. At 1 row the text before has been decoded in
 * smaller pieces. */
pd2_status pd2_sequence_check_step(pd2_sequence * sequence, float * differences, bool * more);

/* ---- Quantisation, for the converter ----------------------------------------------------------------------------- */

/* Quantises [n_rows, n_per_row] floats with ggml_quantize_chunk. type: ggml's name, "q8_0", "q4_K", ... */
pd2_status pd2_quantize(const char * type, const float * source, void * destination, int64_t n_rows, int64_t n_per_row,
                        uint64_t * n_bytes);

typedef struct {
    int32_t n_embd, n_ff, n_layer, n_head, n_head_kv, head_dim;
} pd2_quantize_geometry;

/* The type llama-quantize gives each tensor of a head for a file type such as "q4_k_m": types[i] is ggml's name, or
 * NULL where that tensor keeps the type it has. shapes: [n_tensors, 4], ggml's order (row length first). */
pd2_status pd2_quantize_plan(const char * file_type, const pd2_quantize_geometry * geometry, int32_t n_tensors,
                             const char ** names, const int64_t * shapes, const char ** types);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
