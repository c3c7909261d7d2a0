/* A session over the C ABI, from the first load to the last free: texts of every kind, calls that fail, two engines.
 * In C, as the header promises. CI runs it under AddressSanitizer with leaks looked for, where no Python is in the way.
 *
 *     session TARGET.gguf HEAD.gguf
 *
 * Prints a line for each text: its settings, the tokens of the text, rounds, tokens drafted and accepted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pydflash2.h"

enum { kMaxTokens = 64 };

static void check(pd2_status status, const char * what) {
    if (status != PD2_OK) {
        fprintf(stderr, "session: %s: %s\n", what, pd2_last_error());
        exit(1);
    }
}

static void expect(pd2_status status, pd2_status expected, const char * what) {
    if (status != expected || strlen(pd2_last_error()) == 0) {
        fprintf(stderr, "session: %s: status %d where %d was expected\n", what, (int)status, (int)expected);
        exit(1);
    }
}

static void read_log(void) {
    int32_t level;
    char    line[1024];
    while (pd2_log_next(&level, line, sizeof(line)) >= 0) {
    }
}

static void write_text(pd2_engine * engine, pd2_sequence * sequence, const char * name, const pd2_sampling * sampling,
                       const pd2_draft_params * drafting) {
    static const char kPrompt[] = "the cat sat on the mat, and then the";

    int32_t prompt[256], n_reused, n_left;
    int32_t n_prompt = pd2_tokenize(engine, kPrompt, (int32_t)strlen(kPrompt), true, false, prompt, 256);
    if (n_prompt < 1) {
        fprintf(stderr, "session: %s: the prompt has %d tokens\n", name, (int)n_prompt);
        exit(1);
    }
    check(pd2_sequence_begin(sequence, prompt, n_prompt, drafting != NULL, sampling, &n_reused), name);
    do {
        check(pd2_sequence_prefill(sequence, 8, &n_left), name);
    } while (n_left > 0);

    int32_t     rounds = 0, drafted = 0, accepted = 0;
    pd2_verdict verdict = {0};
    while (!verdict.finished && pd2_sequence_n_tokens(sequence) < n_prompt + kMaxTokens) {
        pd2_draft draft = {0};
        if (drafting) {
            check(pd2_sequence_draft(sequence, drafting, &draft), name);
        }
        drafted += draft.proposal.n;
        check(pd2_sequence_verify(sequence, &draft.proposal, -1, &verdict), name);
        accepted += verdict.n_accepted;
        ++rounds;
    }
    if (sampling->n_logprobs >= 0) {
        pd2_logprobs logprobs;
        check(pd2_sequence_logprobs(sequence, &logprobs), name);
        if (logprobs.n != verdict.n) {
            fprintf(stderr, "session: %s: %d log-probabilities of %d tokens\n", name, (int)logprobs.n, (int)verdict.n);
            exit(1);
        }
    }
    char bytes[64];
    if (pd2_token_bytes(engine, verdict.tokens[0], true, bytes, sizeof(bytes)) < 0) {
        fprintf(stderr, "session: %s: a token without bytes\n", name);
        exit(1);
    }
    printf("%s: %d tokens, %d rounds, %d of %d drafted tokens accepted\n", name,
           (int)(pd2_sequence_n_tokens(sequence) - n_prompt), (int)rounds, (int)accepted, (int)drafted);
}

static void fail_in_every_way(pd2_engine * engine, pd2_sequence * sequence) {
    pd2_sampling sampling;
    pd2_sampling_default(&sampling);
    sampling.grammar = "root ::= (";
    expect(pd2_sampling_check(engine, &sampling), PD2_ERROR_ARGUMENT, "half a grammar");
    sampling.grammar = NULL;

    int32_t * tokens = calloc(100000, sizeof(int32_t));
    int32_t   n_reused;
    expect(pd2_sequence_begin(sequence, tokens, 100000, true, &sampling, &n_reused), PD2_ERROR_CONTEXT_OVERFLOW,
           "too long a prompt");
    tokens[0] = -1;
    expect(pd2_sequence_begin(sequence, tokens, 1, true, &sampling, &n_reused), PD2_ERROR_ARGUMENT, "a wrong token");
    free(tokens);

    pd2_sequence * second = NULL;
    expect(pd2_sequence_create(engine, &second), PD2_ERROR_ARGUMENT, "a second sequence");
}

static void hold_session(const char * target, const char * head) {
    pd2_engine_params params;
    pd2_engine_default_params(&params);
    params.target_path  = target;
    params.head_path    = head;
    params.context_size = 512;
    params.n_threads    = 1;

    pd2_engine *   engine;
    pd2_sequence * sequence;
    params.target_path = "no such file.gguf";
    expect(pd2_engine_load(&params, &engine), PD2_ERROR_MODEL_FILE, "a target that is missing");
    params.target_path = target;
    params.head_path   = target;
    expect(pd2_engine_load(&params, &engine), PD2_ERROR_HEAD_FORMAT, "a target in the head's place");
    params.head_path = head;
    check(pd2_engine_load(&params, &engine), "load");
    check(pd2_sequence_create(engine, &sequence), "create");

    pd2_sampling     sampling;
    pd2_draft_params drafting;
    pd2_sampling_default(&sampling);
    pd2_draft_default_params(&drafting);
    write_text(engine, sequence, "greedy", &sampling, &drafting);
    write_text(engine, sequence, "plain", &sampling, NULL);
    drafting.walk = PD2_WALK_EXPECTED_LENGTH;
    write_text(engine, sequence, "expected length", &sampling, &drafting);

    const int32_t biased[]   = {65, 66};
    const float   biases[]   = {1.5f, -1.5f};
    sampling.n_logit_bias    = 2;
    sampling.bias_tokens     = biased;
    sampling.bias_values     = biases;
    sampling.repeat_penalty  = 1.1f;
    sampling.penalty_last_n  = 64;
    sampling.top_k           = 40;
    sampling.typical_p       = 0.98f;
    sampling.top_p           = 0.95f;
    sampling.min_p           = 0.01f;
    sampling.temperature     = 0.8f;
    sampling.seed            = 1;
    sampling.n_logprobs      = 3;
    drafting.temperature     = 0.8f;
    drafting.min_probability = 1e-3f;
    write_text(engine, sequence, "drawn", &sampling, &drafting);
    fail_in_every_way(engine, sequence);

    sampling.n_logit_bias    = 0;
    sampling.grammar         = "root ::= [a-z ]+";
    drafting.min_probability = 0;
    for (drafting.width = 1; drafting.width <= 7; ++drafting.width) {
        write_text(engine, sequence, "grammar", &sampling, &drafting);
    }
    read_log();
    pd2_sequence_free(sequence);
    pd2_engine_free(engine);
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: session TARGET.gguf HEAD.gguf\n");
        return 2;
    }
    hold_session(argv[1], argv[2]);
    hold_session(argv[1], argv[2]); /* what a library keeps for itself is kept once */
    read_log();
    return 0;
}
