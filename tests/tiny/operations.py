"""Operations of the drafter's graphs as tests/native/graph_ops.cpp prints them, and made up ones."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parents[2] / "build" / "tests"))
GRAPH_OPS = FOLDER / "graph_ops"
N_PARAMS = 16


def block_of(type: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type.upper()]]


@dataclass(frozen=True)
class Tensor:
    type: str  # as ggml spells it
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    offset: int = 0  # of a view, in bytes
    name: str = ""

    @classmethod
    def make(cls, type: str, *ne: int) -> Tensor:
        """One that lies in memory without gaps."""
        block, size = block_of(type)
        sizes = (*ne, 1, 1, 1)[:4]
        nb = [size, size * sizes[0] // block]
        nb += [nb[1] * sizes[1], nb[1] * sizes[1] * sizes[2]]
        return cls(type, sizes, tuple(nb))  # type: ignore[arg-type]

    def permuted(self, *order: int) -> Tensor:
        """Axis i of this one becomes axis order[i], as with ggml_permute."""
        ne, nb = [0] * 4, [0] * 4
        for axis, place in enumerate(order):
            ne[place], nb[place] = self.ne[axis], self.nb[axis]
        return Tensor(self.type, tuple(ne), tuple(nb), self.offset)  # type: ignore[arg-type]

    @property
    def quantised(self) -> bool:
        return block_of(self.type)[0] > 1

    def contiguous_from(self, axis: int) -> bool:
        """Whether nothing lies between neighbours along `axis` and those after it; axis 0: the whole tensor.

        The strides of axes 1 to `axis` may be anything then.
        """
        block, size = block_of(self.type)
        if self.ne[0] != block and self.nb[0] != size:
            return False
        run = self.ne[axis] * self.nb[axis] if axis else size * self.ne[0] // block
        return all(
            self.ne[i] == 1 or self.nb[i] == run * math.prod(self.ne[axis + 1 : i])
            for i in range(axis + 1, 4)
        )

    @property
    def contiguous(self) -> bool:
        return self.contiguous_from(0)

    @property
    def rows(self) -> bool:
        """Whether each row lies in memory without gaps."""
        block, size = block_of(self.type)
        return self.ne[0] == block or self.nb[0] == size

    @property
    def n_bytes(self) -> int:
        block, size = block_of(self.type)
        last = sum((n - 1) * stride for n, stride in zip(self.ne[1:], self.nb[1:], strict=True))
        return last + (
            self.ne[0] * self.nb[0] // block if block > 1 else (self.ne[0] - 1) * self.nb[0] + size
        )


@dataclass(frozen=True)
class Operation:
    op: str
    result: Tensor
    sources: tuple[Tensor | None, ...]
    kind: str = ""  # of UNARY and GLU
    params: tuple[int, ...] = (0,) * N_PARAMS
    says: tuple[tuple[bool, ...], ...] = field(default=(), compare=False)  # ggml on result and sources

    def source(self, i: int) -> Tensor:
        source = self.sources[i]
        assert source is not None
        return source

    def has(self, i: int) -> bool:
        return i < len(self.sources) and self.sources[i] is not None

    def real(self, i: int) -> float:
        """A parameter that is a float."""
        value: float = struct.unpack("<f", struct.pack("<i", self.params[i]))[0]
        return value

    @cached_property
    def line(self) -> str:
        """For `graph_ops ask`."""
        words: list[Any] = [self.op, *self.params, 1 + len(self.sources)]
        for tensor in (self.result, *self.sources):
            words += ["-"] if tensor is None else [tensor.type, *tensor.ne, *tensor.nb, tensor.offset]
        return " ".join(map(str, words))

    def __str__(self) -> str:
        def shape(tensor: Tensor | None) -> str:
            return (
                "-" if tensor is None else f"{tensor.name} {tensor.type} {list(tensor.ne)} {list(tensor.nb)}"
            )

        return f"{self.op} {self.kind} ({'; '.join(map(shape, self.sources))}) -> {shape(self.result)}"


def params(*values: float) -> tuple[int, ...]:
    """Parameters of an operation: int and float as they are."""
    numbers = [v if isinstance(v, int) else struct.unpack("<i", struct.pack("<f", v))[0] for v in values]
    return tuple(numbers + [0] * (N_PARAMS - len(numbers)))


def _tensor(read: dict[str, Any] | None) -> Tensor | None:
    if read is None:
        return None
    return Tensor(read["type"], tuple(read["ne"]), tuple(read["nb"]), read["offset"], read["name"])


def listed(head: Path, *options: object) -> dict[str, list[Operation]]:
    """Operations of a head's graphs by the graph's name; options as in graph_ops.cpp."""
    command = [GRAPH_OPS, "list", head, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = {}
    for graph in json.loads(done.stdout)["graphs"]:
        operations = []
        for read in graph["operations"]:
            tensors = [read["result"], *read["sources"]]
            made = _tensor(read["result"])
            assert made is not None
            operations.append(
                Operation(
                    read["op"],
                    made,
                    tuple(map(_tensor, read["sources"])),
                    read["kind"],
                    tuple(read["params"]),
                    tuple(tuple(map(bool, t["contiguous"])) if t else () for t in tensors),
                )
            )
        result[graph["name"]] = operations
    return result


def asked(device: str, operations: Sequence[Operation]) -> list[bool] | None:
    """What a device of this build says to each operation; None where there is no such device."""
    text = "".join(operation.line + "\n" for operation in operations)
    command = [GRAPH_OPS, "ask", device]
    # Unset, ggml passes over Vulkan devices that are a CPU.
    environment = {"GGML_VK_VISIBLE_DEVICES": "0", **os.environ}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=600, env=environment)
    if done.returncode == 3:
        return None
    assert done.returncode == 0, done.stderr
    answers = [line == "1" for line in done.stdout.splitlines() if line in ("0", "1")]
    assert len(answers) == len(operations), done.stdout + done.stderr
    return answers
