"""Every name in the two formats: keys and tensors of a GGUF head, keys and tensors of a checkpoint.

A GGUF head is llama.cpp's: what starts with `dflash.` is read and written by it too. Keys of our own, where
llama.cpp has none, start with `pydflash2.`.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- GGUF ----

ARCHITECTURE = "dflash"
FORK_ARCHITECTURES = ("dflash-draft",)  # the format of forks, before llama.cpp had one

GENERAL_ARCHITECTURE = "general.architecture"
GENERAL_NAME = "general.name"
GENERAL_FILE_TYPE = "general.file_type"
GENERAL_QUANTIZATION_VERSION = "general.quantization_version"
GENERAL_ALIGNMENT = "general.alignment"
SPLIT_COUNT = "split.count"

BLOCK_COUNT = "dflash.block_count"
CONTEXT_LENGTH = "dflash.context_length"
EMBEDDING_LENGTH = "dflash.embedding_length"
FEED_FORWARD_LENGTH = "dflash.feed_forward_length"
HIDDEN_ACTIVATION = "dflash.hidden_activation"
HEAD_COUNT = "dflash.attention.head_count"
HEAD_COUNT_KV = "dflash.attention.head_count_kv"
KEY_LENGTH = "dflash.attention.key_length"
VALUE_LENGTH = "dflash.attention.value_length"
RMS_EPSILON = "dflash.attention.layer_norm_rms_epsilon"
CAUSAL = "dflash.attention.causal"
SLIDING_WINDOW = "dflash.attention.sliding_window"
SLIDING_WINDOW_PATTERN = "dflash.attention.sliding_window_pattern"  # bool [n_layer]
ROPE_FREQ_BASE = "dflash.rope.freq_base"
ROPE_DIMENSION_COUNT = "dflash.rope.dimension_count"
ROPE_DIMENSION_SECTIONS = "dflash.rope.dimension_sections"  # int32 [4]; files from before 2026-08-27 lack it
ROPE_SCALING_TYPE = "dflash.rope.scaling.type"
ROPE_SCALING_FACTOR = "dflash.rope.scaling.factor"
ROPE_SCALING_ORIGINAL_CONTEXT = "dflash.rope.scaling.original_context_length"
ROPE_SCALING_BETA_FAST = "dflash.rope.scaling.yarn_beta_fast"
ROPE_SCALING_BETA_SLOW = "dflash.rope.scaling.yarn_beta_slow"
BLOCK_SIZE = "dflash.block_size"
CONV_KERNEL_SIZE = "dflash.conv_kernel_size"
CONV_GROUP_SIZE = "dflash.conv_group_size"
SELECTOR_RANK = "dflash.selector_rank"
SELECTOR_TOP_K = "dflash.selector_top_k"
LOGIT_SCALE = "dflash.logit_scale"
FINAL_LOGIT_SOFTCAPPING = "dflash.final_logit_softcapping"
EMBEDDING_SCALE = "dflash.embedding_scale"
TARGET_LAYERS = "dflash.target_layers"  # layer *inputs*: the checkpoint's target_layer_ids + 1

CAUSAL_PATTERN = (  # bool [n_layer]; only where no llama.cpp key can say it
    "pydflash2.attention.causal_pattern"
)

TOKENIZER = "tokenizer."
TOKENIZER_PRE = "tokenizer.ggml.pre"
TOKENIZER_TOKENS = "tokenizer.ggml.tokens"
TOKENIZER_TOKEN_TYPE = "tokenizer.ggml.token_type"
TOKENIZER_SCORES = "tokenizer.ggml.scores"
MASK_TOKEN_ID = "tokenizer.ggml.mask_token_id"

# Of a target, behind its architecture's name.
TARGET_BLOCK_COUNT = "block_count"
TARGET_NEXTN_LAYERS = (  # layers of block_count that predict further tokens; no tap can sit there
    "nextn_predict_layers"
)
TARGET_EMBEDDING_LENGTH = "embedding_length"
TARGET_ROPE_SECTIONS = "rope.dimension_sections"

# Targets that multiply their token embeddings by sqrt(n_embd). No key of their GGUF says so.
SCALED_EMBEDDING_ARCHITECTURES = ("gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma-embedding")

# ---- checkpoint ----

MAX_LAYERS = 512  # llama.cpp's own bound

ARCHITECTURE_VERSIONS = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2}
VARIANT_ARCHITECTURES = (
    "Qwen3DSparkModel",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Lfm2DSparkDraftModel",
    "LingDSparkModel",
)

# Settings that change what a head computes, and that the drafter has no arithmetic for.
UNSUPPORTED_SETTINGS = {
    "attention_value_scale": "a scale on attention's values",
    "use_swa": "its own way to name sliding layers: use use_sliding_window and layer_types",
    "swa_window_size": "its own way to name a window: use sliding_window",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "quantization_config": "weights that are quantised already: use the checkpoint they were made from",
    "sample_from_anchor": "the DSpark variant",
    "markov_head_type": "the DSpark variant",
}

IMPLIED_TENSORS = ("rotary_emb.inv_freq", "t2d")  # other parts of the checkpoint say the same


@dataclass(frozen=True)
class TensorRule:
    """One tensor of a head: its name in the checkpoint and in the GGUF, and its shape in torch's order.

    A side is a number or the name of one; `{layer}` stands for each layer's number.
    """

    source: str
    name: str
    shape: tuple[str | int, ...]
    version: int = 1  # the first DFlash version that has it
    optional: bool = False


TENSORS = (
    TensorRule("fc.weight", "fc.weight", ("n_embd", "n_feature")),
    TensorRule("hidden_norm.weight", "enc.output_norm.weight", ("n_embd",)),
    TensorRule("norm.weight", "output_norm.weight", ("n_embd",)),
    TensorRule("layers.{layer}.input_layernorm.weight", "blk.{layer}.attn_norm.weight", ("n_embd",)),
    TensorRule("layers.{layer}.self_attn.q_proj.weight", "blk.{layer}.attn_q.weight", ("n_query", "n_embd")),
    TensorRule("layers.{layer}.self_attn.k_proj.weight", "blk.{layer}.attn_k.weight", ("n_key", "n_embd")),
    TensorRule("layers.{layer}.self_attn.v_proj.weight", "blk.{layer}.attn_v.weight", ("n_key", "n_embd")),
    TensorRule(
        "layers.{layer}.self_attn.o_proj.weight", "blk.{layer}.attn_output.weight", ("n_embd", "n_query")
    ),
    TensorRule("layers.{layer}.self_attn.q_norm.weight", "blk.{layer}.attn_q_norm.weight", ("head_dim",)),
    TensorRule("layers.{layer}.self_attn.k_norm.weight", "blk.{layer}.attn_k_norm.weight", ("head_dim",)),
    TensorRule("layers.{layer}.post_attention_layernorm.weight", "blk.{layer}.ffn_norm.weight", ("n_embd",)),
    TensorRule("layers.{layer}.mlp.gate_proj.weight", "blk.{layer}.ffn_gate.weight", ("n_ff", "n_embd")),
    TensorRule("layers.{layer}.mlp.up_proj.weight", "blk.{layer}.ffn_up.weight", ("n_ff", "n_embd")),
    TensorRule("layers.{layer}.mlp.down_proj.weight", "blk.{layer}.ffn_down.weight", ("n_embd", "n_ff")),
    TensorRule(
        "layers.{layer}.attention_conv.base_kernel", "blk.{layer}.attn_conv_base", (2, "kernel", "n_embd"), 2
    ),
    TensorRule(
        "layers.{layer}.attention_conv.kernel_projection.weight",
        "blk.{layer}.attn_conv_proj.weight",
        ("n_dynamic", "n_embd"),
        2,
    ),
    TensorRule(
        "layers.{layer}.mlp_conv.base_kernel", "blk.{layer}.ffn_conv_base", (2, "kernel", "n_embd"), 2
    ),
    TensorRule(
        "layers.{layer}.mlp_conv.kernel_projection.weight",
        "blk.{layer}.ffn_conv_proj.weight",
        ("n_dynamic", "n_embd"),
        2,
    ),
    TensorRule(
        "candidate_selector.predecessor_codebook", "selector_predecessor.weight", ("n_vocab", "rank"), 2
    ),
    TensorRule("candidate_selector.successor_codebook", "selector_successor.weight", ("n_vocab", "rank"), 2),
    TensorRule(
        "candidate_selector.hidden_projection.weight", "selector_hidden.weight", ("rank", "n_embd"), 2
    ),
    TensorRule("embed_tokens.weight", "token_embd.weight", ("n_vocab", "n_embd"), optional=True),
    TensorRule("lm_head.weight", "output.weight", ("n_draft_vocab", "n_embd"), optional=True),
    TensorRule("d2t", "d2t", ("n_draft_vocab",), optional=True),
)
