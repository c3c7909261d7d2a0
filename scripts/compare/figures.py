"""What is made of measurements: rates, ratios with their spread, bars, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Run:
    """One text of one contender. Times are seconds; `n` counts the tokens after the first."""

    n: int
    seconds: float
    drafted: int
    accepted: int
    prompt_n: int
    prompt_seconds: float
    text: str = ""

    @classmethod
    def of_timings(cls, answer: Mapping[str, Any]) -> Run:
        """From a completion's answer, in llama.cpp's form or OpenAI's. Time runs from the first token on."""
        timings = answer["timings"]
        text = answer["content"] if "content" in answer else answer["choices"][0]["text"]
        return cls(
            n=int(timings["predicted_n"]) - 1,
            seconds=float(timings["predicted_ms"]) / 1000,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            prompt_n=int(timings["prompt_n"]),
            prompt_seconds=float(timings["prompt_ms"]) / 1000,
            text=text,
        )

    @classmethod
    def of_ours(cls, answer: Mapping[str, Any]) -> Run:
        return cls(**{name: answer[name] for name in cls.__dataclass_fields__})


def rate(runs: Sequence[Run]) -> float:
    """Tokens per second over several texts."""
    return sum(run.n for run in runs) / sum(run.seconds for run in runs)


def prompt_rate(runs: Sequence[Run]) -> float:
    return sum(run.prompt_n for run in runs) / sum(run.prompt_seconds for run in runs)


def acceptance_length(runs: Sequence[Run]) -> float:
    """Mean acceptance length: each token after the first that was no accepted draft ended a round."""
    n, accepted = sum(run.n for run in runs), sum(run.accepted for run in runs)
    return n / (n - accepted) if n > accepted else 1.0


def round_ms(runs: Sequence[Run]) -> float:
    return 1000 * sum(run.seconds for run in runs) / max(1, sum(run.n - run.accepted for run in runs))


@dataclass(frozen=True)
class Figure:
    """A ratio, once a repetition, and the bar its median has to hold. Without values: `note` says why."""

    name: str
    values: list[float]
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    skipped: bool = False  # not measured for a reason that is no failure

    @property
    def median(self) -> float | None:
        return median(self.values) if self.values else None

    @property
    def holds(self) -> bool:
        if self.skipped:
            return True
        value = self.median
        if value is None:
            return False
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def verdict(self) -> str:
        if self.skipped:
            return "skipped"
        if not self.bar:
            return ""
        return "holds" if self.holds else "FAILS"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"median": self.median, "verdict": self.verdict}


def table(figures: Sequence[Figure]) -> str:
    """One line a figure: name, median, smallest and largest, bar, verdict, note."""
    rows = [("figure", "median", "min", "max", "bar", "", "")]
    for figure in figures:
        values = figure.values
        numbers = (
            [f"{value:.3f}" for value in (figure.median or 0.0, min(values), max(values))]
            if values
            else ["-"] * 3
        )
        rows.append((figure.name, *numbers, figure.bar, figure.verdict, figure.note))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3)), *row[4:6]]
        cells[4:6] = [row[4].ljust(widths[4]), row[5].ljust(widths[5])]
        lines.append("  ".join([*cells, row[6]]).rstrip())
    return "\n".join(lines)


def settled(milliseconds: Sequence[float], skip: int = 2) -> float:
    """The median of rounds, without the first ones, which build graphs and fault pages in."""
    kept = milliseconds[skip:] if len(milliseconds) > skip else milliseconds
    return median(kept)
