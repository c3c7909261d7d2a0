"""Where a pair runs: the devices a caller chooses, and what was really used."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydflash2 import arguments
from pydflash2.errors import BackendUnavailableError

SplitMode = Literal["layer", "none", "row", "tensor"]

_SECONDS = 10.0  # that a machine may take to answer

_EXAMPLES = 'give "auto", "cpu", "cuda:0", "metal", "vulkan:0", "rpc:HOST:PORT", or a list of them'


@dataclass(frozen=True)
class Choice:
    """What `load` was asked for. devices: none for "auto"."""

    devices: tuple[str, ...] = ()
    draft_device: str | None = None
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()


@dataclass(frozen=True)
class TensorPlace:
    """A tensor that drafts read. borrowed: it is the target's own, not a copy."""

    name: str
    type: str
    device: str
    bytes: int
    borrowed: bool


@dataclass(frozen=True)
class OperationPlace:
    """Operations of one kind in the graph of a whole round, by ggml's name for them."""

    operation: str
    device: str
    count: int


@dataclass(frozen=True)
class Placement:
    """Where a loaded pair lies and runs. All but the first are empty without a head.

    splits: parts of a round's graph that run on one device each; 1 where the head's device runs all of it.
    """

    target: tuple[str, ...]  # devices that hold its weights, the CPU last
    head: str | None = None
    tensors: tuple[TensorPlace, ...] = ()
    operations: tuple[OperationPlace, ...] = ()
    splits: int = 0

    @property
    def fallen_back(self) -> tuple[OperationPlace, ...]:
        """Operations that the head's device does not have, and where they run instead."""
        return tuple(place for place in self.operations if place.device != self.head)

    def __str__(self) -> str:
        target = self.target[:-1] or self.target
        said = f"target on {', '.join(target)}"
        if self.head is None:
            return said
        return f"{said}, the head {'beside it' if target == (self.head,) else f'on {self.head}'}"


def choice(
    device: str | Sequence[str],
    draft_device: str | None,
    split_mode: SplitMode,
    tensor_split: Iterable[float] | None,
) -> Choice:
    """Checked as far as that can be done without a look at the machine. Raises ValueError and TypeError."""
    if split_mode not in ("layer", "none", "row", "tensor"):
        raise ValueError(
            f'split_mode is {arguments.brief(split_mode)}: use "layer", "none", "row" or "tensor"'
        )
    shares = _shares(tensor_split)
    if shares and not sum(shares):
        raise ValueError(f"tensor_split is {list(shares)}: give at least one device a share")
    names = _names(device)
    for name in names:
        if name.lower().startswith("rpc:"):
            _reach(name)
    if draft_device is not None:
        draft_device = _name("draft_device", draft_device)
    return Choice(names, None if draft_device == "auto" else draft_device, split_mode, shares)


def _shares(tensor_split: Iterable[float] | None) -> tuple[float, ...]:
    try:
        given = iter(() if tensor_split is None else tensor_split)
    except TypeError:
        raise TypeError(
            f"tensor_split is {arguments.brief(tensor_split)}: give a number for each device"
        ) from None
    return tuple(arguments.number("tensor_split", share, 0) for share in given)


def _reach(name: str) -> None:
    """Raises where nobody listens: llama.cpp would wait for minutes."""
    host, colon, port = name.partition(":")[2].rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"device is {arguments.brief(name)}: give rpc:HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except OSError as error:
        raise BackendUnavailableError(
            f"device {name} can't be reached: {error}. Start llama.cpp's rpc-server there, or leave it out"
        ) from None


def _names(device: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(device, str):
        name = _name("device", device)
        return () if name.lower() == "auto" else (name,)
    try:
        names = tuple(_name("device", name) for name in device)
    except TypeError:
        raise TypeError(f"device is {arguments.brief(device)}: {_EXAMPLES}") from None
    if not names or any(name.lower() == "auto" for name in names):
        raise ValueError(f"device is {arguments.brief(device)}: {_EXAMPLES}")
    return names


def _name(what: str, name: object) -> str:
    if not isinstance(name, str) or not arguments.is_unicode(name) or "\0" in name:
        raise TypeError(f"{what} is {arguments.brief(name)}: {_EXAMPLES}")
    if not name or len(name) > 200:
        raise ValueError(f"{what} is {arguments.brief(name)}: {_EXAMPLES}")
    return name
