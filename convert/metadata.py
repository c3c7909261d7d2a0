"""The keys of a GGUF head, in the order and with the types of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

from gguf import GGML_QUANT_VERSION, GGUFType, GGUFValueType, GGUFWriter, LlamaFileType, Metadata, TokenType
from gguf.utility import size_label

from pydflash2.gguf_file import Field

from . import keys
from .config import HeadConfig
from .target import Target
from .writer import add_field


def add_model_card(writer: GGUFWriter, folder: Path, repository: str | None) -> None:
    """Name, size, licence and origin, from the folder's model card."""
    total, *others = writer.get_total_parameter_count()
    card = Metadata.load(None, folder, None, total)
    if repository is not None:
        # the folder of a download is named for its commit, the repository for the model
        name, owner, card.basename, card.finetune, card.version, card.size_label = (
            Metadata.get_model_id_components(repository, total)
        )
        card.name = Metadata.id_to_title(name)  # type: ignore[no-untyped-call]
        card.organization = Metadata.id_to_title(owner)  # type: ignore[no-untyped-call]
    card.name = card.name or folder.name
    card.size_label = card.size_label or size_label(total, *others)
    writer.add_type(GGUFType.MODEL)
    card.set_gguf_meta_model(writer)


def add_geometry(writer: GGUFWriter, config: HeadConfig, head_dim: int, file_type: LlamaFileType) -> None:
    """What every llama.cpp model has."""
    writer.add_uint32(keys.BLOCK_COUNT, config.n_layer)
    writer.add_uint32(keys.CONTEXT_LENGTH, config.context_length)
    writer.add_uint32(keys.EMBEDDING_LENGTH, config.n_embd)
    writer.add_uint32(keys.FEED_FORWARD_LENGTH, config.n_ff)
    writer.add_uint32(keys.HEAD_COUNT, config.n_head)
    writer.add_uint32(keys.HEAD_COUNT_KV, config.n_head_kv)
    if config.causal is False:
        writer.add_bool(keys.CAUSAL, False)
    if (scaling := config.rope_scaling) is not None:
        writer.add_string(keys.ROPE_SCALING_TYPE, scaling.type)
        writer.add_float32(keys.ROPE_SCALING_FACTOR, scaling.factor)
        if scaling.original_context is not None:
            writer.add_uint32(keys.ROPE_SCALING_ORIGINAL_CONTEXT, scaling.original_context)
        if scaling.beta_fast is not None:
            writer.add_float32(keys.ROPE_SCALING_BETA_FAST, scaling.beta_fast)
        if scaling.beta_slow is not None:
            writer.add_float32(keys.ROPE_SCALING_BETA_SLOW, scaling.beta_slow)
    writer.add_float32(keys.ROPE_FREQ_BASE, config.rope_base)
    writer.add_float32(keys.RMS_EPSILON, config.rms_epsilon)
    writer.add_uint32(keys.KEY_LENGTH, head_dim)
    writer.add_uint32(keys.VALUE_LENGTH, head_dim)
    writer.add_uint32(keys.GENERAL_FILE_TYPE, file_type)


def add_drafting(writer: GGUFWriter, config: HeadConfig, head_dim: int, target: Target) -> None:
    """What only a head has."""
    if config.rotary_factor is not None:
        writer.add_uint32(keys.ROPE_DIMENSION_COUNT, int(head_dim * config.rotary_factor))
    if config.gelu:
        writer.add_string(keys.HIDDEN_ACTIVATION, "gelu_pytorch_tanh")
    writer.add_uint32(keys.BLOCK_SIZE, config.block_size)
    for key, value in (
        (keys.CONV_KERNEL_SIZE, config.conv_kernel),
        (keys.CONV_GROUP_SIZE, config.conv_group),
        (keys.SELECTOR_RANK, config.rank),
        (keys.SELECTOR_TOP_K, config.top_k),
    ):
        if value is not None:
            writer.add_uint32(key, value)
    embedding_scale = target.embedding_scale if config.embedding_scale is None else config.embedding_scale
    for key, number in (
        (keys.LOGIT_SCALE, config.output_multiplier),
        (keys.FINAL_LOGIT_SOFTCAPPING, config.soft_cap),
        (keys.EMBEDDING_SCALE, embedding_scale),
    ):
        if number is not None:
            writer.add_float32(key, number)
    writer.add_array(keys.TARGET_LAYERS, [tap + 1 for tap in config.taps])
    if config.window is not None:
        writer.add_uint32(keys.SLIDING_WINDOW, config.window)
        writer.add_array(keys.SLIDING_WINDOW_PATTERN, list(config.sliding))
    _add_causality(writer, config)
    if target.uses_mrope:
        writer.add_array(keys.ROPE_DIMENSION_SECTIONS, rope_sections(head_dim))
    writer.add_uint32(keys.GENERAL_QUANTIZATION_VERSION, GGML_QUANT_VERSION)


def rope_sections(head_dim: int) -> list[int]:
    """A head turns by token position only: every pair belongs to the first of M-RoPE's sections."""
    return [head_dim // 2, 0, 0, 0]


def _add_causality(writer: GGUFWriter, config: HeadConfig) -> None:
    """Without a key a layer is causal where the window's pattern says sliding. Without a window there is no
    pattern: then the layers' types have to be said another way.
    """
    if config.causal is not None:
        if config.causal:
            writer.add_bool(keys.CAUSAL, True)  # False stands further up, where llama.cpp's converter puts it
    elif config.window is None and any(config.sliding):
        if all(config.sliding):
            writer.add_bool(keys.CAUSAL, True)
        else:
            writer.add_array(keys.CAUSAL_PATTERN, list(config.sliding))


def add_tokenizer(writer: GGUFWriter, target: Target, mask_token: int, n_vocab: int) -> None:
    """The target's tokenizer, padded with unused tokens to the head's vocabulary, and its mask token."""
    fields = dict(target.tokenizer)
    fields[keys.MASK_TOKEN_ID] = Field(mask_token, GGUFValueType.UINT32)
    padding = range(target.vocabulary.size, n_vocab)
    for key, values in (
        (keys.TOKENIZER_TOKENS, [f"[PAD{token}]".encode() for token in padding]),
        (keys.TOKENIZER_SCORES, [-10000.0] * len(padding)),
        (keys.TOKENIZER_TOKEN_TYPE, [int(TokenType.UNUSED)] * len(padding)),
    ):
        if key in fields and values:
            field = fields[key]
            fields[key] = Field(field.value + values, field.type, field.element_type)
    for key, field in fields.items():
        add_field(writer, key, field)
