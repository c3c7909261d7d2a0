"""Writes a GGUF beside its goal and renames it: keys by the gguf package, then tensors in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from tqdm import tqdm

from pydflash2.errors import ModelFileError
from pydflash2.gguf_file import Field


@dataclass(frozen=True)
class OutTensor:
    """A tensor to write. `shape` is torch's order; `pieces` gives its bytes, `n_bytes` in all."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    n_bytes: int
    pieces: Callable[[], Iterator[npt.NDArray[Any]]]


def new_writer(tensors: Sequence[OutTensor], architecture: str) -> GGUFWriter:
    """A writer that knows the tensors and waits for the keys."""
    writer = GGUFWriter(path=None, arch=architecture)
    for tensor in tensors:
        # float16 stands for any type but uint8, which the package would take for a byte shape
        dtype = np.dtype(np.float16)
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.n_bytes, raw_dtype=tensor.type)
    return writer


def add_field(writer: GGUFWriter, key: str, field: Field) -> None:
    """Copies a key of another file, byte for byte. An empty array is left out: the format can't hold one."""
    if field.type is GGUFValueType.ARRAY and not field.value:
        return
    writer.add_key_value(key, field.value, field.type, sub_type=field.element_type)


def write_file(writer: GGUFWriter, tensors: Sequence[OutTensor], output: Path, progress: bool | None) -> None:
    """Writes keys and tensors to a file beside `output`, then renames it. What fails leaves nothing behind.

    progress: show a bar on stderr; None: where stderr is a terminal.
    Raises `ModelFileError` if the file can't be written.
    """
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        _append_tensors(part, tensors, writer.data_alignment, output.name, progress)
        os.replace(part, output)
    except OSError as error:
        raise ModelFileError(
            f"{output} can't be written: {error.strerror or error}. Name another file with --output"
        ) from error
    finally:
        writer.close()
        with suppress(OSError):  # renamed, or never begun
            part.unlink()


def _append_tensors(
    path: Path, tensors: Sequence[OutTensor], alignment: int, name: str, progress: bool | None
) -> None:
    total = sum(tensor.n_bytes for tensor in tensors)
    disable = None if progress is None else not progress
    with (
        path.open("ab", buffering=0) as file,
        tqdm(total=total, desc=name, unit="B", unit_scale=True, disable=disable) as bar,
    ):
        _pad(file, alignment)
        for tensor in tensors:
            start = file.tell()
            for piece in tensor.pieces():
                data = np.ascontiguousarray(piece).data.cast("B")
                for written in _write_all(file, data):
                    bar.update(written)
            if file.tell() - start != tensor.n_bytes:
                raise ModelFileError(
                    f"{tensor.name} came to {file.tell() - start} bytes instead of {tensor.n_bytes}: "
                    "was its file changed meanwhile?"
                )
            _pad(file, alignment)


def _write_all(file: Any, data: memoryview) -> Iterator[int]:
    while data:
        written = file.write(data)
        data = data[written:]
        yield written


def _pad(file: Any, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
