"""Reads a GGUF file's metadata and tensor table. Any file gets an answer, or a `ModelFileError`.

The reader of the `gguf` package is not used for this: it keeps an array object for every token (795 MB and 16
seconds for 250,000 tokens with their merges) and takes the file's counts and lengths at their word.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from pydflash2.errors import ModelFileError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32  # bytes
_VERSIONS = (2, 3)
_MOST_LETTERS = 200  # of a reason that a message gives
_MAX_NAME = 64  # bytes of an architecture's name, ggml's GGML_MAX_NAME
_MAX_DIMENSIONS = 4  # ggml's GGML_MAX_DIMS

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}


@dataclass(frozen=True)
class Field:
    """One value. Strings are bytes, as nothing promises that a token is UTF-8; arrays are lists."""

    value: Any
    type: GGUFValueType
    element_type: GGUFValueType | None = None


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]  # ggml's order, row length first
    type: int
    offset: int  # bytes from the file's start
    n_bytes: int | None  # None: a type this package does not know

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        try:
            return GGMLQuantizationType(self.type).name
        except ValueError:
            return f"type {self.type}"


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file says about itself. Its weights are not read."""

    path: Path
    fields: dict[str, Field]
    tensors: dict[str, Tensor]
    n_bytes: int
    alignment: int

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Reads the file's head. Raises `ModelFileError` for what is missing, damaged or no GGUF."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < len(MAGIC):
                    raise ModelFileError(
                        f"{path} is no GGUF file: it has {size} bytes. Download or convert it again"
                    )
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    return _Parser(path, data).parse()
        except OSError as error:
            raise ModelFileError(
                f"{path} can't be read: {error.strerror or error}. Check the path"
            ) from error

    def value(self, key: str) -> Any:
        """The value of a key, None where the file lacks it."""
        field = self.fields.get(key)
        return None if field is None else field.value

    def text(self, key: str) -> str | None:
        value = self.value(key)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else None

    def integer(self, key: str) -> int | None:
        """A whole number, None where the key is missing or holds something else."""
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        value = self.value(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def array(self, key: str) -> list[Any] | None:
        value = self.value(key)
        return value if isinstance(value, list) else None


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def parse(self) -> GGUFFile:
        if self.data[:4] != MAGIC:
            raise ModelFileError(
                f"{self.path} is no GGUF file: it starts with {self.data[:4]!r}. Give a .gguf file"
            )
        self.position = 4
        version = self._scalar("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "made for big-endian machines" if swapped in _VERSIONS else f"GGUF version {version}"
            raise ModelFileError(
                f"{self.path} is {why}; this build reads versions 2 and 3. Convert the model again"
            )
        n_tensors = self._count("tensors", "<Q", 24)
        n_fields = self._count("keys", "<Q", 13)

        fields: dict[str, Field] = {}
        for _ in range(n_fields):
            key = self._name("key")
            if key in fields:
                raise self._damaged(f"key {key} comes twice")
            fields[key] = self._field(key)
        if (architecture := fields.get("general.architecture")) is not None and (
            isinstance(architecture.value, bytes) and len(architecture.value) > _MAX_NAME
        ):
            raise self._damaged(f"general.architecture has {len(architecture.value)} letters")
        rows = [self._row() for _ in range(n_tensors)]

        alignment = DEFAULT_ALIGNMENT
        if (aligned := fields.get("general.alignment")) is not None:
            alignment = aligned.value
            if aligned.type is not GGUFValueType.UINT32 or alignment < 1 or alignment & (alignment - 1):
                raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in rows:
            if name in tensors:
                raise self._damaged(f"tensor {name} comes twice")
            tensors[name] = self._tensor(name, shape, kind, start + offset, alignment)
        return GGUFFile(self.path, fields, tensors, self.size, alignment)

    def _damaged(self, why: str) -> ModelFileError:
        if len(why) > _MOST_LETTERS:  # names can be as long as the file
            why = f"{why[: _MOST_LETTERS // 2]} ... {why[-_MOST_LETTERS // 2 :]}"
        return ModelFileError(f"{self.path} is damaged: {why}. Download or convert it again")

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise self._damaged(f"its head ends at byte {self.size}, within a value that ends at {end}")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _count(self, what: str, form: str, least_bytes: int) -> int:
        """A number of things that take at least so many bytes each: bounded by the file."""
        count: int = self._scalar(form)
        if count * least_bytes > self.size - self.position:
            raise self._damaged(f"it announces {count} {what} and has {self.size} bytes")
        return count

    def _string(self) -> bytes:
        return self._take(self._count("characters", "<Q", 1))

    def _strings(self, count: int) -> list[bytes]:
        """What `_string` gives so many times; 250,000 tokens make the loop worth its lines."""
        data, size, position = self.data, self.size, self.position
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + (unpack(data, position)[0] if start <= size else 0)
            if position > size:
                break
            strings.append(data[start:position])
        self.position = position
        self._take(0)  # complains where a string passed the end
        return strings

    def _name(self, what: str) -> str:
        name = self._string()
        try:
            return name.decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"a {what}'s name is not UTF-8: {name[:40]!r}") from None

    def _type(self, key: str) -> GGUFValueType:
        number = self._scalar("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self._damaged(f"key {key} has the unknown type {number}") from None

    def _field(self, key: str) -> Field:
        kind = self._type(key)
        if kind is GGUFValueType.STRING:
            return Field(self._string(), kind)
        if kind is not GGUFValueType.ARRAY:
            return Field(self._scalar(_SCALARS[kind]), kind)
        element = self._type(key)
        if element is GGUFValueType.ARRAY:
            raise self._damaged(f"key {key} is an array of arrays, which no model has")
        if element is GGUFValueType.STRING:
            count = self._count("strings", "<Q", 8)
            return Field(self._strings(count), kind, element)
        dtype = np.dtype(_SCALARS[element])
        count = self._count("numbers", "<Q", dtype.itemsize)
        return Field(np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist(), kind, element)

    def _row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name("tensor")
        n_dimensions = self._scalar("<I")
        if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name} has {n_dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(n_dimensions))
        return name, shape, self._scalar("<I"), self._scalar("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, alignment: int) -> Tensor:
        if min(shape) < 1 or math.prod(shape) >= 2**63:
            raise self._damaged(f"tensor {name} has the shape {list(shape)}")
        if offset % alignment:
            raise self._damaged(f"tensor {name} starts at byte {offset}, not at a multiple of {alignment}")
        n_bytes = None
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError:
            pass  # a newer type: the rest of the file can still be told
        else:
            if shape[0] % block:
                raise self._damaged(f"tensor {name} has rows of {shape[0]} values, not a multiple of {block}")
            n_bytes = math.prod(shape) // block * block_bytes
        if offset + (n_bytes or 0) > self.size:
            raise self._damaged(
                f"tensor {name} ends at byte {offset + (n_bytes or 0)}, the file at {self.size}"
            )
        return Tensor(name, shape, kind, offset, n_bytes)
