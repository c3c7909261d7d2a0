"""Train the head on the target's own texts: unary and selector cross-entropy over blocks of many anchors.

Every step takes a few texts and many anchors of each; one mask lets all their blocks be computed together.
The target is frozen: its token table embeds the blocks and scores the hidden states.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .corpus import MASK_ID
from .generate import Text
from .head import Head, HeadGeometry
from .model import Target
from .replicas import Replicas

REPORT_EVERY_S = 30.0


@dataclass(frozen=True)
class Recipe:
    """Sizes of one replica's part of a step, the losses' weights, and the learning rates."""

    texts: int = 4
    anchors: int = 32
    position_decay: float = 4.0
    selector_weight: float = 1.0
    warm_up: float = 0.03
    decay_from: float = 0.3
    matrix_rate: float = 0.02
    other_rate: float = 3e-3


def optimisers(head: Head, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layer's matrices, AdamW for norms, base kernels and everything in the selector."""
    matrices, others = [], []
    for name, parameter in head.named_parameters():
        plain = parameter.dim() != 2 or name.startswith("candidate_selector") or "kernel_projection" in name
        (others if plain else matrices).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.02, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def warm_start(head: Head, target: Target) -> None:
    """Start from the target itself: its last layers, its final norm, the deepest tap as the context."""
    state = head.state_dict()
    first = target.geometry.layers - head.head.layers
    for name, value in target.state_dict().items():
        parts = name.split(".", 2)
        if parts[0] == "layers" and int(parts[1]) >= first:
            state[f"layers.{int(parts[1]) - first}.{parts[2]}"] = value.clone()
    state["norm.weight"] = target.norm.weight.detach().clone()
    hidden = head.geometry.hidden
    state["fc.weight"] = 0.3 * state["fc.weight"]
    state["fc.weight"][:, -hidden:] += torch.eye(hidden)
    head.load_state_dict(state)


@dataclass
class Batch:
    """Texts padded to one length, the anchors drawn from them, and what the blocks should predict."""

    features: Tensor
    anchors: Tensor
    tokens: Tensor
    labels: Tensor
    weights: Tensor


def draw_batch(
    texts: list[Text], head: HeadGeometry, recipe: Recipe, generator: np.random.Generator
) -> Batch:
    """Anchors lie in the continuation: the first generated token up to the last but one."""
    picked = [texts[index] for index in generator.integers(len(texts), size=recipe.texts)]
    longest = max(len(text.features) for text in picked)
    features = torch.zeros(len(picked), longest, picked[0].features.shape[-1], dtype=picked[0].features.dtype)
    padded = torch.full((len(picked), longest + head.block), MASK_ID)
    anchors = torch.empty(len(picked), recipe.anchors, dtype=torch.long)
    for row, text in enumerate(picked):
        features[row, : len(text.features)] = text.features
        padded[row, : len(text.ids)] = text.ids
        places = generator.integers(text.prompt, len(text.ids) - 1, size=recipe.anchors)
        anchors[row] = torch.from_numpy(np.sort(places))
    spans = anchors[..., None] + torch.arange(head.block)
    tokens = padded[torch.arange(len(picked))[:, None, None], spans]
    position = torch.arange(head.block - 1)
    weights = torch.exp(-position / recipe.position_decay) * (tokens[..., 1:] != MASK_ID)
    return Batch(features, anchors, tokens, tokens[..., 1:], weights)


class Objective:
    """Unary and selector cross-entropy of a batch; keeps the figures of recent batches for the report."""

    def __init__(self, target: Target, recipe: Recipe):
        self.target = target
        self.recipe = recipe
        self.recent: list[tuple[float, float, float]] = []

    def __call__(self, head: Head, batch: Batch) -> Tensor:
        """The loss; the selector is given the true predecessor, and skipped where its candidates miss."""
        blocks = self.target.embed_tokens(head.block_ids(batch.tokens[..., 0], head.head.block))
        with torch.autocast("cpu", torch.bfloat16):
            hidden = head(batch.features, blocks, batch.anchors)
            logits = self.target.logits(hidden)
        logits = logits.float()
        labels, weights = batch.labels, batch.weights / batch.weights.sum()
        unary = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(weights)
        best, candidates = logits.topk(head.head.candidates, dim=-1)
        scores = head.candidate_selector.scores(hidden.float(), best, batch.tokens[..., :-1], candidates)
        found = candidates == labels[..., None]
        covered = found.any(-1)
        choice = F.cross_entropy(scores.flatten(0, 2), found.int().argmax(-1).flatten(), reduction="none")
        unary_loss = (unary * weights).sum()
        selector_loss = (choice.view_as(weights) * covered * weights).sum()
        self.recent.append((unary_loss.item(), selector_loss.item(), (covered * weights).sum().item()))
        return unary_loss + self.recipe.selector_weight * selector_loss


def train(
    target: Target,
    geometry: HeadGeometry,
    texts: list[Text],
    minutes: float,
    seed: int,
    threads: int,
    recipe: Recipe,
) -> Head:
    """Train for `minutes`; prints the losses as it goes."""
    head = Head(target.geometry, geometry)
    head.initialise(seed)
    warm_start(head, target)
    target.requires_grad_(False)
    objective = Objective(target, recipe)
    replicas, optimiser = Replicas(head, threads), optimisers(head, recipe)
    generator = np.random.default_rng(seed)
    begin = reported = time.monotonic()
    steps = 0
    while (progress := (time.monotonic() - begin) / (60.0 * minutes)) < 1.0:
        share = min(1.0, progress / recipe.warm_up + 0.02, (1.0 - progress) / (1.0 - recipe.decay_from))
        parts = [draw_batch(texts, geometry, recipe, generator) for _ in range(threads)]
        replicas.gradients(objective, parts)
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        replicas.step(optimiser, share)
        steps += 1
        if (now := time.monotonic()) - reported > REPORT_EVERY_S:
            unary, selector, covered = np.mean(objective.recent, axis=0)
            print(
                f"head {now - begin:6.0f} s  step {steps:5d}  unary {unary:.4f}  selector {selector:.4f}  "
                f"covered {covered:.1%}",
                flush=True,
            )
            objective.recent.clear()
            reported = now
    anchors = steps * threads * recipe.texts * recipe.anchors
    print(f"head: {steps} steps, {anchors / 1e6:.2f} M anchors", flush=True)
    return head.eval()


def save(head: Head, path: Path) -> None:
    """Write a checkpoint of the head."""
    torch.save({"geometry": asdict(head.head), "state": head.state_dict()}, path)


def load(path: Path, target: Target) -> Head:
    """The head of a checkpoint, for the target it was trained on."""
    checkpoint = torch.load(path, weights_only=True)
    head = Head(target.geometry, HeadGeometry(**checkpoint["geometry"]))
    head.load_state_dict(checkpoint["state"])
    return head.eval()
