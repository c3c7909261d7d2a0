"""A checkpoint's tensors on disk: where each one lies, and its bytes piece by piece.

The safetensors package reads whole tensors, and none in BF16 without torch. The format is a table of offsets,
so it is read here, with plain reads: pages of a memory map would count as this process's memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pydflash2.errors import HeadFormatError

MASK_EMBEDDING = "mask_embedding.pt"  # a few heads bring a vector of their own for the mask token
_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes, the limit of the safetensors package

# BF16 has no numpy type: its bits are kept.
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `shape` is torch's order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes from the file's start

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.n_elements * DTYPES[self.dtype].itemsize

    def pieces(self, n_elements: int) -> Iterator[npt.NDArray[Any]]:
        """The tensor's values as flat arrays of at most so many. They share one buffer."""
        dtype = DTYPES[self.dtype]
        buffer = np.empty(min(n_elements, self.n_elements), dtype)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for start in range(0, self.n_elements, n_elements):
                piece = buffer[: min(n_elements, self.n_elements - start)]
                view = piece.data.cast("B")
                filled = 0
                while filled < len(view):
                    if not (count := file.readinto(view[filled:])):
                        raise HeadFormatError(
                            f"{self.path} ended while {self.name} was read. Was it changed meanwhile?"
                        )
                    filled += count
                yield piece


def read_checkpoint(folder: Path) -> list[StoredTensor]:
    """The tensors of a checkpoint folder, one file or shards with their index, ordered by file and name.

    Raises `HeadFormatError` for what is missing or damaged.
    """
    if (folder / MASK_EMBEDDING).is_file():
        raise HeadFormatError(
            f"{folder} holds {MASK_EMBEDDING}, which would be lost: this build embeds the mask token as the "
            "target does"
        )
    weight_map = _weight_map(folder)
    if weight_map is None:
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            hint = (
                " (weights in .bin files are not read: save them as safetensors)"
                if any(folder.glob("*.bin"))
                else ""
            )
            raise HeadFormatError(
                f"{folder} has no model.safetensors{hint}. Give the folder of a head's checkpoint"
            )
    else:
        files = [folder / name for name in sorted(set(weight_map.values()))]

    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_table(file):
            if tensor.name in tensors:
                raise HeadFormatError(
                    f"{tensor.name} is in {tensors[tensor.name].path.name} and in {file.name}"
                )
            tensors[tensor.name] = tensor
    if weight_map is not None and tensors.keys() != weight_map.keys():
        name = sorted(tensors.keys() ^ weight_map.keys())[0]
        where = "the files, but not in" if name in tensors else "the index, but not in the files of"
        raise HeadFormatError(f"{folder}: tensor {name} is in {where} {_INDEX}. Download the missing files")
    return list(tensors.values())


def _weight_map(folder: Path) -> dict[str, str] | None:
    path = folder / _INDEX
    if not path.is_file():
        return None
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(name, str) and Path(name).name == name for name in weight_map.values()):
            raise ValueError("weight_map must name files of this folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HeadFormatError(f"{path} is no index of shards: {error}. Download it again") from error
    return dict(weight_map)


def _read_table(path: Path) -> list[StoredTensor]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header_size = int.from_bytes(file.read(8), "little")
            if not 2 <= header_size <= min(size - 8, _MAX_HEADER):
                raise ValueError(f"its table is {header_size} bytes long, the file {size}")
            header = json.loads(file.read(header_size))
        if not isinstance(header, dict):
            raise ValueError("its table is no JSON object")
        header.pop("__metadata__", None)
        return [_entry(path, name, header[name], 8 + header_size, size) for name in sorted(header)]
    except OSError as error:
        raise HeadFormatError(f"{path} can't be read: {error.strerror}. Download it again") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HeadFormatError(f"{path} is no whole safetensors file: {error}. Download it again") from error


def _entry(path: Path, name: str, entry: Any, start: int, size: int) -> StoredTensor:
    dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
        raise ValueError(f"{name} has the shape {shape} at bytes {first} to {last}")
    if dtype not in DTYPES:
        raise HeadFormatError(
            f"{path}: {name} is stored as {dtype}; only {', '.join(DTYPES)} are read. "
            "If the checkpoint is quantised, convert the one it was made from"
        )
    tensor = StoredTensor(name, dtype, tuple(shape), path, start + first)
    if last - first != tensor.n_bytes or start + last > size:
        raise ValueError(
            f"{name} lies at bytes {first} to {last} and needs {tensor.n_bytes}; the file has {size}"
        )
    return tensor
