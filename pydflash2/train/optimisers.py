"""AdamW, and Muon for the matrices; the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pydflash2 import arguments
from pydflash2.train.head import Head

Optimiser = Literal["muon", "adamw"]

# Of the quintic iteration that drives singular values towards 1 (Keller Jordan's Muon).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


@dataclass(frozen=True)
class OptimiserSettings:
    """kind: "muon" orthogonalises the updates of the layers' matrices, with AdamW for the rest; "adamw" for
    all.

    rate, muon_rate: peak learning rates of AdamW's and of Muon's parameters.
    warm_up: share of the run in which the rate rises; it then falls along a cosine to `floor` times its peak.
    clip: largest norm of a step's gradient.
    """

    kind: Optimiser = "muon"
    rate: float = 2e-3
    muon_rate: float = 0.02
    weight_decay: float = 0.01
    warm_up: float = 0.04
    floor: float = 0.05
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "muon_rate", "clip"):
            arguments.number(name, getattr(self, name), 1e-12)
        for name in ("weight_decay", "warm_up", "floor"):
            arguments.number(name, getattr(self, name), 0, 1)


def rate_share(progress: float, settings: OptimiserSettings) -> float:
    """Of the peak learning rate, at a share of the run between 0 and 1."""
    if progress < settings.warm_up:
        return (progress + 1e-3) / (settings.warm_up + 1e-3)
    along = (progress - settings.warm_up) / max(1e-9, 1 - settings.warm_up)
    return settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, along)))


def orthogonalised(matrix: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
    """The nearest matrix with singular values of about 1, by Newton and Schulz's iteration, with products in
    `precision`."""
    a, b, c = _COEFFICIENTS
    x = matrix.to(precision)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.T).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, for matrices [rows, columns]."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.precision = precision
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum, gradient = state["momentum"], parameter.grad
                momentum.lerp_(gradient, 1 - group["momentum"])
                update = orthogonalised(gradient.lerp(momentum, group["momentum"]), self.precision)
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def optimisers(
    head: Head, settings: OptimiserSettings, n_muon: int = 1, precision: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """For all parameters that want a gradient. Muon takes the layers' and fc's matrices, never codebooks; its
    work is dealt out to `n_muon` optimisers, so that as many threads can step side by side, and its products
    are made in `precision`.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in head.named_parameters():
        if not parameter.requires_grad:
            continue
        hidden = (
            parameter.dim() == 2
            and not name.startswith("candidate_selector")
            and "kernel_projection" not in name
        )
        (matrices if hidden and settings.kind == "muon" else others).append(parameter)
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    for part in _dealt_out(matrices, n_muon):
        made.append(Muon(part, settings.muon_rate, settings.weight_decay, precision=precision))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return made


def _dealt_out(matrices: list[Tensor], n: int) -> list[list[Tensor]]:
    """Parts that cost about the same: the costliest matrix first, always to the part that has least."""
    parts: list[list[Tensor]] = [[] for _ in range(n)]
    costs = [0] * n
    for matrix in sorted(matrices, key=_cost, reverse=True):
        least = costs.index(min(costs))
        parts[least].append(matrix)
        costs[least] += _cost(matrix)
    return [part for part in parts if part]


def _cost(matrix: Tensor) -> int:
    short, long = sorted(matrix.shape)
    return short * short * (2 * long + short)


def set_rate(made: Iterable[torch.optim.Optimizer], share: float) -> None:
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * share
