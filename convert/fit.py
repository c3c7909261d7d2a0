"""Whether a head fits a target. One set of rules, for converting, for `doctor` and for mending."""

from __future__ import annotations

from typing import NamedTuple

from pydflash2.arguments import brief

from .head import Head
from .target import Target, Vocabulary


class Line(NamedTuple):
    """One thing that must fit. `detail` has the numbers of both sides."""

    name: str
    ok: bool
    detail: str


def check_fit(target: Target, head: Head, vocabulary: Vocabulary | None = None) -> list[Line]:
    """Everything that must hold between the two, one line each.

    vocabulary: a GGUF head's own; a checkpoint has none yet, nor what is copied from the target with it.
    """
    lines = [
        Line("hidden size", head.n_embd == target.n_embd, f"head {head.n_embd}, target {target.n_embd}"),
        _taps(target, head),
        _vocabulary(target, head, vocabulary),
        _mask_token(target, head),
        _block_size(head),
    ]
    if vocabulary is not None:
        lines += [_tokens(target, vocabulary), _embedding_scale(target, head), _rope_sections(target, head)]
    return lines


def _taps(target: Target, head: Head) -> Line:
    taps = ", ".join(str(tap) for tap in head.taps)
    detail = f"head reads layers {taps}; the target has {target.n_layer} (0 to {target.n_layer - 1})"
    fits = bool(head.taps) and all(0 <= tap < target.n_layer for tap in head.taps)
    if head.n_target_layers is not None and head.n_target_layers != target.n_layer:
        return Line("taps", False, f"{detail}, and the head was made for one with {head.n_target_layers}")
    return Line("taps", fits, detail)


def _vocabulary(target: Target, head: Head, vocabulary: Vocabulary | None) -> Line:
    """A head may cover more tokens than its target has, as padding, never fewer than the target has logits.

    With an output head of its own it proposes any token it covers, and the target must know each.
    """
    size, true_size = target.vocabulary.size, target.vocabulary.true_size
    detail = f"head {head.n_vocab or 'says nothing'}, target {size} tokens"
    if true_size != size:
        detail += f", {true_size} without padding"
    fits = head.n_vocab is None or head.n_vocab == size or (head.n_vocab > size and not head.own_output)
    if vocabulary is not None and vocabulary.true_size != true_size:
        return Line(
            "vocabulary", False, f"{detail}; the head's tokens are {vocabulary.true_size} without padding"
        )
    return Line("vocabulary", fits, detail)


def _mask_token(target: Target, head: Head) -> Line:
    if head.mask_token is None:
        return Line("mask token", False, "head names none; a block can't be drafted without it")
    fits = 0 <= head.mask_token < target.vocabulary.size
    return Line(
        "mask token", fits, f"head {head.mask_token}, target's tokens are 0 to {target.vocabulary.size - 1}"
    )


def _block_size(head: Head) -> Line:
    if head.block_size is None:
        return Line("block size", False, "head names none; llama.cpp would take 16, which may be wrong")
    return Line(
        "block size", head.block_size >= 2, f"{head.block_size} rows, {head.block_size - 1} drafted tokens"
    )


def _tokens(target: Target, vocabulary: Vocabulary) -> Line:
    ours, theirs = vocabulary.tokens, target.vocabulary.tokens
    n_common = min(target.vocabulary.true_size, len(ours))
    different = [token for token in range(n_common) if ours[token] != theirs[token]]
    if not different:
        return Line("tokenizer", True, f"the same {n_common} tokens")
    first = different[0]
    detail = f"{len(different)} of {n_common} tokens differ, first {first}: "
    return Line("tokenizer", False, detail + f"head {_show(ours[first])}, target {_show(theirs[first])}")


def _show(token: bytes) -> str:
    return brief(token.decode("utf-8", "replace"))


def _embedding_scale(target: Target, head: Head) -> Line:
    if target.embedding_scale is None or head.embedding_scale is not None:
        scale = 1.0 if head.embedding_scale is None else head.embedding_scale
        return Line("embedding scale", True, f"{scale:g}")
    return Line(
        "embedding scale",
        True,
        f"head names none and drafts from raw embeddings, while {target.architecture} scales its own by "
        f"{target.embedding_scale:.4g}: right only if the head was trained so",
    )


def _rope_sections(target: Target, head: Head) -> Line:
    if not target.uses_mrope:
        return Line("rope sections", True, "not needed: the target has none")
    if head.rope_sections is not None:
        return Line("rope sections", True, "in both")
    return Line(
        "rope sections",
        True,
        "only the target has them: right for text; images need the head mended with pydflash2 convert HEAD"
        " --target TARGET",
    )
