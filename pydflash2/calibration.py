"""What a step costs on this machine: a verification by its rows, a draft of the head by its width.

`measure` times them, cold and interleaved; the medians are kept for the pair, its devices, threads and this
build, and an engine that is loaded later starts with them. Fast targets are measured unasked, before their
first drafts; an engine of a slow one learns from its first rounds. Both go on learning.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydflash2 import kept, native

# Drafts that are looked up in the text may be longer than a block: these widths, and what lies between them.
_LONG_WIDTHS = (11, 15, 23, 31, 47)
_DEPTH = 192  # tokens before the step that is timed, where the context has room for them
_QUICK = 0.02  # seconds of a plain step up to which some sixty steps may be measured unasked
_SMALLEST = 64  # context that a few steps of each width fit into
_FORMAT = 1


@dataclass(frozen=True)
class Costs:
    """Seconds, medians of several runs."""

    verify: dict[int, float]  # by drafted tokens; 0: a plain step
    draft: dict[int, float]  # by drafted tokens

    @property
    def break_even(self) -> dict[int, float]:
        """By drafted tokens: what a round must commit on average to be as fast as plain decoding."""
        plain = self.verify[0]
        return {width: (self.draft[width] + self.verify[width]) / plain for width in self.draft}


def key_of(base: kept.Key | None, head: Path | None, options: dict[str, Any]) -> kept.Key | None:
    """Of what costs depend on most. The size of the context is not among it, so that a seed gives the same
    text in contexts of different sizes.
    """
    try:
        identity = None if head is None else kept.file_identity(head)
    except OSError:
        return None
    names = ("exact", "draft_vocabulary", "n_gpu_layers", "split_mode", "draft_device")
    chosen = {name: options.get(name) for name in names}
    return kept.extended(base, format=_FORMAT, head=identity, options=chosen)


def read(key: kept.Key | None) -> Costs | None:
    """What is kept for a key. None where there is nothing, or nothing that makes sense."""
    record = kept.read("costs", key)
    try:
        if record is None:
            return None
        curves = [
            {int(width): float(seconds) for width, seconds in record[name].items()}
            for name in ("verify", "draft")
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    costs = Costs(*curves)
    sound = all(0 < seconds < 3600 for curve in curves for seconds in curve.values())
    return costs if sound and 0 in costs.verify else None


def write(key: kept.Key | None, costs: Costs) -> bool:
    """Whether it could be kept."""
    return kept.write("costs", key, {"verify": costs.verify, "draft": costs.draft})


def apply(engine: native.NativeEngine, costs: Costs) -> None:
    """Lets the engine choose widths by them, and refine them."""
    engine.set_costs({width + 1: seconds for width, seconds in costs.verify.items()}, costs.draft)


def measure_quickly(engine: native.NativeEngine, full_width: int) -> Costs | None:
    """Before the first drafts for a pair. None where it would take more than a second or two."""
    if int(engine.target.context_size) < _SMALLEST:
        return None
    text = _Text(engine, full_width > 0, 0, random.Random(2))
    plain = min(text.time("verify", 0) for _ in range(3))
    if plain >= _QUICK:
        return None
    return measure(engine, full_width, 3 if plain > _QUICK / 4 else 7, lambda done, total: None)


def measure(
    engine: native.NativeEngine, full_width: int, runs: int, progress: Callable[[int, int], None]
) -> Costs:
    """Times every width `runs` times, in an order that is drawn anew for each run. Empties the sequence.

    full_width: of the head; 0 without one. progress: steps done, steps in all.
    """
    most = min(int(engine.target.context_size) - 4, int(engine.target.rollback_limit) % 2**31)
    widths = sorted(width for width in {*range(full_width + 1), *_LONG_WIDTHS} if width <= most)
    steps = [("verify", width) for width in widths]
    steps += [("draft", width) for width in range(1, full_width + 1) if width <= most]
    times: dict[tuple[str, int], list[float]] = {step: [] for step in steps}
    chance = random.Random(1)
    text = _Text(engine, full_width > 0, max(widths, default=0), chance)
    for kind, width in steps:  # once for graphs and buffers, which are made when a width is first met
        text.time(kind, width)
    for run in range(runs):
        chance.shuffle(steps)
        for at, (kind, width) in enumerate(steps):
            times[kind, width].append(text.time(kind, width))
            progress(run * len(steps) + at + 1, runs * len(steps))
    engine.forget()
    curves: dict[str, dict[int, float]] = {"verify": {}, "draft": {}}
    for (kind, width), seconds in sorted(times.items()):
        curves[kind][width] = median(seconds)
    return Costs(curves["verify"], curves["draft"])


class _Text:
    """Pseudo-random tokens to be drafted after and verified, begun anew where the context ends."""

    def __init__(
        self, engine: native.NativeEngine, drafting: bool, widest: int, chance: random.Random
    ) -> None:
        self._engine = engine
        self._widest = widest
        self._drafting = drafting
        self._chance = chance
        self._room = 0

    def time(self, kind: str, width: int) -> float:
        if self._room < width + 2:
            self._begin()
        if kind == "draft":
            return float(self._engine.draft(width).seconds)
        committed, verdict = self._engine.verify_tokens(self._tokens(width))
        self._room -= len(committed)
        return float(verdict.seconds)

    def _begin(self) -> None:
        context_size = int(self._engine.target.context_size)
        depth = max(1, min(_DEPTH, context_size // 2, context_size - self._widest - 3))
        self._engine.begin(self._tokens(depth), self._drafting)
        while self._engine.prefill() > 0:
            pass
        self._room = context_size - depth - 1

    def _tokens(self, n: int) -> list[int]:
        return [self._chance.randrange(int(self._engine.target.n_vocab)) for _ in range(n)]
