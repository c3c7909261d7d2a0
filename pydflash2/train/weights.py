"""The weights of a GGUF file, dequantised to F32 by rows, when asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from pydflash2.convert import keys
from pydflash2.errors import ModelFileError
from pydflash2.gguf_file import GGUFFile, Tensor

Array = npt.NDArray[np.float32]

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Weights:
    """Every tensor of a model's file or files. Shapes are torch's order."""

    def __init__(self, path: Path) -> None:
        """Reads the tables only. Raises `ModelFileError` for damage, or a missing part of a split file."""
        self.path = path
        self.file = GGUFFile.open(path)
        files = [self.file, *(GGUFFile.open(part) for part in _further_parts(self.file))]
        self._tensors = {name: (file, tensor) for file in files for name, tensor in file.tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for _, tensor in self._tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(reversed(self._find(name)[1].shape))

    def read(self, name: str) -> Array:
        """The whole tensor."""
        return self.rows(name, slice(None)).reshape(self.shape(name))

    def rows(self, name: str, which: npt.NDArray[np.int64] | slice) -> Array:
        """Rows of a matrix, [n, row length]: a tensor's last side is its rows' length, the others count them.

        Raises `ModelFileError` for a type that the gguf package can't dequantise.
        """
        file, tensor = self._find(name)
        try:
            kind = GGMLQuantizationType(tensor.type)
            assert tensor.n_bytes is not None
            n_rows = tensor.n_elements // tensor.shape[0]
            stored = np.memmap(file.path, np.uint8, "r", tensor.offset, (n_rows, tensor.n_bytes // n_rows))
            floats = _as_floats(np.ascontiguousarray(stored[which]), kind)
            return floats if floats.flags.writeable else floats.copy()  # F32 would be the file itself
        except (ValueError, NotImplementedError) as error:
            raise ModelFileError(
                f"{file.path}: {name} has the type {tensor.type_name}, which the gguf package can't"
                f" dequantise: {error}. Quantise the model to another type, such as Q4_K_M"
            ) from error
        except OSError as error:
            raise ModelFileError(
                f"{file.path} can't be read: {error.strerror or error}. Check the path"
            ) from error

    def _find(self, name: str) -> tuple[GGUFFile, Tensor]:
        if name not in self._tensors:
            raise ModelFileError(f"{self.path} lacks the tensor {name}. Download or convert the model again")
        return self._tensors[name]


def _as_floats(stored: npt.NDArray[Any], kind: GGMLQuantizationType) -> Array:
    if kind in (GGMLQuantizationType.F64, GGMLQuantizationType.I64, GGMLQuantizationType.I32):
        return stored.view({"F64": "<f8", "I64": "<i8", "I32": "<i4"}[kind.name]).astype(np.float32)
    return np.asarray(dequantize(stored, kind), np.float32)


def _further_parts(file: GGUFFile) -> list[Path]:
    n_parts = file.integer(keys.SPLIT_COUNT) or 1
    if n_parts == 1:
        return []
    match = _PART.search(file.path.name)
    if match is None or int(match[1]) != 1 or int(match[2]) != n_parts:
        raise ModelFileError(
            f"{file.path} is one of {n_parts} parts, and its name is not that of the first: give the file"
            f" named ...-00001-of-{n_parts:05d}.gguf"
        )
    stem = file.path.name[: match.start()]
    return [file.path.with_name(f"{stem}-{part:05d}-of-{n_parts:05d}.gguf") for part in range(2, n_parts + 1)]
