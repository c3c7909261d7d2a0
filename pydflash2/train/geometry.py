"""Which head to train for a target: a config with every size chosen, and a check of what a user asks for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from gguf import TokenType

from pydflash2.convert import keys
from pydflash2.convert.config import HeadConfig
from pydflash2.convert.target import Target
from pydflash2.gguf_file import GGUFFile

from .stored import short
from .weights import Weights

BLOCK_SIZE = 8  # rows: 7 drafted tokens and the anchor, the most that CUDA's mat-vec kernels take at once
WINDOW = 2048
CONV_KERNEL, CONV_GROUP = 2, 16
TOP_K, MOST_TOP_K = 16, 64
MOST_TAPS = 5
LONGEST_HEAD_DIM = 128

# The head's size from the target's: from so many parameters, or so long a hidden state on.
_LAYERS_BY_PARAMETERS = (
    (1_000_000_000, 5),
    (50_000_000, 2),
    (0, 1),
)
_RANK_BY_HIDDEN = ((2048, 256), (1024, 128), (512, 64), (0, 32))
_MASK_NAMES = (b"<mask>", b"<|mask|>", b"[MASK]", b"<MASK>", b"<|MASK|>")
_SPARE_NAMES = (b"<unused", b"<|unused", b"[unused", b"<|reserved", b"<reserved", b"<|extra_", b"<SPECIAL_")


def config_for(target: Target, **chosen: Any) -> HeadConfig:
    """The head to train for a target, as its GGUF suggests.

    chosen: fields of `HeadConfig` to set otherwise; what depends on them follows (n_layer sets the length of
        `sliding`; window None makes all layers full). `n_taps` is a number of taps to spread by the rule,
        `taps` the taps themselves.

    Raises `ValueError` for a combination no head can have, with its numbers, and where the target has no
    token that could serve as the mask.
    """
    weights = Weights(target.path)
    known = {field.name for field in dataclasses.fields(HeadConfig)}
    n_taps = chosen.pop("n_taps", None)
    if unknown := sorted(set(chosen) - known):
        raise TypeError(f"a head has no setting named {unknown[0]}")
    fields = _defaults(target, weights, chosen, n_taps) | chosen
    config = HeadConfig(**fields)
    check(config, target)
    return config


def as_version_2(config: HeadConfig, target: Target, **chosen: Any) -> HeadConfig:
    """A DFlash 1 head's config with convolutions and a selector; a DFlash 2 head's with what is `chosen`."""
    if config.version == 1:
        n_vocab = config.n_vocab or target.vocabulary.size
        added = _version_2(config.n_embd, target)
        config = dataclasses.replace(config, version=2, n_vocab=n_vocab, **added)
    config = dataclasses.replace(config, **chosen)
    check(config, target)
    return config


def target_taps(n_target_layers: int, n_taps: int) -> tuple[int, ...]:
    """Layers to tap, spread evenly: the rule of `build_target_layer_ids` in PyPI `dflash`."""
    if n_taps == 1:
        return (n_target_layers // 2,)
    first, last = 1, n_target_layers - 3
    return tuple(round(first + index * (last - first) / (n_taps - 1)) for index in range(n_taps))


def check(config: HeadConfig, target: Target) -> None:
    """Raises `ValueError` for what no head for this target can be."""
    for name in ("n_layer", "n_embd", "n_ff", "n_head", "n_head_kv", "head_dim", "context_length", "n_vocab"):
        _at_least(name, getattr(config, name), 1)
    _at_least("block_size", config.block_size, 2)
    assert config.head_dim is not None and config.n_vocab is not None
    if config.n_layer > keys.MAX_LAYERS:
        raise ValueError(f"{config.n_layer} layers are more than the {keys.MAX_LAYERS} that llama.cpp takes")
    if len(config.sliding) != config.n_layer:
        raise ValueError(f"{len(config.sliding)} layer types are given for {config.n_layer} layers")
    if config.n_embd != target.n_embd:
        raise ValueError(
            f"the hidden size is {config.n_embd}, the target's {target.n_embd}: they must be equal"
        )
    if config.n_head % config.n_head_kv:
        raise ValueError(f"{config.n_head} heads can't share {config.n_head_kv} key/value heads evenly")
    if config.head_dim % 2:
        raise ValueError(f"head_dim is {config.head_dim}: rope turns pairs, so it must be even")
    if config.window is not None and config.window < 1:
        raise ValueError(f"a window of {config.window} positions shows a row nothing: give 1 at least")
    _check_taps(config, target)
    size = target.vocabulary.size
    if not 0 <= config.mask_token < size:
        raise ValueError(f"the mask token {config.mask_token} is none of the target's, 0 to {size - 1}")
    if config.n_vocab < size:
        raise ValueError(f"a vocabulary of {config.n_vocab} tokens does not cover the target's {size}")
    if config.version == 2:
        _check_version_2(config)


def _check_taps(config: HeadConfig, target: Target) -> None:
    if not config.taps:
        raise ValueError("a head needs a tap at least")
    for tap in config.taps:
        if not 0 <= tap < target.n_layer:
            raise ValueError(f"the tap {tap} is no layer of the target: they are 0 to {target.n_layer - 1}")
    if len(set(config.taps)) != len(config.taps):
        raise ValueError(f"the taps {list(config.taps)} name a layer twice: give each once, or fewer taps")


def _check_version_2(config: HeadConfig) -> None:
    for name in ("conv_kernel", "conv_group", "rank", "top_k"):
        _at_least(name, getattr(config, name), 1)
    assert config.conv_group is not None and config.top_k is not None and config.n_vocab is not None
    if config.n_embd % config.conv_group:
        raise ValueError(f"the hidden size {config.n_embd} is no multiple of conv_group {config.conv_group}")
    if config.top_k > MOST_TOP_K:
        raise ValueError(f"top_k is {config.top_k}: {MOST_TOP_K} candidates a position are the most")
    if config.top_k >= config.n_vocab:
        raise ValueError(f"top_k is {config.top_k}, with {config.n_vocab} tokens to choose from: give fewer")


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, {least} or more")


def _defaults(target: Target, weights: Weights, chosen: dict[str, Any], n_taps: int | None) -> dict[str, Any]:
    n_layer = chosen.get("n_layer", _from_table(_LAYERS_BY_PARAMETERS, weights.n_parameters))
    _at_least("n_layer", n_layer, 1)
    context = _hyperparameter(target, weights.file, "context_length", 4096)
    window = chosen.get("window", min(WINDOW, context))
    fields: dict[str, Any] = {
        "version": 2,
        "n_layer": n_layer,
        "n_embd": target.n_embd,
        "n_ff": _hyperparameter(target, weights.file, "feed_forward_length", 3 * target.n_embd),
        "context_length": context,
        "rms_epsilon": _real(target, weights.file, "attention.layer_norm_rms_epsilon", 1e-6),
        "gelu": target.embedding_scale is not None,  # Gemma's own activation
        "rope_base": _real(target, weights.file, "rope.freq_base", 10000.0),
        "rope_scaling": None,
        "rotary_factor": None,
        "interleaved_rope": False,
        "block_size": BLOCK_SIZE,
        "n_target_layers": target.n_layer,
        "n_vocab": target.vocabulary.size,
        "n_draft_vocab": None,
        "output_multiplier": None,
        "soft_cap": _real(target, weights.file, "final_logit_softcapping", 0.0) or None,
        "embedding_scale": target.embedding_scale,
        "window": window,
        "sliding": (window is not None,) * n_layer,
        "causal": False,
        "has_embedding": True,
        "tied": False,
        **_heads(target, weights.file),
        **_version_2(target.n_embd, target),
    }
    if "taps" not in chosen:
        fields["taps"] = target_taps(target.n_layer, _n_taps(target.n_layer) if n_taps is None else n_taps)
    elif n_taps is not None and n_taps != len(chosen["taps"]):
        raise ValueError(f"{n_taps} taps are asked for, and {len(chosen['taps'])} are named")
    if "mask_token" not in chosen:
        fields["mask_token"] = _mask_token(target, weights)
    return fields


def _version_2(n_embd: int, target: Target) -> dict[str, Any]:
    return {
        "conv_kernel": CONV_KERNEL,
        "conv_group": math.gcd(n_embd, CONV_GROUP),
        "rank": _from_table(_RANK_BY_HIDDEN, n_embd),
        "top_k": max(1, min(TOP_K, target.vocabulary.size - 1)),
    }


def _from_table(table: tuple[tuple[int, int], ...], size: int) -> int:
    return next(value for least, value in table if size >= least)


def _n_taps(n_target_layers: int) -> int:
    """As many as the rule can place on different layers."""
    return max(n for n in range(1, MOST_TAPS + 1) if n == 1 or n <= n_target_layers - 3)


def _heads(target: Target, file: GGUFFile) -> dict[str, int]:
    """The target's own heads; those longer than usual are cut into equal parts, which keeps the sizes."""
    n_head = _hyperparameter(target, file, "attention.head_count", max(1, target.n_embd // LONGEST_HEAD_DIM))
    n_head_kv = _hyperparameter(target, file, "attention.head_count_kv", n_head)
    head_dim = _hyperparameter(target, file, "attention.key_length", max(2, target.n_embd // n_head))
    if n_head % n_head_kv:
        n_head_kv = math.gcd(n_head, n_head_kv)
    while head_dim > LONGEST_HEAD_DIM and head_dim % 4 == 0:
        head_dim, n_head, n_head_kv = head_dim // 2, 2 * n_head, 2 * n_head_kv
    return {"n_head": n_head, "n_head_kv": n_head_kv, "head_dim": head_dim + head_dim % 2}


def _hyperparameter(target: Target, file: GGUFFile, key: str, default: int) -> int:
    """A whole number of the target's; some targets list one for each layer, then the largest."""
    name = f"{target.architecture}.{key}"
    several = [value for value in file.array(name) or [] if isinstance(value, int)]
    value = max(several) if several else file.integer(name)
    return value if value else default


def _real(target: Target, file: GGUFFile, key: str, default: float) -> float:
    value = file.number(f"{target.architecture}.{key}")
    return default if value is None else short(value)


def _mask_token(target: Target, weights: Weights) -> int:
    """The tokenizer's mask token, or one that no text has; none that embeds as zero, which says nothing."""
    vocabulary = target.vocabulary
    types = vocabulary.types or [TokenType.NORMAL] * vocabulary.size
    named = weights.file.integer(keys.MASK_TOKEN_ID)
    candidates = [] if named is None or not 0 <= named < vocabulary.size else [named]
    by_name = {name: token for token, name in reversed(list(enumerate(vocabulary.tokens)))}
    candidates += [by_name[name] for name in _MASK_NAMES if name in by_name]
    spare = [
        token
        for token, (name, kind) in enumerate(zip(vocabulary.tokens, types, strict=True))
        if kind == TokenType.UNUSED or name.startswith(_SPARE_NAMES)
    ]
    candidates += spare[:64]
    if candidates:
        rows = weights.rows("token_embd.weight", np.array(candidates))
        for token, row in zip(candidates, rows, strict=True):
            if np.any(row):
                return token
    raise ValueError(
        f"{target.path} has no mask token and none that is unused: name a token that texts never have with"
        " --mask-token"
    )
