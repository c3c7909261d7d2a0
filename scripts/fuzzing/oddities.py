"""What mutations put in place of what belongs there, and where they put it."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import gguf
from gguf import GGUFValueType as Kind

from fuzzing.gguf_parts import SCALARS, Key, Parts, Row

# fmt: off
EDGES = [
    -1, 0, 1, 2, 3, 5, 7, 31, 33, 255, 256, 260, 65535, 65536,
    2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1,
]
FLOATS = [0.0, -0.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3e38, 1e300, math.nan, math.inf, -math.inf]
BAD_TEXT = [
    b"", b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc3", b"a\0b", b"\0", b"x" * 70000, b"%s%n%d",
    b"\xf4\x90\x80\x80",
]
# fmt: on
NUMBERS = tuple(int(kind) for kind in SCALARS)
ARCHITECTURES = sorted(name.encode() for name in gguf.MODEL_ARCH_NAMES.values())


def _constants(holder: Any) -> list[str]:
    """Every key name that the gguf package knows, with {arch} where the architecture goes."""
    found = []
    for name, value in vars(holder).items():
        if isinstance(value, type):
            found += _constants(value)
        elif isinstance(value, str) and not name.startswith("_") and "." in value:
            found.append(value)
    return found


KNOWN_KEYS = sorted(set(_constants(gguf.Keys)))
KNOWN_TENSORS = sorted(set(gguf.TENSOR_NAMES.values()))


def number(dice: Random, old: Any = 0) -> int | float:
    """A number out of place: an edge, a near miss of the old one, or a float."""
    roll = dice.random()
    if roll < 0.5:
        return dice.choice(EDGES)
    if roll < 0.85 and isinstance(old, (int, float)) and math.isfinite(old):
        return dice.choice([old + 1, old - 1, old * 2, old // 2, -old, old * 3, old * 1000])
    return dice.choice(FLOATS)


def any_key(dice: Random, parts: Parts) -> Key:
    """Mostly one of the model's own keys: the tokenizer's and the general ones change less."""
    own = [key for key in parts.keys if not key.name.startswith((b"general.", b"tokenizer."))]
    return dice.choice(own if own and dice.random() < 0.75 else parts.keys)


def any_row(dice: Random, parts: Parts) -> Row:
    return dice.choice(parts.rows)


def arrays(parts: Parts) -> list[Key]:
    return [key for key in parts.keys if key.kind == Kind.ARRAY and isinstance(key.value, list)]


def full_name(dice: Random, parts: Parts, template: str) -> bytes:
    text = template.replace("{arch}", parts.architecture.decode("utf-8", "replace"))
    return text.replace("{bid}", str(dice.choice([0, 0, 1, 2, 7]))).replace("{id}", "0").encode()
