"""What a head says about itself, from its GGUF or from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydflash2.errors import HeadFormatError
from pydflash2.gguf_file import GGUFFile

from . import keys
from .config import HeadConfig
from .tensors import HeadTensors


@dataclass(frozen=True)
class Head:
    """A head's settings. Taps are layer outputs; None: the head doesn't say, or has no such part."""

    version: int
    block_size: int | None  # rows, anchor included: one more than the tokens it drafts
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    taps: list[int]
    n_target_layers: int | None
    mask_token: int | None
    window: int | None  # positions a sliding layer sees
    sliding_layers: list[int]
    causal: bool | None  # None: sliding layers are, full ones are not
    conv_kernel: int | None
    conv_group: int | None
    selector_rank: int | None
    selector_top_k: int | None
    rope_base: float | None
    rope_sections: list[int] | None
    output_multiplier: float | None
    soft_cap: float | None
    embedding_scale: float | None
    n_vocab: int | None  # tokens its codebooks, or its vocabulary, cover
    n_draft_vocab: int | None  # rows of an own output head
    own_embedding: bool
    own_output: bool

    @classmethod
    def of_checkpoint(cls, config: HeadConfig, claimed: HeadTensors) -> Head:
        shapes = {tensor.name: tensor.shape for tensor in claimed.tensors}
        output = shapes.get("output.weight")
        return cls(
            version=config.version,
            block_size=config.block_size,
            n_layer=config.n_layer,
            n_embd=config.n_embd,
            n_head=config.n_head,
            n_head_kv=config.n_head_kv,
            head_dim=claimed.head_dim,
            taps=list(config.taps),
            n_target_layers=config.n_target_layers,
            mask_token=config.mask_token,
            window=config.window,
            sliding_layers=_where(config.sliding),
            causal=config.causal,
            conv_kernel=config.conv_kernel,
            conv_group=config.conv_group,
            selector_rank=config.rank,
            selector_top_k=config.top_k,
            rope_base=config.rope_base,
            rope_sections=None,
            output_multiplier=config.output_multiplier,
            soft_cap=config.soft_cap,
            embedding_scale=config.embedding_scale,
            n_vocab=claimed.n_vocab,
            n_draft_vocab=None if output is None else output[0],
            own_embedding="token_embd.weight" in shapes,
            own_output=output is not None,
        )

    @classmethod
    def of_gguf(cls, file: GGUFFile) -> Head:
        """Raises `HeadFormatError` for what is no head in llama.cpp's format, or lacks what all have."""
        architecture = file.text(keys.GENERAL_ARCHITECTURE)
        if architecture in keys.FORK_ARCHITECTURES:
            raise HeadFormatError(
                f"{file.path} is a head in the format of a fork ({architecture}), from before llama.cpp had"
                " one. Convert its checkpoint with pydflash2 convert"
            )
        if architecture != keys.ARCHITECTURE:
            raise HeadFormatError(
                f"{file.path} is no head: its architecture is {architecture}, a head's is"
                f" {keys.ARCHITECTURE}. Give the GGUF of a head"
            )
        n_layer, n_embd, n_head = (
            _required(file, key) for key in (keys.BLOCK_COUNT, keys.EMBEDDING_LENGTH, keys.HEAD_COUNT)
        )
        window = file.integer(keys.SLIDING_WINDOW) or None
        causal = file.value(keys.CAUSAL)
        output = file.tensors.get("output.weight")
        return cls(
            version=2 if "selector_hidden.weight" in file.tensors else 1,
            block_size=file.integer(keys.BLOCK_SIZE),
            n_layer=n_layer,
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=file.integer(keys.HEAD_COUNT_KV) or n_head,
            head_dim=file.integer(keys.KEY_LENGTH) or n_embd // n_head,
            taps=_taps(file),
            n_target_layers=None,
            mask_token=file.integer(keys.MASK_TOKEN_ID),
            window=window,
            sliding_layers=_where(file.array(keys.SLIDING_WINDOW_PATTERN) or []) if window else [],
            causal=causal if isinstance(causal, bool) else None,
            conv_kernel=file.integer(keys.CONV_KERNEL_SIZE),
            conv_group=file.integer(keys.CONV_GROUP_SIZE),
            selector_rank=file.integer(keys.SELECTOR_RANK),
            selector_top_k=file.integer(keys.SELECTOR_TOP_K),
            rope_base=file.number(keys.ROPE_FREQ_BASE),
            rope_sections=file.array(keys.ROPE_DIMENSION_SECTIONS),
            output_multiplier=file.number(keys.LOGIT_SCALE),
            soft_cap=file.number(keys.FINAL_LOGIT_SOFTCAPPING),
            embedding_scale=file.number(keys.EMBEDDING_SCALE),
            n_vocab=_covered_vocabulary(file),
            n_draft_vocab=None if output is None else output.shape[-1],
            own_embedding="token_embd.weight" in file.tensors,
            own_output=output is not None,
        )


def _where(flags: Any) -> list[int]:
    return [index for index, flag in enumerate(flags) if flag]


def _required(file: GGUFFile, key: str) -> int:
    value = file.integer(key)
    if value is None or not 1 <= value < 2**31:
        raise HeadFormatError(
            f"{file.path} lacks {key}, or it is no size: {value}. Convert the head's checkpoint again"
        )
    return value


def _taps(file: GGUFFile) -> list[int]:
    layers = file.array(keys.TARGET_LAYERS)
    if not layers or not all(isinstance(layer, int) for layer in layers):
        raise HeadFormatError(f"{file.path} lacks {keys.TARGET_LAYERS}. Convert the head's checkpoint again")
    return [layer - 1 for layer in layers]  # llama.cpp names a tap by the layer it feeds


def _covered_vocabulary(file: GGUFFile) -> int | None:
    if (codebook := file.tensors.get("selector_predecessor.weight")) is not None:
        return codebook.shape[-1]
    tokens = file.array(keys.TOKENIZER_TOKENS)
    return None if tokens is None else len(tokens)
