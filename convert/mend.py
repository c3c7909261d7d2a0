"""Mends an old GGUF head: adds what files from before 2026-08-27 lack, and copies the rest byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from pydflash2.errors import HeadFormatError
from pydflash2.gguf_file import GGUFFile, Tensor

from . import keys
from .head import Head
from .metadata import rope_sections
from .target import Target
from .writer import OutTensor, add_field, new_writer, write_file

_PIECE = 1 << 23  # bytes


def mend(file: GGUFFile, head: Head, target: Target, output: Path, progress: bool | None) -> None:
    """Writes the head to `output` with the rope sections its target needs.

    Raises `HeadFormatError` where nothing needs mending.
    """
    if not target.uses_mrope or keys.ROPE_DIMENSION_SECTIONS in file.fields:
        why = (
            "has its rope sections"
            if target.uses_mrope
            else f"needs no rope sections: {target.path.name} has none"
        )
        raise HeadFormatError(f"{file.path} {why}. There is nothing to mend: use it as it is")

    tensors = [_copied(file, tensor) for tensor in file.tensors.values()]
    writer = new_writer(tensors, keys.ARCHITECTURE)
    writer.data_alignment = file.alignment
    for key, field in file.fields.items():
        if key.startswith(keys.TOKENIZER) and keys.ROPE_DIMENSION_SECTIONS not in writer.kv_data[0]:
            writer.add_array(keys.ROPE_DIMENSION_SECTIONS, rope_sections(head.head_dim))
        if key != keys.GENERAL_ARCHITECTURE:
            add_field(writer, key, field)
    write_file(writer, tensors, output, progress)


def _copied(file: GGUFFile, tensor: Tensor) -> OutTensor:
    if tensor.n_bytes is None:
        raise HeadFormatError(
            f"{file.path}: {tensor.name} has {tensor.type_name}, which this build doesn't know:"
            " convert the checkpoint again"
        )
    size, offset = tensor.n_bytes, tensor.offset

    def pieces() -> Iterator[npt.NDArray[Any]]:
        with file.path.open("rb") as source:
            source.seek(offset)
            for start in range(0, size, _PIECE):
                yield np.frombuffer(source.read(min(_PIECE, size - start)), np.uint8)

    return OutTensor(
        tensor.name, tuple(reversed(tensor.shape)), GGMLQuantizationType(tensor.type), size, pieces
    )
