"""What a run will need, said before it starts, and refused where the machine has less."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from pydflash2.errors import OutOfMemoryError
from pydflash2.train.batches import BatchSettings
from pydflash2.train.head import Head

_FLOAT = 4  # bytes
_LOGIT_COPIES = 4  # logits, corrected, their exponentials, their gradient


@dataclass(frozen=True)
class Plan:
    """Bytes, by what they are for."""

    parameters: int  # a number, not bytes
    weights: int  # weights, gradients, the optimiser's state, the best head so far
    output_rows: int  # of the target's output head
    logits: int
    activations: int
    features: int  # on disk

    @property
    def memory(self) -> int:
        return self.weights + self.output_rows + self.logits + self.activations

    def __str__(self) -> str:
        parts = {
            "weights and optimiser": self.weights,
            "output rows": self.output_rows,
            "logits": self.logits,
            "activations": self.activations,
        }
        listed = ", ".join(f"{name} {size(n)}" for name, n in parts.items())
        return (
            f"{self.parameters / 1e6:.1f} M parameters; memory {size(self.memory)} ({listed}); "
            f"features {size(self.features)} on disk"
        )


def size(n_bytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes / 1e3:.0f} kB"


def plan(
    head: Head, batch: BatchSettings, n_rows: int, context: int, n_replicas: int, feature_bytes: int
) -> Plan:
    """An estimate, from above.

    n_rows: rows of the output head that logits are computed for. context: tokens of the longest text.
    """
    config = head.config
    n_parameters = sum(parameter.numel() for parameter in head.parameters())
    blocks = batch.n_texts * batch.n_anchors
    rows = blocks * config.block_size
    head_dim = config.head_dim or config.n_embd // config.n_head
    wide = 14 * config.n_embd + 4 * config.n_ff + 3 * config.n_head * head_dim
    scores = 3 * config.n_head * (context + config.block_size)
    context_values = batch.n_texts * context * (len(config.taps) * config.n_embd + 4 * config.n_embd)
    return Plan(
        n_parameters,
        n_parameters * _FLOAT * (1 + n_replicas + 2 + 1),
        n_rows * config.n_embd * _FLOAT,
        n_replicas * blocks * (config.block_size - 1) * n_rows * _FLOAT * _LOGIT_COPIES,
        n_replicas * _FLOAT * (config.n_layer * rows * (wide + scores) + context_values),
        feature_bytes,
    )


def check(plan: Plan, device: torch.device, folder: Path) -> None:
    """Raises `OutOfMemoryError` with the numbers where the plan can't be carried out.

    folder: of the features; what an earlier run has left there counts as free.
    """
    room = memory_of(device)
    if room is not None and plan.memory > room:
        raise OutOfMemoryError(
            f"training needs {plan}, but {device} has {size(room)}: take fewer --anchors, a smaller "
            "--shortlist or fewer --layers"
        )
    free = shutil.disk_usage(folder).free + sum(file.stat().st_size for file in folder.glob("*"))
    if plan.features > free:
        raise OutOfMemoryError(
            f"the features take {size(plan.features)}, but {folder} has {size(free)} free: give a lower "
            "--feature-budget (the rest is then computed anew each time), or another folder"
        )


def memory_of(device: torch.device) -> int | None:
    """Bytes a device has in all; None where nobody can tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        try:
            return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (ValueError, OSError):
            return None
    return None
