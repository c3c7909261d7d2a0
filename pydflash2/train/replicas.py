"""Gradients of several batches at once: one after another on an accelerator, one a core on a CPU.

Splitting every small operation between threads makes them wait for each other hundreds of times a step.
Copies that share the weights and work on a batch of their own meet once a step; and their sum doesn't depend
on which is first.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from pydflash2.train.head import Head
from pydflash2.train.objective import Blocks, Losses


class Replicas:
    """`n` copies of a head with common weights and gradients of their own."""

    def __init__(self, head: Head, n: int) -> None:
        self.head = head
        self.copies = [head, *(copy.deepcopy(head) for _ in range(n - 1))]
        for twin in self.copies[1:]:
            for shared, own in zip(head.parameters(), twin.parameters(), strict=True):
                own.data = shared.data
        self._pool = (
            ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) if n > 1 else None
        )

    def gradients(
        self, objective: Callable[[Head, Blocks], Losses], batches: Sequence[Callable[[], Blocks]]
    ) -> list[Losses]:
        """Adds the mean gradient over `batches`, dealt out in turn, to the head's; returns their losses."""

        def work(index: int) -> list[Losses]:
            losses = []
            for batch in batches[index :: len(self.copies)]:
                made = objective(self.copies[index], batch())
                (made.total / len(batches)).backward()
                losses.append(made._replace(total=made.total.detach()))
            return losses

        indices = range(len(self.copies))
        found = [work(0)] if self._pool is None else list(self._pool.map(work, indices))
        for twin in self.copies[1:]:
            for total, own in zip(self.head.parameters(), twin.parameters(), strict=True):
                if own.grad is not None:
                    total.grad = own.grad if total.grad is None else total.grad.add_(own.grad)
                    own.grad = None
        return [losses for part in found for losses in part]

    def step(self, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        """Steps all optimisers, each in a thread."""
        if self._pool is None:
            for optimiser in optimisers:
                optimiser.step()
        else:
            list(self._pool.map(lambda optimiser: optimiser.step(), optimisers))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def n_replicas(device: torch.device, n_threads: int | None, n_batches: int) -> int:
    """Copies to work with: one a thread on a CPU, as far as there are batches for them."""
    if device.type != "cpu":
        return 1
    return max(1, min(n_threads or os.cpu_count() or 1, n_batches))
