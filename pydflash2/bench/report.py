"""The figures as one HTML file."""

from __future__ import annotations

from typing import Any, TextIO

from pydflash2 import page
from pydflash2.bench import figures
from pydflash2.bench.records import Report
from pydflash2.bench.table import prefill_rows


def check_libraries() -> None:
    """Raises PyDFlash2Error where the libraries that make the report aren't installed."""
    page.check_libraries("--report", "bench", "The table, --json and --csv work without")


def write_html(report: Report, file: TextIO) -> None:
    check_libraries()
    from pydflash2.bench import plots

    text = page.render(
        "bench/report.html.j2",
        report=report,
        figures=figures,
        prefill=prefill_rows(report),
        by_width=_plot(plots.by_width(report)),
        by_position=_plot(plots.by_position(report)),
        ratios=[_plot(plots.ratios(workload)) for workload in report.workloads],
        times=[_plot(plots.times(workload)) for workload in report.workloads],
    )
    file.write(text)


def _plot(figure: Any) -> str | None:
    return None if figure is None else page.plot_html(figure)
