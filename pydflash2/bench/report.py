"""One HTML file that says it all: no other file, no request to anywhere."""

from __future__ import annotations

import importlib.util
from importlib import resources
from typing import Any, TextIO

import pydflash2
from pydflash2.bench import figures
from pydflash2.bench.records import Report
from pydflash2.bench.table import prefill_rows

_LIBRARIES = ("jinja2", "plotly")


def check_libraries() -> None:
    """Raises PyDFlash2Error where the libraries that make the report aren't installed."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise pydflash2.PyDFlash2Error(
            f"--report needs {' and '.join(missing)}: pip install 'pydflash2[bench]'. The table, --json and "
            "--csv work without"
        )


def write_html(report: Report, file: TextIO) -> None:
    check_libraries()
    import jinja2
    from plotly.offline import get_plotlyjs

    from pydflash2.bench import plots

    source = (resources.files("pydflash2") / "bench" / "report.html.j2").read_text(encoding="utf-8")
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)
    page = template.render(
        report=report,
        figures=figures,
        prefill=prefill_rows(report),
        plotly=get_plotlyjs(),
        by_width=_plot(plots.by_width(report)),
        by_position=_plot(plots.by_position(report)),
        ratios=[_plot(plots.ratios(workload)) for workload in report.workloads],
        times=[_plot(plots.times(workload)) for workload in report.workloads],
    )
    file.write(page + "\n")


def _plot(figure: Any) -> str | None:
    if figure is None:
        return None
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"responsive": True, "displayModeBar": False, "scrollZoom": False},
    )
    return html
