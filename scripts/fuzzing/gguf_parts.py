"""A GGUF file as loose parts: what a mutation changes is written as it stands, however absurd."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType as Kind

from pydflash2.gguf_file import GGUFFile

_FORMATS = {
    Kind.UINT8: "B",
    Kind.INT8: "b",
    Kind.UINT16: "H",
    Kind.INT16: "h",
    Kind.UINT32: "I",
    Kind.INT32: "i",
    Kind.UINT64: "Q",
    Kind.INT64: "q",
    Kind.BOOL: "B",
    Kind.FLOAT32: "f",
    Kind.FLOAT64: "d",
}
SCALARS = tuple(_FORMATS)


@dataclass
class Key:
    name: bytes
    kind: int
    value: Any  # strings are bytes, arrays are lists
    items: int | None = None  # kind of an array's items
    count: int | None = None  # the length an array claims, where that is a lie


@dataclass
class Row:
    """One tensor in the table."""

    name: bytes
    shape: list[int]
    type: int
    offset: int  # from the start of the data
    n_bytes: int  # what the tensor truly has there
    n_dimensions: int | None = None  # claimed, where that is a lie


@dataclass
class Parts:
    keys: list[Key]
    rows: list[Row]
    data: bytearray
    version: int = 3
    n_keys: int | None = None  # claimed, where that is a lie
    n_rows: int | None = None
    seams: list[int] = field(default_factory=list)  # where each part began when it was last written

    def copy(self) -> Parts:
        return Parts(copy.deepcopy(self.keys), copy.deepcopy(self.rows), bytearray(self.data))

    def key(self, name: bytes) -> Key | None:
        return next((key for key in self.keys if key.name == name), None)

    @property
    def architecture(self) -> bytes:
        key = self.key(b"general.architecture")
        return key.value if key is not None and isinstance(key.value, bytes) else b"none"

    def set(self, name: bytes, kind: Kind, value: Any, items: Kind | None = None) -> None:
        """Replaces a key where it stands, or adds one at the end."""
        new = Key(name, kind, value, items)
        for at, key in enumerate(self.keys):
            if key.name == name:
                self.keys[at] = new
                return
        self.keys.append(new)

    def write(self) -> bytes:
        pieces = [b"GGUF", struct.pack("<I", self.version & 0xFFFFFFFF)]
        pieces.append(_integer(len(self.rows) if self.n_rows is None else self.n_rows, "Q"))
        pieces.append(_integer(len(self.keys) if self.n_keys is None else self.n_keys, "Q"))
        self.seams, size = [4, 8, 16, 24], 24
        for piece in [*map(_key, self.keys), *map(_row, self.rows)]:
            pieces.append(piece)
            size += len(piece)
            self.seams.append(size)
        padding = -size % 32
        self.seams += [size + padding + row.offset for row in self.rows[1:8]]
        return b"".join([*pieces, bytes(padding), self.data])


def read(path: Path) -> Parts:
    """The parts of a sound file."""
    file = GGUFFile.open(path)
    keys = [
        Key(name.encode(), int(f.type), f.value, None if f.element_type is None else int(f.element_type))
        for name, f in file.fields.items()
    ]
    start = min(tensor.offset for tensor in file.tensors.values())
    rows = [
        Row(name.encode(), list(t.shape), t.type, t.offset - start, t.n_bytes or 0)
        for name, t in file.tensors.items()
    ]
    return Parts(keys, rows, bytearray(path.read_bytes()[start:]))


def _integer(value: int, form: str) -> bytes:
    width = struct.calcsize("<" + form)
    return (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")


def _string(text: bytes) -> bytes:
    return _integer(len(text), "Q") + text


def _scalar(kind: int, value: Any) -> bytes:
    """The value as `kind`, whatever it was: what does not fit wraps around, strings become their length."""
    if kind == Kind.STRING:
        return _string(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass"))
    form = _FORMATS.get(Kind(kind)) if kind in Kind._value2member_map_ else None
    if form is None:
        return b"\0" * 8
    number = len(value) if isinstance(value, (bytes, list)) else value
    if form in "fd":
        with np.errstate(over="ignore"):
            return np.array(float(number), "<f4" if form == "f" else "<f8").tobytes()
    whole = int(number) if number == number and abs(number) != float("inf") else 0
    return _integer(whole, form)


def _key(key: Key) -> bytes:
    head = _string(key.name) + _integer(key.kind, "I")
    if key.kind != Kind.ARRAY:
        return head + _scalar(key.kind, key.value)
    items = Kind.UINT32 if key.items is None else key.items
    values = key.value if isinstance(key.value, list) else [key.value]
    count = len(values) if key.count is None else key.count
    return head + _integer(items, "I") + _integer(count, "Q") + b"".join(_scalar(items, v) for v in values)


def _row(row: Row) -> bytes:
    n_dimensions = len(row.shape) if row.n_dimensions is None else row.n_dimensions
    shape = b"".join(_integer(n, "Q") for n in row.shape)
    return (
        _string(row.name)
        + _integer(n_dimensions, "I")
        + shape
        + _integer(row.type, "I")
        + _integer(row.offset, "Q")
    )
