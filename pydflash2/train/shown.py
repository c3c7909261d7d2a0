"""How settings and figures are written, in the report and in the model card alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydflash2.train.figures import Figures

MEASURED = (
    "minute",
    "prompts",
    "texts",
    "mean acceptance length",
    "accepted by position 1, 2, ...",
    "plain tok/s",
    "automatic tok/s",
    "/ plain",
    "its acceptance length",
)


def rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entry's name and value, as text."""
    for key, what in record.items():
        yield key.replace("_", " "), value(what)


def value(what: Any) -> str:
    match what:
        case None:
            return "-"
        case bool():
            return "yes" if what else "no"
        case int():
            return f"{what:,}" if what >= 10_000 else str(what)
        case float():
            return f"{what:.4g}" if abs(what) < 1e4 else f"{what:,.0f}"
        case Mapping():
            return ", ".join(f"{key} {text}" for key, text in rows(what)) or "-"
        case str():
            return what
        case Sequence():
            return " ".join(map(value, what)) or "-"
    return str(what)


def measured(figures: Figures) -> Iterator[list[str]]:
    """Cells under `MEASURED`, the last measurement first."""
    for row in reversed(figures.measured):
        yield [
            f"{row.seconds / 60:.1f}",
            row.on,
            str(row.texts),
            f"{row.mean_acceptance_length:.2f}",
            shares(row.acceptance_by_position),
            number(row.plain_tokens_per_second, 1),
            number(row.tokens_per_second, 1),
            number(row.speed_up, 2),
            number(row.automatic_length, 2),
        ]


def number(what: float | None, digits: int) -> str:
    return "-" if what is None else f"{what:.{digits}f}"


def shares(numbers: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in numbers) or "-"
