"""What a head is worth in the engine: real rounds on real prompts, and their speed beside plain decoding."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

import pydflash2
from pydflash2.loops import loop_start
from pydflash2.train.figures import Measured, On

_ROOM = 64  # tokens of context beside what is asked for


class Speed(NamedTuple):
    """Medians over texts that were written plainly and with everything automatic, in turn."""

    plain: float  # tokens a second
    automatic: float
    speed_up: float  # of the ratios
    length: float  # mean acceptance length of the automatic rounds


@dataclass(frozen=True)
class Pair:
    """A target and an exported head, and how they are loaded."""

    target: Path
    head: Path
    n_threads: int | None
    n_gpu_layers: int

    def measure(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        on: On,
        step: int,
        seconds: float,
        timed: int = 0,
    ) -> Measured:
        """Greedy texts of `max_tokens` for each prompt, at full width; the speed on the first `timed`."""
        room = max(len(prompt) for prompt in prompts) + max_tokens + _ROOM
        with pydflash2.load(
            self.target,
            self.head,
            context_size=room,
            n_threads=self.n_threads,
            n_gpu_layers=self.n_gpu_layers,
        ) as engine:
            assert engine.block_size is not None
            width = engine.block_size - 1
            whole: list[int] = []
            accepted: list[int] = []
            for prompt in prompts:
                found, n_before_loop = rounds(engine, prompt, max_tokens, width)
                whole += found
                accepted += found[:n_before_loop]
            counts = np.array(accepted) if accepted else np.zeros(1)
            measured = Measured(
                step,
                seconds,
                on,
                len(prompts),
                1 + float(counts.mean()),
                [float((counts >= place).mean()) for place in range(1, width + 1)],
                length_with_loops=1 + float(np.mean(whole)) if whole else 1.0,
            )
            if not timed:
                return measured
            plain, automatic, ratio, length = speed(engine, prompts[:timed], max_tokens)
        return replace(
            measured,
            plain_tokens_per_second=plain,
            tokens_per_second=automatic,
            speed_up=ratio,
            automatic_length=length,
        )


def rounds(
    engine: pydflash2.Engine, prompt: Sequence[int], max_tokens: int, width: int
) -> tuple[list[int], int]:
    """Accepted drafts of each round of a greedy text; and how many rounds end before it repeats itself."""
    tokens, ends, accepted = [engine.prefill(list(prompt))], [], []
    finished = False
    while len(tokens) < max_tokens and not finished:
        verdict = engine.verify(engine.draft(width))
        tokens += verdict.tokens
        ends.append(len(tokens))
        accepted.append(verdict.n_accepted)
        finished = verdict.finished
    start = loop_start(tokens)
    return accepted, sum(end <= start for end in ends)


def speed(engine: pydflash2.Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> Speed:
    """Greedy texts of some prompts, each plainly and automatically, in turn."""
    plain, automatic, ratios = [], [], []
    n_rounds = n_accepted = 0
    for turn, prompt in enumerate(prompts):
        rates = {}
        for speculate in (False, True) if turn % 2 else (True, False):
            stats = engine.generate(list(prompt), max_tokens=max_tokens, speculate=speculate).stats
            rates[speculate] = stats.tokens_per_second
            if speculate:
                n_rounds += stats.rounds
                n_accepted += stats.accepted
        if min(rates.values()) > 0:  # a text that ended with its first token has no speed
            plain.append(rates[False])
            automatic.append(rates[True])
            ratios.append(rates[True] / rates[False])
    if not ratios:
        return Speed(0.0, 0.0, 1.0, 1.0)
    length = 1 + n_accepted / n_rounds if n_rounds else 1.0
    return Speed(statistics.median(plain), statistics.median(automatic), statistics.median(ratios), length)
