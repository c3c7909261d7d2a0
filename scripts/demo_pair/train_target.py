"""Train the target: next-token prediction on the standard library, for a given number of minutes.

Everything that changes during training follows the clock, so that the schedule ends when the time does,
whatever else the machine is doing. Half of the layers are trained first and then stacked twice: the early,
steep part of the curve costs half as much, and the copies are a better start than new layers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .corpus import Corpus
from .model import Geometry, Target
from .replicas import Replicas

WARM_UP = 0.015
STACK_AT = 0.55
LONG_WINDOWS_AT = 0.90
DECAY_FROM = 0.35
TEST_SHARE = 0.2
CHECKPOINT_EVERY_S = 150.0
REPORT_EVERY_S = 30.0


def optimisers(model: Target) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, in halves that step side by side; AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("embed")]
    others = [p for n, p in model.named_parameters() if p.dim() == 1 or n.startswith("embed")]
    return [
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        torch.optim.Muon(matrices[::2], lr=0.02, weight_decay=0.05, adjust_lr_fn="original"),
        torch.optim.Muon(matrices[1::2], lr=0.02, weight_decay=0.05, adjust_lr_fn="original"),
    ]


def rate(progress: float, since_stacking: float) -> float:
    """Share of the peak learning rate: warm-up, plateau, linear decay to zero; a short one after stacking."""
    warm = min(1.0, progress / WARM_UP, since_stacking / (WARM_UP / 2) + 0.1)
    return warm * min(1.0, max(0.0, (1.0 - progress) / (1.0 - DECAY_FROM)))


def stacked(model: Target) -> Target:
    """A model of twice the depth whose second half starts as a copy of the first."""
    geometry = replace(model.geometry, layers=2 * model.geometry.layers)
    deeper = Target(geometry)
    state = dict(model.state_dict())
    for name, value in model.state_dict().items():
        if name.startswith("layers."):
            _, index, rest = name.split(".", 2)
            state[f"layers.{int(index) + model.geometry.layers}.{rest}"] = value.clone()
    deeper.load_state_dict(state)
    return deeper


def batches(corpus: Corpus, generator: np.random.Generator) -> Iterator[tuple[int, np.ndarray]]:
    """Endless (epoch, run of ids); each epoch has its own order of files and its own sample of the tests."""
    epoch = 0
    while True:
        yield epoch, corpus.epoch(generator, TEST_SHARE)
        epoch += 1


class Windows:
    """Cuts the epochs' runs of ids into shuffled windows of the size asked for."""

    def __init__(self, corpus: Corpus, seed: int):
        self.generator = np.random.default_rng(seed)
        self.runs = batches(corpus, self.generator)
        self.epoch, self.run = next(self.runs)
        self.order: list[int] = []
        self.size = 0

    def take(self, count: int, size: int) -> Tensor:
        """[count, size + 1] ids: `size` inputs and their successors."""
        if size != self.size or len(self.order) < count:
            if self.size:
                self.epoch, self.run = next(self.runs)
            self.size = size
            offset = int(self.generator.integers(size))
            starts = np.arange(offset, len(self.run) - size - 1, size)
            self.order = self.generator.permutation(starts).tolist()
        picked = [self.run[start : start + size + 1] for start in self.order[:count]]
        del self.order[:count]
        return torch.from_numpy(np.stack(picked).astype(np.int64))


def next_token_loss(model: Target, ids: Tensor) -> Tensor:
    """Mean nats a token; matrix products in BF16."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(ids[:, :-1])
        logits = model.logits(hidden)
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.inference_mode()
def heldout_loss(model: Target, corpus: Corpus, size: int = 512) -> float:
    """Nats a token over the held-out files, windows of `size`."""
    run = np.concatenate(corpus.heldout)
    starts = range(0, len(run) - size - 1, size)
    windows = torch.from_numpy(np.stack([run[s : s + size + 1] for s in starts]).astype(np.int64))
    losses = [next_token_loss(model, chunk).item() * len(chunk) for chunk in windows.split(16)]
    return sum(losses) / len(windows)


def save(model: Target, path: Path, progress: float) -> None:
    """Write a checkpoint in one step, so that a reader never sees half of one."""
    partial = path.with_suffix(".partial")
    torch.save(
        {"geometry": asdict(model.geometry), "progress": progress, "state": model.state_dict()}, partial
    )
    partial.replace(path)


def load(path: Path) -> Target:
    """The model of a checkpoint, ready for use."""
    checkpoint = torch.load(path, weights_only=True)
    model = Target(Geometry(**checkpoint["geometry"]))
    model.load_state_dict(checkpoint["state"])
    return model.eval()


def batch_shape(progress: float) -> tuple[int, int]:
    """Windows a step and their size: short ones cost less attention; the full context comes last."""
    return (4, 1024) if progress > LONG_WINDOWS_AT else (16, 256)


def first_model(geometry: Geometry, seed: int, path: Path, resume: bool) -> tuple[Target, float]:
    """A new shallow model, or the one that an interrupted run left, with the progress it had made."""
    if resume:
        return load(path).train(), float(torch.load(path, weights_only=True)["progress"])
    shallow = Target(replace(geometry, layers=geometry.layers // 2))
    shallow.initialise(seed)
    return shallow, 0.0


def train(
    corpus: Corpus,
    geometry: Geometry,
    minutes: float,
    seed: int,
    path: Path,
    threads: int,
    resume: bool = False,
) -> Target:
    """Train for `minutes` in all and leave the model at `path`; prints the loss as it goes."""
    model, done = first_model(geometry, seed, path, resume)
    replicas, optimiser = Replicas(model, threads), optimisers(model)
    windows = Windows(corpus, seed + round(1000 * done))
    total = 60.0 * minutes
    now = reported = saved = time.monotonic()
    begin = now - done * total
    restarted, losses, tokens, steps = done, [], 0, 0
    while (progress := (now - begin) / total) < 1.0:
        if progress > STACK_AT and model.geometry.layers < geometry.layers:
            model, restarted = stacked(model), progress
            replicas, optimiser = Replicas(model, threads), optimisers(model)
        count, size = batch_shape(progress)
        losses.append(replicas.gradients(next_token_loss, list(windows.take(count, size).chunk(threads))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        replicas.step(optimiser, rate(progress, progress - restarted))
        tokens, steps, now = tokens + count * size, steps + 1, time.monotonic()
        if now - reported > REPORT_EVERY_S:
            print(
                f"target {now - begin:6.0f} s  step {steps:5d}  epoch {windows.epoch}  "
                f"layers {model.geometry.layers}  loss {np.mean(losses):.4f}  {tokens / 1e6:.2f} M tokens",
                flush=True,
            )
            reported, losses = now, []
        if now - saved > CHECKPOINT_EVERY_S:
            save(model, path, progress)
            saved = now
    save(model, path, 1.0)
    model = load(path)
    print(
        f"target: {tokens / 1e6:.2f} M tokens, held-out loss {heldout_loss(model, corpus):.4f} nats/token",
        flush=True,
    )
    return model
