"""Mutations of the tensor table and of the weights."""

from __future__ import annotations

import math
import struct
from random import Random

from fuzzing.gguf_parts import Parts, Row
from fuzzing.oddities import EDGES, KNOWN_TENSORS, any_row, full_name


def remove_tensor(dice: Random, parts: Parts) -> None:
    parts.rows.remove(any_row(dice, parts))


def no_tensors(dice: Random, parts: Parts) -> None:
    parts.rows.clear()
    if dice.random() < 0.5:
        parts.data.clear()


def duplicate_tensor(dice: Random, parts: Parts) -> None:
    row = any_row(dice, parts)
    parts.rows.insert(
        dice.randrange(len(parts.rows) + 1), Row(row.name, list(row.shape), row.type, row.offset, row.n_bytes)
    )


def rename_tensor(dice: Random, parts: Parts) -> None:
    row = any_row(dice, parts)
    row.name = dice.choice(
        [b"", row.name + b"x", b"x" * 63, b"x" * 64, b"x" * 300, b"\xff\xfe", any_row(dice, parts).name]
    )


def known_tensor(dice: Random, parts: Parts) -> None:
    """A tensor some architecture has, its data another's."""
    name = full_name(dice, parts, dice.choice(KNOWN_TENSORS)) + dice.choice([b".weight", b".bias", b""])
    like = any_row(dice, parts)
    new = Row(name, list(like.shape), like.type, like.offset, like.n_bytes)
    if dice.random() < 0.5:
        parts.rows.append(new)
    else:
        parts.rows[parts.rows.index(like)] = new


def swap_tensors(dice: Random, parts: Parts) -> None:
    one, other = any_row(dice, parts), any_row(dice, parts)
    one.name, other.name = other.name, one.name


def reshape_tensor(dice: Random, parts: Parts) -> None:
    row = any_row(dice, parts)
    roll = dice.random()
    if roll < 0.2:
        row.shape.reverse()
    elif roll < 0.4:
        at = dice.randrange(len(row.shape))
        row.shape[at] = max(0, row.shape[at] + dice.choice([-32, -1, 1, 32]))
    elif roll < 0.55:
        at = dice.randrange(len(row.shape))
        row.shape[at] = dice.choice([1, row.shape[at] // 2, row.shape[at] // 4])
    elif roll < 0.7:
        row.shape[dice.randrange(len(row.shape))] = dice.choice(EDGES)
    elif roll < 0.85:
        row.shape = dice.choice(
            [[math.prod(row.shape)], [1, *row.shape], [*row.shape, 1, 1], row.shape[:1], [32, 32]]
        )
    else:
        row.n_dimensions = dice.choice([0, 1, 2, 3, 4, 5, 255, 2**32 - 1])


def reshape_all(dice: Random, parts: Parts) -> None:
    """One length replaced by another throughout, so that shapes still agree with each other."""
    old = dice.choice(any_row(dice, parts).shape)
    new = dice.choice([old // 2, max(1, old - 1), max(1, old // 3), 1, 2, 32])
    for row in parts.rows:
        row.shape = [new if n == old else n for n in row.shape]


def retype_tensor(dice: Random, parts: Parts) -> None:
    row = any_row(dice, parts)
    row.type = dice.choice([*range(48), 2**31, 2**32 - 1])


def retype_all(dice: Random, parts: Parts) -> None:
    """Every matrix, or every vector, of another type that takes no more room."""
    new = dice.choice([1, 2, 3, 6, 7, 8, 10, 12, 14, 20, 24, 25, 26, 30, 34, 39])
    matrices = dice.random() < 0.7
    for row in parts.rows:
        if (len(row.shape) > 1) == matrices:
            row.type = new


def move_tensor(dice: Random, parts: Parts) -> None:
    row, size = any_row(dice, parts), len(parts.data)
    row.offset = dice.choice(
        [0, row.offset + 1, row.offset + 32, size, size - 4, size - 32, any_row(dice, parts).offset, *EDGES]
    )


def bad_weights(dice: Random, parts: Parts) -> None:
    """NaN, infinities, huge numbers, zeros or noise in one tensor or in all."""
    patterns = [
        struct.pack("<f", value) for value in (math.nan, math.inf, -math.inf, 3e38, 1e20, 0.0, -1e-40)
    ]
    pattern = dice.choice([*patterns, b"\xff\xff\xff\xff", b"\x00\x7c\x00\x7c", dice.randbytes(4)])
    rows = parts.rows if dice.random() < 0.25 else [any_row(dice, parts)]
    whole = dice.random() < 0.5
    for row in rows:
        size = row.n_bytes // 4 * 4
        if whole:
            parts.data[row.offset : row.offset + size] = pattern * (size // 4)
        elif size:
            at = row.offset + dice.randrange(size // 4) * 4
            parts.data[at : at + 4] = pattern
