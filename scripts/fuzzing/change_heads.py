"""Mutations of what only a head has."""

from __future__ import annotations

import struct
from random import Random

from gguf import GGUFValueType as Kind

from fuzzing.gguf_parts import Parts, Row
from fuzzing.oddities import EDGES, any_row

# fmt: off
_TAPS = [
    [0], [], [1], [99, 1], [-1, 1], [1, 1], [2**31 - 1, 1], [-(2**31), 2], [6, 1], [5, 1], [1, 2, 3],
    [1] * 64, [1] * 65,
]
# fmt: on


def taps(dice: Random, parts: Parts) -> None:
    layers = dice.choice(_TAPS)
    items = dice.choice(
        [Kind.INT32, Kind.INT32, Kind.UINT32, Kind.INT64, Kind.UINT8, Kind.BOOL, Kind.FLOAT32]
    )
    parts.set(b"dflash.target_layers", Kind.ARRAY, list(layers), items)


def mask_token(dice: Random, parts: Parts) -> None:
    parts.set(
        b"tokenizer.ggml.mask_token_id",
        dice.choice([Kind.UINT32, Kind.INT32, Kind.INT64, Kind.FLOAT32]),
        dice.choice([319, 320, *EDGES]),
    )


def draft_table(dice: Random, parts: Parts) -> None:
    """The map from rows of a reduced output head to token ids, wrong or where none belongs."""
    for row in parts.rows:
        if row.name == b"d2t":
            values = [dice.choice([-1, 0, 5, 319, 320, 2**31, 2**63 - 1]) for _ in range(row.shape[0])]
            count = dice.choice([1, len(values)])
            parts.data[row.offset : row.offset + 8 * count] = struct.pack(f"<{count}q", *values[:count])
            return
    like = any_row(dice, parts)
    parts.rows.append(
        Row(b"d2t", [dice.choice([1, 96, 320])], dice.choice([26, 27, 0]), like.offset, like.n_bytes)
    )


def forks_format(dice: Random, parts: Parts) -> None:
    """What converters of forks wrote before llama.cpp had a format."""
    change = dice.randrange(7)
    new = {0: b"dflash-draft", 1: b"dflash_draft", 2: b"dflash-draft", 3: b"dspark", 4: b"eagle3"}.get(
        change, b"dflash"
    )
    for key in parts.keys:
        if key.name.startswith(b"dflash."):
            rest = key.name[len(b"dflash.") :]
            key.name = new + (b".dflash." if change in (2, 5) else b".") + rest
    parts.set(b"general.architecture", Kind.STRING, new)
    if change in (1, 6):
        parts.keys = [key for key in parts.keys if not key.name.endswith((b"target_layers", b"block_size"))]
    if change == 3:
        parts.rows.append(Row(b"markov_w1.weight", [2, 2], 0, 0, 16))
