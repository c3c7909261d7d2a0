"""A head that exists already, as a checkpoint's folder or as a GGUF: its config and its weights in F32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pydflash2.convert import keys
from pydflash2.convert.checkpoint import StoredTensor, read_checkpoint
from pydflash2.convert.config import HeadConfig, RopeScaling
from pydflash2.convert.head import Head as Described
from pydflash2.convert.tensors import HeadTensors
from pydflash2.errors import HeadFormatError, ModelFileError
from pydflash2.gguf_file import GGUFFile

from .weights import Weights

# GGUF keys of other makers' heads that change what one computes and that no checkpoint has a setting for.
_FOREIGN_KEYS = (
    "dflash.attention.scale",
    "dflash.attention.value_scale",
    "dflash.rope.scaling.yarn_ext_factor",
    "dflash.rope.scaling.yarn_attn_factor",
)


def read(source: Path) -> tuple[HeadConfig, dict[str, Tensor]]:
    """A head's config, with head_dim and n_vocab filled in, and its tensors by their checkpoint names.

    source: a checkpoint's folder, or a GGUF, which is dequantised.
    Raises `HeadFormatError` for what is no head, is damaged, or brings an output head or a token table of its
    own: a head is trained against its target's.
    """
    if source.is_dir():
        return _read_folder(source)
    if not source.is_file():
        raise ModelFileError(f"there is no {source}. Give a head's checkpoint folder, or its GGUF")
    weights = Weights(source)
    config = config_of_gguf(weights.file)
    names = {name: stored for name, stored, _ in _names(config)}
    for name in weights.names:
        if name not in names:
            raise HeadFormatError(
                f"{source} holds {name}, which a DFlash {config.version} head does not have"
            )
    return config, {stored: torch.from_numpy(weights.read(name)) for name, stored in names.items()}


def config_of(source: Path) -> HeadConfig:
    """The config alone, as `read` gives it."""
    return _folder(source)[0] if source.is_dir() else config_of_gguf(GGUFFile.open(source))


def config_of_gguf(file: GGUFFile) -> HeadConfig:
    """A GGUF head's config. Raises `HeadFormatError` for what is no head, or none that can be trained."""
    head = Described.of_gguf(file)
    if head.own_embedding or head.own_output:
        raise _own_tables(file.path)
    for key in _FOREIGN_KEYS:
        if file.number(key):
            raise HeadFormatError(f"{file.path} has {key}, which training has no arithmetic for")
    n_ff, context = file.integer(keys.FEED_FORWARD_LENGTH), file.integer(keys.CONTEXT_LENGTH)
    epsilon = file.number(keys.RMS_EPSILON)
    for key, value in (
        (keys.FEED_FORWARD_LENGTH, n_ff),
        (keys.CONTEXT_LENGTH, context),
        (keys.RMS_EPSILON, epsilon),
        (keys.ROPE_FREQ_BASE, head.rope_base),
        (keys.BLOCK_SIZE, head.block_size),
        (keys.MASK_TOKEN_ID, head.mask_token),
    ):
        if value is None:
            raise HeadFormatError(f"{file.path} lacks {key}. Convert the head's checkpoint again")
    assert n_ff is not None and context is not None and epsilon is not None
    assert head.rope_base is not None and head.block_size is not None and head.mask_token is not None
    sliding = tuple(layer in head.sliding_layers for layer in range(head.n_layer))
    if (
        pattern := file.array(keys.CAUSAL_PATTERN)
    ) is not None:  # the layers' types, where no window says them
        if head.window is not None or len(pattern) != head.n_layer:
            raise HeadFormatError(f"{file.path}: {keys.CAUSAL_PATTERN} contradicts its window or its layers")
        sliding = tuple(bool(flag) for flag in pattern)
    return HeadConfig(
        version=head.version,
        n_layer=head.n_layer,
        n_embd=head.n_embd,
        n_ff=n_ff,
        n_head=head.n_head,
        n_head_kv=head.n_head_kv,
        head_dim=head.head_dim,
        context_length=context,
        rms_epsilon=short(epsilon),
        gelu=file.text(keys.HIDDEN_ACTIVATION) in ("gelu", "gelu_pytorch_tanh"),
        rope_base=short(head.rope_base),
        rope_scaling=_rope_scaling(file),
        rotary_factor=_rotary_factor(file, head.head_dim),
        interleaved_rope=False,  # converting turned such rows into halves
        block_size=head.block_size,
        mask_token=head.mask_token,
        taps=tuple(head.taps),
        n_target_layers=head.n_target_layers,
        n_vocab=head.n_vocab,
        n_draft_vocab=None,
        conv_kernel=head.conv_kernel if head.version == 2 else None,
        conv_group=head.conv_group if head.version == 2 else None,
        rank=head.selector_rank if head.version == 2 else None,
        top_k=head.selector_top_k if head.version == 2 else None,
        output_multiplier=_short(head.output_multiplier),
        soft_cap=_short(head.soft_cap) or None,
        embedding_scale=1.0 if head.embedding_scale is None else short(head.embedding_scale),
        window=head.window,
        sliding=sliding,
        causal=head.causal,
        has_embedding=True,
        tied=False,
    )


def short(value: float) -> float:
    """The shortest number that F32 rounds to the same value: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def _short(value: float | None) -> float | None:
    return None if value is None else short(value)


def _folder(folder: Path) -> tuple[HeadConfig, HeadTensors]:
    config = HeadConfig.read(folder)
    claimed = HeadTensors.claim(config, read_checkpoint(folder))
    if {"token_embd.weight", "output.weight"} & {tensor.name for tensor in claimed.tensors}:
        raise _own_tables(folder)
    config = dataclasses.replace(
        config,
        head_dim=claimed.head_dim,
        n_vocab=claimed.n_vocab,
        n_draft_vocab=None,
        has_embedding=True,
        tied=False,
    )
    return config, claimed


def _read_folder(folder: Path) -> tuple[HeadConfig, dict[str, Tensor]]:
    config, claimed = _folder(folder)
    names = {name: stored for name, stored, _ in _names(config)}
    return config, {names[tensor.name]: _floats(tensor.stored) for tensor in claimed.tensors}


def _names(config: HeadConfig) -> Iterator[tuple[str, str, keys.TensorRule]]:
    """GGUF name, checkpoint name and rule of every tensor that a head without tables of its own has."""
    for rule in keys.TENSORS:
        if rule.version <= config.version and not rule.optional:
            for layer in range(config.n_layer if "{layer}" in rule.source else 1):
                yield rule.name.format(layer=layer), rule.source.format(layer=layer), rule


def _floats(tensor: StoredTensor) -> Tensor:
    values = next(tensor.pieces(tensor.n_elements))
    if tensor.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return torch.from_numpy(values.astype(np.float32).reshape(tensor.shape))


def _own_tables(path: Path) -> HeadFormatError:
    return HeadFormatError(
        f"{path} brings a token table or an output head of its own; a head is trained against its target's."
        " Start from a head that borrows both, or without --init"
    )


def _rope_scaling(file: GGUFFile) -> RopeScaling | None:
    kind = file.text(keys.ROPE_SCALING_TYPE)
    if kind in (None, "none"):
        return None
    factor = file.number(keys.ROPE_SCALING_FACTOR)
    context = file.integer(keys.ROPE_SCALING_ORIGINAL_CONTEXT)
    if kind not in ("linear", "yarn") or not factor or (kind == "yarn" and not context):
        raise HeadFormatError(
            f"{file.path}: the rope scaling {kind} is not known, or lacks a setting. Convert the head again"
        )
    return RopeScaling(
        kind,
        short(factor),
        context,
        _short(file.number(keys.ROPE_SCALING_BETA_FAST)),
        _short(file.number(keys.ROPE_SCALING_BETA_SLOW)),
    )


def _rotary_factor(file: GGUFFile, head_dim: int) -> float | None:
    n_rot = file.integer(keys.ROPE_DIMENSION_COUNT)
    if n_rot is None or n_rot == head_dim:
        return None
    factor = n_rot / head_dim
    while int(head_dim * factor) < n_rot:  # rounding must not lose a dimension
        factor = math.nextafter(factor, 1.0)
    return factor
