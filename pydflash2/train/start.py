"""Initial weights: those of a new head, or of a head to go on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pydflash2.convert.config import HeadConfig
from pydflash2.convert.target import Target
from pydflash2.errors import HeadMismatchError

from . import geometry, stored
from .head import Head
from .tables import embedding_scale
from .weights import Weights

_OTHER_TAPS = 0.1  # what the random part of fc adds to the context at first; the deepest tap adds 1

_SAMPLED_ROWS = 4096

# Of a target whose layers are a head's own: Qwen3's. Other architectures with such tensors compute otherwise.
_SAME_LAYERS = ("qwen3",)
_LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def config_of(source: Path, target: Target) -> HeadConfig:
    """The config to train on a head with, for this target: a DFlash 1 head's becomes one of DFlash 2.

    Raises `HeadFormatError` for what can't be trained, `HeadMismatchError` for another target's head.
    """
    config = stored.config_of(source)
    scale = embedding_scale(target, config)  # written down: another engine knows no target's
    config = dataclasses.replace(
        config,
        embedding_scale=None if scale == 1.0 and target.embedding_scale is None else scale,
        n_target_layers=config.n_target_layers or target.n_layer,
    )
    try:
        return geometry.as_version_2(config, target)
    except ValueError as error:
        raise HeadMismatchError(f"{source} does not fit {target.path.name}: {error}") from error


@torch.no_grad()
def fresh(head: Head, seed: int, target: Path) -> str:
    """Gives a new head its first weights; returns in words where they come from.

    Its convolutions are the identity and its selector adds nothing. Where the target's layers have the head's
    form, its last ones are copied, with the norm behind them, and the context is what those read: the deepest
    tap. Else layers are the identity, the context is the deepest tap, each channel in its own scale, and the
    last norm is flat: the target's own can have channels (Gemma's) that make a beginner's logits differ by
    hundreds.
    """
    weights = Weights(target)
    _initialise(head, seed)
    copied = _copied_layers(head, weights)
    if copied:
        _copy(head.norm.weight, weights, "output_norm.weight")
    else:
        head.norm.weight.fill_(1.0 / _row_length(weights))
    deepest = max(range(len(head.config.taps)), key=lambda place: head.config.taps[place])
    n_embd = head.config.n_embd
    columns = slice(deepest * n_embd, (deepest + 1) * n_embd)
    scale = head.feature_scale[columns]
    # A norm follows fc: only the channels' proportions count.
    identity = scale / scale.square().mean().sqrt() if copied else torch.ones_like(scale)
    head.fc.weight.mul_(_OTHER_TAPS)
    head.fc.weight[:, columns] += torch.diag(identity)
    if not copied:
        return "starts anew: this target's layers have another form than a head's"
    reader = min(max(head.config.taps[deepest] + 1, copied[0]), copied[-1])
    _copy(head.hidden_norm.weight, weights, f"blk.{reader}.attn_norm.weight")
    return f"starts from the target's layers {copied[0]} to {copied[-1]}"


@torch.no_grad()
def from_head(head: Head, source: Path, seed: int = 0) -> None:
    """Gives a head the weights of another, a checkpoint's folder or a GGUF: it drafts as that one does.

    A DFlash 1 head's gets convolutions that are the identity and a selector that adds nothing.
    Raises `HeadFormatError` for what is no head, `HeadMismatchError` where a tensor has another shape.
    """
    config, tensors = stored.read(source)
    if config.version > head.config.version:
        raise HeadMismatchError(f"{source} is a DFlash 2 head, and one of DFlash 1 is to be trained from it")
    _initialise(head, seed)
    state = head.state_dict()
    for name, value in tensors.items():
        if name not in state or state[name].shape != value.shape:
            theirs = "no such tensor" if name not in state else f"{list(state[name].shape)}"
            raise HeadMismatchError(
                f"{source}: {name} has the shape {list(value.shape)}, the head to be trained {theirs}. Train"
                " with the geometry of the head to go on from"
            )
        state[name].copy_(value)
    head.fc.weight.mul_(head.feature_scale)


def _initialise(head: Head, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        if name.endswith("base_kernel"):
            parameter.zero_()
            parameter[:, 0] = 1.0
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        elif name.endswith(
            ("kernel_projection.weight", "successor_codebook", "o_proj.weight", "down_proj.weight")
        ):
            parameter.zero_()
        else:
            drawn = torch.empty(parameter.shape).normal_(std=parameter.shape[1] ** -0.5, generator=generator)
            parameter.copy_(drawn)


def _copied_layers(head: Head, weights: Weights) -> range:
    """Copies the target's last layers into the head's; the range copied, empty where the forms differ."""
    config, file = head.config, weights.file
    architecture = file.text("general.architecture")
    n_target = file.integer(f"{architecture}.block_count") or 0
    copied = range(n_target - config.n_layer, n_target)
    base = file.number(f"{architecture}.rope.freq_base")
    same = (
        architecture in _SAME_LAYERS
        and copied[0] >= 0
        and not config.gelu
        and not config.interleaved_rope
        and config.rope_scaling is None
        and config.rotary_factor in (None, 1.0)
        and base is not None
        and stored.short(base) == config.rope_base
    )
    if not same:
        return range(0)
    for number, layer in zip(copied, head.layers, strict=True):
        block = f"blk.{number}."
        ours = layer.state_dict()
        theirs = {name.removeprefix(block) for name in weights.names if name.startswith(block)}
        if theirs != set(_LAYER_TENSORS) or any(
            weights.shape(block + name) != ours[own].shape for name, own in _LAYER_TENSORS.items()
        ):
            return range(0)
    for number, layer in zip(copied, head.layers, strict=True):
        ours = layer.state_dict()
        for name, own in _LAYER_TENSORS.items():
            _copy(ours[own], weights, f"blk.{number}.{name}")
    return copied


def _row_length(weights: Weights) -> float:
    """Root mean square length of the output head's rows: what logits of a hidden state of ones vary by."""
    name = "output.weight" if "output.weight" in weights else "token_embd.weight"
    n_rows = weights.shape(name)[0]
    some = np.linspace(0, n_rows - 1, min(n_rows, _SAMPLED_ROWS)).astype(np.int64)
    length = float(np.sqrt(np.square(weights.rows(name, some)).sum(-1).mean()))
    return length if length > 0 else 1.0


def _copy(into: Tensor, weights: Weights, name: str) -> None:
    into.copy_(torch.from_numpy(weights.read(name)))
