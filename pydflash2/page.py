"""Reports as one HTML file that says it all: no other file, no request to anywhere. Plots are by plotly.

A report's template extends page.html.j2. Colours that depend on light or dark are set there.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from pydflash2.errors import PyDFlash2Error

_LIBRARIES = ("jinja2", "plotly")


def check_libraries(what: str, extra: str, without: str) -> None:
    """Raises PyDFlash2Error where the libraries that make a report aren't installed.

    what: needs them. extra: installs them. without: what works all the same.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise PyDFlash2Error(
            f"{what} needs {' and '.join(missing)}: pip install 'pydflash2[{extra}]'. {without}"
        )


def render(template: str, **values: Any) -> str:
    """The page that a template of this package makes of its values, plotly's script inside."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pydflash2", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(plotly=get_plotlyjs(), **values) + "\n"


def plot_html(figure: Any) -> str:
    """A plotly figure's part of the page."""
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"responsive": True, "displayModeBar": False, "scrollZoom": False},
    )
    return html


def finish(figure: Any, x: str, y: str | None = None, height: int = 380) -> Any:
    """A plotly figure as all plots of a page look; x, y: titles of the axes."""
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 13, "family": "system-ui, sans-serif"},
        margin={"l": 8, "r": 12, "t": 36, "b": 44},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        dragmode=False,
    )
    # Fixed, so that a finger on a plot scrolls the page.
    figure.update_xaxes(title_text=x, automargin=True, fixedrange=True, zeroline=False, ticklen=4)
    figure.update_yaxes(title_text=y, automargin=True, fixedrange=True, zeroline=False, ticklen=4)
    return figure
