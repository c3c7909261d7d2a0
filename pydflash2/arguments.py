"""Checks of what a caller passes. Each message names the argument, its value, and what it can be."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

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


def greedy(temperature: float) -> None:
    """Refuses every temperature but 0."""
    if temperature != 0:
        raise ValueError(
            f"temperature is {temperature!r}: this version decodes greedily, at temperature=0 only"
        )


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
