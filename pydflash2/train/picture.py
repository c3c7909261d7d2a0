"""The curves that say most as one PNG: for the model card, where no script runs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from pydflash2.train.curves import Plot, pictured
from pydflash2.train.figures import Figures
from pydflash2.train.files import write_beside

_SIZE = (4.4, 3.1)  # of one plot, inches
_DPI = 110
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def write_picture(path: Path, figures: Figures) -> bool:
    """False, and no file, where there is nothing to draw yet."""
    from matplotlib.figure import Figure

    plots = pictured(figures)
    if not plots:
        return False
    n_columns = min(2, len(plots))
    n_rows = math.ceil(len(plots) / n_columns)
    figure = Figure(figsize=(_SIZE[0] * n_columns, _SIZE[1] * n_rows), layout="constrained")
    for place, plot in enumerate(plots, start=1):
        _draw(figure.add_subplot(n_rows, n_columns, place), plot)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    write_beside(path, lambda file: file.write(drawn.getvalue()))
    return True


def _draw(axes: Any, plot: Plot) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for curve in plot.curves:
        if len(curve.x):
            axes.plot(
                curve.x,
                curve.y,
                _DASHES[curve.dash],
                color=curve.colour,
                label=curve.name,
                marker="o" if len(curve.x) == 1 else None,
            )
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x_title)
    axes.set_ylabel(plot.y_title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", frameon=False)
    if plot.shares:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if plot.positions:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
