"""Random numbers that are the same bits everywhere.

NumPy promises stable streams for bit generators, not for Generator's distributions, and a libm may round a
logarithm its own way. So weights are uniform, cut straight from the raw bits. Each tensor has a stream of its
own, named by seed and tensor name, so that adding a tensor changes no other.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def uniform(seed: int, name: str, shape: tuple[int, ...], std: float = 1.0) -> Array:
    """[shape] float32, mean 0, standard deviation `std`."""
    stream = np.random.PCG64([seed, zlib.crc32(name.encode())])
    raw = stream.random_raw(math.prod(shape))
    unit = (raw >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0  # [-1, 1), 24 bits: exact in float32
    return (unit * (std * math.sqrt(3.0))).astype(np.float32).reshape(shape)


def matrix(seed: int, name: str, rows: int, columns: int, gain: float = 1.0) -> Array:
    """[rows, columns], scaled so that a unit-variance input gives an output of standard deviation `gain`."""
    return uniform(seed, name, (rows, columns), gain / math.sqrt(columns))


def around_one(seed: int, name: str, n: int, spread: float = 0.2) -> Array:
    """[n] norm weights."""
    return np.float32(1.0) + uniform(seed, name, (n,), spread)


def token_ids(seed: int, n: int, low: int, high: int) -> list[int]:
    """n ids in [low, high)."""
    raw = np.random.PCG64([seed, zlib.crc32(b"token ids")]).random_raw(n)
    return [low + int(value % np.uint64(high - low)) for value in raw]
