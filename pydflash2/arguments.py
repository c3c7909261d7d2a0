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


def brief(value: object) -> str:
    """What a caller passed, as a message can show it."""
    try:
        text = repr(value)
    except Exception:  # not ours to trust: an int of 5,000 digits has none either
        text = " at 0x"
    if " at 0x" in text:  # an address tells nobody anything
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: one with half a surrogate pair cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def word(name: str, value: object) -> str:
    """A name out of a list that the native code knows."""
    if not isinstance(value, str) or not is_unicode(value):
        raise TypeError(f'{name} is {brief(value)}: give a name, such as "f16"')
    return value


def flag(name: str, value: object) -> bool:
    """True or False; NumPy's are welcome."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {brief(value)}: give True or False")
    return bool(value)


def integer(name: str, value: SupportsIndex, least: int, most: int = _INT32_MAX) -> int:
    """A whole number from `least` to `most`; NumPy's are welcome, bools and floats are not."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}: give a whole number, {least} or more")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {brief(value)}: give a whole number, {least} or more") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {brief(number)}: it must lie between {least} and {most}")
    return number


def number(name: str, value: SupportsFloat, least: float = -math.inf, most: float = math.inf) -> float:
    """A number from `least` to `most`, minus infinity where `least` is; NumPy's are welcome, bools not."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} is {brief(value)}: give a number")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {brief(value)}: give a number") from None
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
    try:
        given = iter(tokens)
    except TypeError:
        raise TypeError(f"tokens is {brief(tokens)}: give a list of token ids") from None
    ids = []
    for index, token in enumerate(given):
        number = token if type(token) is int else integer(f"tokens[{index}]", token, 0)
        if not 0 <= number < n_vocab:
            raise ValueError(f"tokens[{index}] is {brief(number)}: the target's ids are 0 to {n_vocab - 1}")
        ids.append(number)
    return ids


def stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """One string, several or none, as a tuple."""
    try:
        given = iter(() if stop is None else (stop,) if isinstance(stop, str) else stop)
    except TypeError:
        raise TypeError(f"stop is {brief(stop)}: give a string or a list of them") from None
    strings = []
    for string in given:
        if not isinstance(string, str):
            raise TypeError(f"stop has {brief(string)}: give strings")
        if not string:
            raise ValueError("stop has an empty string, which would end every text at once: leave it out")
        strings.append(string)
    return tuple(strings)


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
