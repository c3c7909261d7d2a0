"""The figures as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydflash2 import page
from pydflash2.train import shown
from pydflash2.train.curves import Plot, all_plots
from pydflash2.train.figures import Figures
from pydflash2.train.files import write_beside

_FEW = 60  # points of a curve that are told apart


def check_libraries() -> None:
    """Raises PyDFlash2Error where the libraries that make the report aren't installed."""
    page.check_libraries("The report of a training", "train", "Nothing was begun")


def write_report(path: Path, name: str, figures: Figures) -> None:
    """name: of the head."""
    text = page.render(
        "train/report.html.j2",
        name=name,
        figures=figures,
        shown=shown,
        plots=[(plot.title, page.plot_html(_drawn(plot))) for plot in all_plots(figures)],
    )
    write_beside(path, lambda file: file.write(text.encode()))


def _drawn(plot: Plot) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for curve in plot.curves:
        figure.add_scatter(
            name=curve.name,
            x=list(curve.x),
            y=list(curve.y),
            mode="lines+markers" if len(curve.x) <= _FEW else "lines",
            line={"color": curve.colour, "dash": curve.dash},
            hovertemplate=f"{curve.name}: %{{y}} at %{{x:.1f}}<extra></extra>",
        )
    figure.update_layout(showlegend=True)
    if plot.shares:
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    if plot.positions:
        figure.update_xaxes(dtick=1)
    else:
        figure.update_xaxes(rangemode="tozero")
    return page.finish(figure, plot.x_title, plot.y_title or None)
