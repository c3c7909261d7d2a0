"""Gradients from several single-threaded replicas of a model, one per core.

Splitting every small operation between threads makes them wait for each other hundreds of times a step; on
a machine that also does other work, such waits cost more than the work. Replicas share the weights and meet
once a step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
Part = TypeVar("Part")


class Replicas(Generic[Model]):
    """`count` copies of `model` with common weights and gradients of their own."""

    def __init__(self, model: Model, count: int):
        self.model = model
        self.copies = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        for twin in self.copies[1:]:
            for shared, own in zip(model.parameters(), twin.parameters(), strict=True):
                own.data = shared.data
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(self, loss: Callable[[Model, Part], Tensor], parts: list[Part]) -> float:
        """Add the mean gradient of `loss` over `parts`, one part a replica, to the model; return the mean."""

        def one(twin: Model, part: Part) -> float:
            value = loss(twin, part)
            (value / len(parts)).backward()
            return value.item()

        values = list(self.pool.map(one, self.copies, parts))
        for twin in self.copies[1:]:
            for total, own in zip(self.model.parameters(), twin.parameters(), strict=True):
                if own.grad is not None:
                    total.grad = own.grad if total.grad is None else total.grad.add_(own.grad)
                    own.grad = None
        return sum(values) / len(values)

    def step(self, optimisers: list[torch.optim.Optimizer], share: float) -> None:
        """Step all optimisers, side by side, at `share` of their peak rates."""

        def one(optimiser: torch.optim.Optimizer) -> None:
            for group in optimiser.param_groups:
                group["lr"] = group.setdefault("peak", group["lr"]) * share
            optimiser.step()
            optimiser.zero_grad()

        list(self.pool.map(one, optimisers))
