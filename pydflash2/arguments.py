"""Checks of what a caller passes. Each message names the argument, its value, and what it can be."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_INT32_MAX = 0x7FFFFFFF


def integer(name: str, value: SupportsIndex, least: int, most: int = _INT32_MAX) -> int:
    """A whole number from `least` to `most`; NumPy's are welcome, bools and floats are not."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}: give a whole number, {least} or more")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: give a whole number, {least} or more") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}: it must lie between {least} and {most}")
    return number


def number(name: str, value: SupportsFloat, least: float = -math.inf, most: float = math.inf) -> float:
    """A number from `least` to `most`, minus infinity where `least` is; NumPy's are welcome, bools not."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} is {value!r}: give a number")
    try:
        result = float(value)
    except (TypeError, OverflowError):
        raise TypeError(f"{name} is {value!r}: give a number") from None
    if not least <= result <= most or result == math.inf:
        limits = f"between {least:g} and {most:g}" if math.isfinite(least + most) else "a finite number"
        if math.isfinite(least) and not math.isfinite(most):
            limits = f"{least:g} or more, and finite"
        raise ValueError(f"{name} is {result}: it must be {limits}")
    return result


def token_ids(tokens: Iterable[SupportsIndex], n_vocab: int) -> list[int]:
    """Ids that a target with `n_vocab` tokens has."""
    if isinstance(tokens, (str, bytes)):
        raise TypeError(f"tokens is {type(tokens).__name__}: give a list of token ids")
    ids = []
    for index, token in enumerate(tokens):
        number = token if type(token) is int else integer(f"tokens[{index}]", token, 0)
        if not 0 <= number < n_vocab:
            raise ValueError(f"tokens[{index}] is {number}: the target's ids are 0 to {n_vocab - 1}")
        ids.append(number)
    return ids


def stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """One string, several or none, as a tuple."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop has {string!r}: give strings")
        if not string:
            raise ValueError("stop has an empty string, which would end every text at once: leave it out")
    return strings


def drawn_from(n: int, candidates: object, proposal: object) -> tuple[Integers, Floats]:
    """A draft's candidates and the probabilities its tokens were drawn with, both [n, K]."""
    ids, q = np.asarray(candidates), np.asarray(proposal)
    if ids.ndim != 2 or ids.shape != q.shape or len(ids) != n:
        raise ValueError(
            f"the draft has {n} tokens, candidates of shape {ids.shape} and a proposal of shape {q.shape}: "
            "both must be [tokens, K], as draft() gives them"
        )
    try:
        return ids.astype(np.int32, casting="same_kind"), q.astype(np.float32, casting="same_kind")
    except TypeError:
        raise TypeError(
            f"the draft's candidates are {ids.dtype} and its proposal {q.dtype}: give integers and floats"
        ) from None
