"""The figures as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydflash2.bench import figures
from pydflash2.bench.records import Report
from pydflash2.bench.statistics import Spread, Workload

_SPEED = (
    "arm",
    "tok/s (quartiles)",
    "/ plain (quartiles)",
    "accepted",
    "draft ms",
    "verify ms",
    "rest",
    "prefill",
    "",
)
_DRAFTS = ("arm", "rounds by width", "accepted by position 1, 2, ...", "")


def table(report: Report) -> str:
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    environment = report.environment
    for file in environment.files:
        yield f"{file.role}: {file.name}, {figures.size(file.n_bytes)}, {file.description}"
    yield figures.machine(environment)
    yield f"pydflash2 {environment.version}, {environment.llama_cpp}"
    yield figures.settings(report.options, report.exact)
    for workload in report.workloads:
        yield ""
        yield from _workload(workload)
    if report.prefill is not None:
        yield f"\nprefill of {report.prefill.prompt_tokens} tokens"
        rows = [
            (name, figures.spread(rate, 0), figures.spread(ratio, 3))
            for name, rate, ratio in prefill_rows(report)
        ]
        yield from _columns([("arm", "tok/s (quartiles)", "/ plain (quartiles)"), *rows])
    yield "\nmemory"
    held = [(name, figures.size(report.memory[key])) for key, name in figures.MEMORY.items()]
    yield from _columns(held)


def _workload(workload: Workload) -> Iterator[str]:
    plan = workload.plan
    yield f"{plan.workload.name}: {plan.workload.description}"
    yield f"  {figures.texts(workload)}"
    rows = [
        (
            row.arm,
            figures.spread(row.tokens_per_second, 1 if row.tokens_per_second.median < 100 else 0),
            figures.spread(row.ratio, 2),
            f"{row.mean_acceptance_length:.2f}",
            figures.milliseconds(row.draft_ms),
            figures.milliseconds(row.verify_ms),
            f"{row.rest:.0%}",
            figures.rate(row.prefill_tokens_per_second),
            figures.marks(row),
        )
        for row in workload.rows
    ]
    yield from _columns([_SPEED, *rows])
    drafts = [
        (
            row.arm,
            figures.widths(row.rounds_by_width),
            figures.positions(row.acceptance_by_position),
            figures.drafters(row.drafted_by),
        )
        for row in workload.rows
        if row.rounds_by_width
    ]
    if drafts:
        yield from _columns([_DRAFTS, *drafts])
    if (ratio := workload.auto_to_best()) is not None and (best := workload.best()):
        yield f"  best fixed arm: {best.arm}; auto / {best.arm}: {ratio:.2f}"


def prefill_rows(report: Report) -> list[tuple[str, Spread, Spread]]:
    """Arm, tokens a second, and the ratio to plain decoding's, repeat by repeat."""
    if report.prefill is None:
        return []
    plain, *_ = report.prefill.seconds.values()
    return [
        (
            name,
            Spread.of([report.prefill.prompt_tokens / value for value in seconds]),
            Spread.of([base / value for base, value in zip(plain, seconds, strict=True)]),
        )
        for name, seconds in report.prefill.seconds.items()
    ]


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with aligned columns: the first is text, and where figures are they end in line."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row, sizes, strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()
