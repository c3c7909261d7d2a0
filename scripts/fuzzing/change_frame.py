"""Mutations of the file itself: its counts, its version, its bytes. `seams` is where its parts begin."""

from __future__ import annotations

from random import Random

from gguf import GGUFValueType as Kind

from fuzzing.gguf_parts import Parts
from fuzzing.oddities import EDGES


def frame(dice: Random, parts: Parts) -> None:
    """Version, counts or alignment wrong."""
    change = dice.randrange(5)
    if change == 0:
        parts.version = dice.choice([0, 1, 2, 4, 255, 0x03000000, 2**32 - 1])
    elif change == 1:
        parts.n_keys = dice.choice([len(parts.keys) - 1, len(parts.keys) + 1, *EDGES])
    elif change == 2:
        parts.n_rows = dice.choice([len(parts.rows) - 1, len(parts.rows) + 1, *EDGES])
    elif change == 3:
        parts.set(b"general.alignment", Kind.UINT32, dice.choice([0, 1, 3, 16, 64, 4096, 2**31, 2**32 - 1]))
    else:
        name, value = dice.choice(
            [(b"split.no", 1), (b"split.count", 3), (b"split.count", 65535), (b"split.tensors.count", 9)]
        )
        parts.set(name, dice.choice([Kind.UINT16, Kind.UINT32, Kind.STRING]), value)


def cut(dice: Random, data: bytes, seams: list[int]) -> bytes:
    if dice.random() < 0.6:
        return data[: max(0, dice.choice(seams) + dice.choice([-8, -1, 0, 1, 4]))]
    return data[: dice.randrange(len(data))]


def flip_head_bits(dice: Random, data: bytes, seams: list[int]) -> bytes:
    """Bits near the seams of the head: types, lengths, the first letters of names."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8, 64])):
        at = min(len(data) - 1, max(0, dice.choice(seams) + dice.randrange(-24, 40)))
        changed[at] ^= 1 << dice.randrange(8)
    return bytes(changed)


def flip_bits(dice: Random, data: bytes, seams: list[int]) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice([1, 10, 1000])):
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def overwrite(dice: Random, data: bytes, seams: list[int]) -> bytes:
    """A stretch of zeros, ones or noise."""
    at = dice.choice([dice.choice(seams), dice.randrange(len(data))])
    length = dice.choice([1, 4, 8, 100, 4096])
    filling = dice.choice([b"\0" * length, b"\xff" * length, dice.randbytes(length)])
    return data[:at] + filling[: len(data) - at] + data[at + length :]


def shift(dice: Random, data: bytes, seams: list[int]) -> bytes:
    """Bytes too many or too few, somewhere."""
    at, length = dice.choice(seams), dice.choice([1, 4, 8, 32])
    return data[:at] + (dice.randbytes(length) + data[at:] if dice.random() < 0.5 else data[at + length :])


def not_gguf(dice: Random, data: bytes, seams: list[int]) -> bytes:
    return dice.choice(
        [
            b"",
            b"GGUF",
            b"GGU",
            b"GGJT" + data[4:],
            b"{}",
            data[:24],
            dice.randbytes(5000),
            b"GGUF" + b"\0" * 20,
        ]
    )
