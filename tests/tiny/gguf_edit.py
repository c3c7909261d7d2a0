"""A GGUF file as something to change: read, edit the two dicts, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind


@dataclass
class Key:
    value: Any
    kind: Kind
    items: Kind | None = None  # of an array


@dataclass
class Tensor:
    data: npt.NDArray[Any]  # [rows, bytes a row] where the type is quantised
    type: Type


class EditableFile:
    """keys: by full name, without the architecture; tensors: by name, in file order."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.architecture: str = reader.fields["general.architecture"].contents()
        self.keys = {
            name: Key(field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.") and name != "general.architecture"
        }
        self.tensors = {t.name: Tensor(np.array(t.data), t.tensor_type) for t in reader.tensors}

    def set(self, name: str, value: Any, kind: Kind = Kind.UINT32, items: Kind | None = None) -> None:
        self.keys[name] = Key(value, kind, items)

    def quantise(self, name: str, type: Type) -> None:
        """Stores an F32 tensor as `type`."""
        self.tensors[name] = Tensor(gguf.quants.quantize(self.tensors[name].data, type), type)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for name, key in self.keys.items():
            writer.add_key_value(name, key.value, key.kind, sub_type=key.items)
        for name, tensor in self.tensors.items():
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path
