"""The report's plots, by plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from pydflash2 import page
from pydflash2.bench.records import Report
from pydflash2.bench.statistics import Row, Spread, Workload

# Told apart by people who see no red or green too (Okabe and Ito's palette).
_COLOURS = {"plain": "#888888", "head": "#0072b2", "lookup": "#e69f00", "stack": "#009e73", "auto": "#cc79a7"}
_LINES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_PARTS = {"draft": "#e69f00", "verify": "#0072b2", "rest": "#888888"}


def ratios(workload: Workload) -> go.Figure:
    """Each arm's speed beside plain decoding's, with quartiles."""
    figure = go.Figure()
    for group, colour in _COLOURS.items():
        rows = [row for row in workload.rows if row.group == group]
        if not rows:
            continue
        figure.add_bar(
            name=group,
            y=[row.arm for row in rows],
            x=[row.ratio.median for row in rows],
            error_x=_whiskers([row.ratio for row in rows]),
            orientation="h",
            marker_color=colour,
            hovertemplate="%{y}: %{x:.2f} of plain<extra></extra>",
        )
    figure.add_vline(x=1, line_width=1, line_dash="dash", line_color="#888888")
    _arms_axis(figure, workload.rows)
    return page.finish(figure, "speed, plain decoding = 1", height=_height(workload.rows))


def times(workload: Workload) -> go.Figure:
    """Where the time of a token goes."""
    figure = go.Figure()
    shares = {row.arm: _milliseconds(row) for row in workload.rows}
    for part, colour in _PARTS.items():
        figure.add_bar(
            name=part,
            y=list(shares),
            x=[values[part] for values in shares.values()],
            orientation="h",
            marker_color=colour,
            hovertemplate=f"%{{y}}: {part} %{{x:.3f}} ms a token<extra></extra>",
        )
    figure.update_layout(barmode="stack")
    _arms_axis(figure, workload.rows)
    return page.finish(figure, "milliseconds a token", height=_height(workload.rows))


def by_width(report: Report) -> go.Figure | None:
    """The head alone: speed by width, one line a workload. None where fewer than two widths were measured."""
    figure = go.Figure()
    for index, workload in enumerate(report.workloads):
        rows = [row for row in workload.rows if row.group == "head"]
        if len(rows) < 2:
            return None
        figure.add_scatter(
            name=_name(workload),
            x=[row.width for row in rows],
            y=[row.ratio.median for row in rows],
            error_y=_whiskers([row.ratio for row in rows]),
            mode="lines+markers",
            line=_line(index),
            hovertemplate="%{x} drafted tokens: %{y:.2f} of plain<extra></extra>",
        )
    figure.add_hline(y=1, line_width=1, line_dash="dash", line_color="#888888")
    figure.update_xaxes(dtick=1)
    return page.finish(figure, "tokens drafted a round", "speed, plain = 1")


def by_position(report: Report) -> go.Figure | None:
    """Acceptance by position at the head's greatest width, one line a workload."""
    figure = go.Figure()
    for index, workload in enumerate(report.workloads):
        rows = [row for row in workload.rows if row.group == "head" and row.acceptance_by_position]
        if not rows:
            return None
        row = max(rows, key=lambda row: row.width or 0)
        figure.add_scatter(
            name=_name(workload),
            x=list(range(1, len(row.acceptance_by_position) + 1)),
            y=row.acceptance_by_position,
            mode="lines+markers",
            line=_line(index),
            hovertemplate="position %{x}: accepted in %{y:.0%} of rounds<extra></extra>",
        )
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    return page.finish(figure, "position in the draft", "rounds that accepted it")


def _milliseconds(row: Row) -> dict[str, float]:
    speed = row.tokens_per_second.median
    whole = 1000 / speed if speed else 0.0
    rounds = sum(row.rounds_by_width.values())
    draft = row.draft_ms * rounds / max(row.generated_tokens - row.n_runs, 1)
    return {"draft": draft, "verify": max(whole * (1 - row.rest) - draft, 0.0), "rest": whole * row.rest}


def _whiskers(spreads: Sequence[Spread]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [spread.high - spread.median for spread in spreads],
        "arrayminus": [spread.median - spread.low for spread in spreads],
        "color": "#888888",
        "thickness": 1.5,
    }


def _line(index: int) -> dict[str, Any]:
    return {"color": _LINES[index % len(_LINES)], "dash": _DASHES[index % len(_DASHES)]}


def _name(workload: Workload) -> str:
    return workload.plan.workload.name + (" (inflated)" if workload.plan.workload.inflated else "")


def _arms_axis(figure: go.Figure, rows: Sequence[Row]) -> None:
    figure.update_yaxes(categoryorder="array", categoryarray=[row.arm for row in reversed(rows)], dtick=1)


def _height(rows: Sequence[Row]) -> int:
    return 120 + 24 * len(rows)
