"""From runs to the figures of a row: medians over the repeats, with quartiles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pydflash2.bench.arms import PLAIN, Arm
from pydflash2.bench.measuring import Plan, Run


@dataclass(frozen=True)
class Spread:
    """Of one figure a repeat: its median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.percentile(values, [25, 50, 75])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Row:
    """One arm on one workload. A step is a round, or a plain step; texts are added up within a repeat."""

    workload: str
    arm: str
    group: str
    width: int | None  # drafted tokens of the head a round, where the arm fixes them
    inflated: bool
    n_texts: int
    n_cut: int  # texts cut where plain decoding began to loop
    n_looped: int  # runs that ended in a loop all the same
    n_runs: int
    tokens_per_second: Spread
    ratio: Spread  # to plain decoding, in the same repeat
    generated_tokens: int  # of all runs
    mean_acceptance_length: float
    acceptance_by_position: list[float]
    rounds_by_width: dict[int, int]
    drafted_by: dict[str, int]  # drafter: rounds, where the engine says it
    draft_ms: float  # a round
    verify_ms: float  # a step
    rest: float  # share of the decoding time that is neither: Python, text, statistics
    prefill_tokens_per_second: float | None  # None: all was reused


@dataclass(frozen=True)
class Workload:
    """The rows of a workload, plain decoding's first."""

    plan: Plan
    rows: list[Row]

    def best(self) -> Row | None:
        """The fastest arm whose settings are fixed."""
        fixed = [row for row in self.rows if row.group not in ("plain", "auto")]
        return max(fixed, key=lambda row: row.ratio.median, default=None)

    def auto(self) -> Row | None:
        return next((row for row in self.rows if row.group == "auto"), None)

    def auto_to_best(self) -> float | None:
        auto, best = self.auto(), self.best()
        if auto is None or best is None or not best.ratio.median:
            return None
        return auto.ratio.median / best.ratio.median


def summarise(plans: Sequence[Plan], arms: Sequence[Arm], runs: Sequence[Run]) -> list[Workload]:
    """One row for each arm on each workload."""
    found = defaultdict(list)
    for run in runs:
        found[run.workload, run.arm].append(run)
    return [
        Workload(
            plan,
            [
                _row(plan, arm, found[plan.workload.name, arm.name], found[plan.workload.name, PLAIN.name])
                for arm in arms
            ],
        )
        for plan in plans
    ]


def _row(plan: Plan, arm: Arm, runs: list[Run], plain: list[Run]) -> Row:
    speeds, baseline = _by_repeat(runs, _speed), _by_repeat(plain, _speed)
    ratios = [speed / base if base else 0.0 for speed, base in zip(speeds, baseline, strict=True)]
    stats = [run.stats for run in runs]
    rounds = sum(s.rounds for s in stats)
    prefills = [value for value in _by_repeat(runs, _prefill) if value > 0]
    return Row(
        workload=plan.workload.name,
        arm=arm.name,
        group=arm.group,
        width=arm.width,
        inflated=plan.workload.inflated,
        n_texts=len(plan.texts),
        n_cut=sum(text.cut for text in plan.texts),
        n_looped=sum(run.looped for run in runs),
        n_runs=len(runs),
        tokens_per_second=Spread.of(speeds),
        ratio=Spread.of(ratios),
        generated_tokens=sum(run.generated for run in runs),
        mean_acceptance_length=1 + sum(s.accepted for s in stats) / rounds if rounds else 1.0,
        acceptance_by_position=_positions(runs, rounds),
        rounds_by_width=_widths(runs),
        drafted_by=_drafters(runs),
        draft_ms=1000
        * _median(runs, lambda group: _ratio(_sum(group, "draft_seconds"), _sum(group, "rounds"))),
        verify_ms=1000 * _median(runs, lambda group: _ratio(_sum(group, "verify_seconds"), _steps(group))),
        rest=_median(runs, _rest),
        prefill_tokens_per_second=float(np.median(prefills)) if prefills else None,
    )


def _by_repeat(runs: Sequence[Run], figure: Callable[[list[Run]], float]) -> list[float]:
    groups = defaultdict(list)
    for run in runs:
        groups[run.repeat].append(run)
    return [figure(groups[repeat]) for repeat in sorted(groups)]


def _median(runs: Sequence[Run], figure: Callable[[list[Run]], float]) -> float:
    return float(np.median(_by_repeat(runs, figure)))


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _sum(runs: Sequence[Run], name: str) -> float:
    return float(sum(getattr(run.stats, name) for run in runs))


def _speed(runs: list[Run]) -> float:
    """Tokens a second after the first token of each text, which the prefill brings."""
    return _ratio(sum(run.generated - 1 for run in runs), sum(run.decode_seconds for run in runs))


def _prefill(runs: list[Run]) -> float:
    computed = _sum(runs, "prompt_tokens") - _sum(runs, "reused_tokens")
    return _ratio(computed, _sum(runs, "prefill_seconds"))


def _rest(runs: list[Run]) -> float:
    whole = sum(run.decode_seconds for run in runs)
    return _ratio(whole - _sum(runs, "draft_seconds") - _sum(runs, "verify_seconds"), whole)


def _steps(runs: list[Run]) -> float:
    """Rounds and plain steps: each commits one token of the target's, beside what was accepted."""
    return max(sum(run.generated - 1 for run in runs) - _sum(runs, "accepted"), _sum(runs, "rounds"))


def _positions(runs: Sequence[Run], rounds: int) -> list[float]:
    total: Counter[int] = Counter()
    for run in runs:
        total.update(dict(enumerate(run.stats.accepted_by_position)))
    return [total[position] / rounds for position in range(len(total))] if rounds else []


def _widths(runs: Sequence[Run]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for run in runs:
        total.update(dict(enumerate(run.stats.rounds_by_width)))
    return {width: count for width, count in sorted(total.items()) if count}


def _drafters(runs: Sequence[Run]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for run in runs:
        for name, drafter in getattr(run.stats, "by_drafter", {}).items():
            total[name] += drafter.rounds
    return dict(total)
