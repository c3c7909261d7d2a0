"""Which checkpoint tensor becomes which GGUF tensor. Each is claimed or refused by name; none may lack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydflash2.errors import HeadFormatError

from . import keys
from .checkpoint import FLOATS, StoredTensor
from .config import HeadConfig

_INTERLEAVED = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")


@dataclass(frozen=True)
class HeadTensor:
    """One tensor of the GGUF to be. `shape` is torch's order."""

    name: str
    stored: StoredTensor
    interleaved: bool = False  # rows come as rope pairs and leave as rope halves

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape


@dataclass(frozen=True)
class HeadTensors:
    """A head's tensors, in the order llama.cpp's converter writes them, and what only their shapes say."""

    tensors: list[HeadTensor]
    draft_to_target: npt.NDArray[np.int64] | None  # [n_draft_vocab] target token of each draft token
    head_dim: int
    n_vocab: int | None  # None: no tensor has that side, and the config doesn't say

    @classmethod
    def claim(cls, config: HeadConfig, stored: list[StoredTensor]) -> HeadTensors:
        """Raises `HeadFormatError` for a tensor that no rule claims, is missing, or has another shape."""
        by_source = {_plain(tensor.name): tensor for tensor in stored}
        if len(by_source) != len(stored):
            raise HeadFormatError("the checkpoint has tensors whose names differ only in a leading 'model.'")
        sides = _sides(config, by_source)
        rules = _rules(config)
        for source, tensor in by_source.items():
            if source not in rules and not _is_implied(source):
                raise _unclaimed(tensor, source, config)
        if missing := [s for s, (rule, _) in rules.items() if s not in by_source and not rule.optional]:
            raise HeadFormatError(
                f"the checkpoint lacks {len(missing)} of a DFlash {config.version} head's tensors, the first"
                f" is {missing[0]}"
            )
        _check_vocabulary_tensors(config, by_source)

        tensors = []
        draft_to_target = None
        for source, tensor in by_source.items():
            if source not in rules:
                continue
            rule, name = rules[source]
            _check_shape(tensor, rule, sides)
            if source == "d2t":
                draft_to_target = _read_draft_to_target(tensor, sides["n_vocab"])
            elif tensor.dtype not in FLOATS:
                raise HeadFormatError(
                    f"{tensor.name} is stored as {tensor.dtype}: weights are {', '.join(FLOATS)}"
                )
            elif source != "embed_tokens.weight" or config.has_embedding:
                tensors.append(
                    HeadTensor(name, tensor, config.interleaved_rope and name.endswith(_INTERLEAVED))
                )
        return cls(tensors, draft_to_target, sides["head_dim"], sides["n_vocab"] or None)


def _is_implied(source: str) -> bool:
    return any(source == name or source.endswith(f".{name}") for name in keys.IMPLIED_TENSORS)


def _plain(name: str) -> str:
    """A tensor's name without what only some checkpoints write."""
    name = name.removeprefix("model.")
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name


def _rules(config: HeadConfig) -> dict[str, tuple[keys.TensorRule, str]]:
    """Source name -> its rule and its GGUF name, for this head's version and layers."""
    rules = {}
    for rule in keys.TENSORS:
        if rule.version > config.version:
            continue
        for layer in range(config.n_layer if "{layer}" in rule.source else 1):
            rules[rule.source.format(layer=layer)] = rule, rule.name.format(layer=layer)
    return rules


def _sides(config: HeadConfig, stored: dict[str, StoredTensor]) -> dict[str, int]:
    """The length of every named side. 0: no config key and no tensor says it, so none has it."""

    def side_of(source: str) -> int:
        return stored[source].shape[0] if source in stored and stored[source].shape else 0

    head_dim = config.head_dim or side_of("layers.0.self_attn.q_norm.weight")
    if not head_dim or head_dim % 2:
        raise HeadFormatError(f"head_dim is {head_dim}: rope turns pairs, so it must be an even number")
    vocabulary = (
        config.n_vocab or side_of("candidate_selector.predecessor_codebook") or side_of("embed_tokens.weight")
    )
    kernel, group = config.conv_kernel or 0, config.conv_group or 1
    return {
        "n_embd": config.n_embd,
        "n_ff": config.n_ff,
        "n_feature": len(config.taps) * config.n_embd,
        "n_query": config.n_head * head_dim,
        "n_key": config.n_head_kv * head_dim,
        "head_dim": head_dim,
        "kernel": kernel,
        "n_dynamic": 2 * kernel * (config.n_embd // group),
        "rank": config.rank or 0,
        "n_vocab": vocabulary,
        "n_draft_vocab": config.n_draft_vocab or side_of("d2t") or vocabulary or side_of("lm_head.weight"),
    }


def _check_shape(tensor: StoredTensor, rule: keys.TensorRule, sides: dict[str, int]) -> None:
    expected = tuple(side if isinstance(side, int) else sides[side] for side in rule.shape)
    if tensor.shape != expected:
        meaning = ", ".join(str(side) for side in rule.shape)
        raise HeadFormatError(
            f"{tensor.name} has the shape {list(tensor.shape)}; config.json makes it {list(expected)}"
            f" ({meaning}). Config and weights belong to different heads"
        )


def _unclaimed(tensor: StoredTensor, source: str, config: HeadConfig) -> HeadFormatError:
    why = "no part of a DFlash head has that name"
    if source.endswith(".bias"):
        why = "a DFlash head's projections have no bias"
    elif config.version == 1 and ("_conv." in source or source.startswith("candidate_selector.")):
        why = "it belongs to DFlash 2, but architectures says DFlash 1"
    elif source.startswith("layers."):
        layer = source.split(".")[1]
        if layer.isdecimal() and int(layer) >= config.n_layer:
            why = f"num_hidden_layers says {config.n_layer}"
    return HeadFormatError(f"{tensor.path.name} holds {tensor.name}, which would be lost: {why}")


def _check_vocabulary_tensors(config: HeadConfig, stored: dict[str, StoredTensor]) -> None:
    own_embedding = "embed_tokens.weight" in stored and config.has_embedding
    if own_embedding and "lm_head.weight" not in stored and not config.tied:
        raise HeadFormatError(
            "the checkpoint has embed_tokens.weight without lm_head.weight, and tie_word_embeddings is not"
            " true: an engine would take the embedding for the output head too. Set has_embed_tokens to false"
            " to borrow both"
        )
    if "d2t" in stored and "lm_head.weight" not in stored:
        raise HeadFormatError(
            "the checkpoint has a reduced vocabulary, d2t, without lm_head.weight, whose rows it names"
        )
    if "d2t" not in stored and config.n_draft_vocab not in (None, config.n_vocab):
        raise HeadFormatError(
            f"draft_vocab_size is {config.n_draft_vocab} and vocab_size {config.n_vocab}, "
            "but the checkpoint has no d2t, which maps one to the other"
        )


def _read_draft_to_target(tensor: StoredTensor, n_vocab: int) -> npt.NDArray[np.int64]:
    """A checkpoint stores the distance from draft token to target token, a GGUF the target token itself."""
    if tensor.dtype not in ("I64", "I32"):
        raise HeadFormatError(f"d2t is stored as {tensor.dtype}: it must hold whole numbers")
    distances = np.concatenate([piece.astype(np.int64) for piece in tensor.pieces(1 << 20)])
    tokens = distances + np.arange(tensor.n_elements)
    if tokens.min() < 0 or (n_vocab and tokens.max() >= n_vocab):
        raise HeadFormatError(f"d2t names tokens {tokens.min()} to {tokens.max()}; vocab_size is {n_vocab}")
    if np.unique(tokens).size != tokens.size:
        raise HeadFormatError("d2t names a target token twice")
    return tokens
