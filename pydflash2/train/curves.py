"""What is drawn of a training run, in the report and in the picture alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydflash2.train.figures import Figures, HeldOut, Measured, On, Step

_Row = Step | HeldOut | Measured

# Told apart by people who see no red or green too (Okabe and Ito's palette), and by their dashes.
_HELD_OUT = ("#0072b2", "solid")
_TRAINING = ("#e69f00", "dash")
_OTHER = ("#009e73", "dash")
_RECALL = ("#888888", "dot")
_PROMPTS: dict[On, tuple[str, str]] = {"held out": _HELD_OUT, "training": _TRAINING}
_FIRST, _LAST = (0, 114, 178), (230, 159, 0)  # positions, red green blue


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dash: str = "solid"  # or "dash", "dot"


@dataclass(frozen=True)
class Plot:
    """Curves over one axis."""

    title: str
    x_title: str
    y_title: str
    curves: Sequence[Curve]
    shares: bool = False  # y: 0 to 1, written as percentages
    positions: bool = False  # x: positions of a draft, whole numbers

    @property
    def empty(self) -> bool:
        return not any(len(curve.x) for curve in self.curves)


def pictured(figures: Figures) -> list[Plot]:
    """The four that say most, in the picture of the model card."""
    return _drawn(
        [_acceptance_length(figures), _acceptance(figures), _unary_loss(figures), _accuracy(figures)]
    )


def all_plots(figures: Figures) -> list[Plot]:
    """Those with something on them. A head without a selector has fewer."""
    return _drawn(
        [
            _acceptance_length(figures),
            _acceptance(figures),
            _unary_loss(figures),
            _selector_loss(figures),
            _accuracy(figures),
            _each_position("Held-out unary accuracy", figures, lambda row: row.unary_accuracy),
            _each_position("Held-out selector accuracy", figures, lambda row: row.selector_accuracy),
            _each_position("Held-out candidate recall", figures, lambda row: row.recall),
            _covered(figures),
            _speed_up(figures),
            _learning_rate(figures),
            _speed(figures),
        ]
    )


def _drawn(plots: Sequence[Plot]) -> list[Plot]:
    return [plot for plot in plots if not plot.empty]


def _line(name: str, points: Iterable[tuple[_Row, float | None]], colour: str, dash: str = "solid") -> Curve:
    """Over the minutes of training. What a head doesn't have (None) isn't drawn."""
    drawn = [(row.seconds / 60, value) for row, value in points if value is not None]
    return Curve(name, [minute for minute, _ in drawn], [value for _, value in drawn], colour, dash)


def _over_time(title: str, y_title: str, curves: Sequence[Curve], shares: bool = False) -> Plot:
    return Plot(title, "minutes of training", y_title, curves, shares)


def _unary_loss(figures: Figures) -> Plot:
    curves = [
        _line("training", [(row, row.unary_loss) for row in figures.steps], *_TRAINING),
        _line("held out", [(row, row.unary_loss) for row in figures.held_out], *_HELD_OUT),
    ]
    return _over_time("Unary loss", "nats", curves)


def _selector_loss(figures: Figures) -> Plot:
    curves = [
        _line("training", [(row, row.selector_loss) for row in figures.steps], *_TRAINING),
        _line("held out", [(row, row.selector_loss) for row in figures.held_out], *_HELD_OUT),
    ]
    return _over_time("Selector loss", "nats", curves)


def _acceptance_length(figures: Figures) -> Plot:
    curves = [
        _line(on, [(row, row.mean_acceptance_length) for row in figures.on(on)], *style)
        for on, style in _PROMPTS.items()
    ]
    curves.append(_line("in torch", [(row, row.path_length) for row in figures.held_out], *_OTHER))
    return _over_time("Mean acceptance length", "tokens a round", curves)


def _acceptance(figures: Figures) -> Plot:
    curves = [
        _positions(on, row.acceptance_by_position, *style)
        for on, style in _PROMPTS.items()
        for row in figures.on(on)[-1:]
    ]
    return Plot("Accepted by position, last measured", "position in the draft", "rounds", curves, True, True)


def _accuracy(figures: Figures) -> Plot:
    curves = [
        _positions(name, shares, *style)
        for last in figures.held_out[-1:]
        for name, shares, style in (
            ("selector", last.selector_accuracy, _HELD_OUT),
            ("unary", last.unary_accuracy, _OTHER),
            ("recall", last.recall, _RECALL),
        )
        if shares
    ]
    return Plot("Held-out accuracy, last", "position in the draft", "right", curves, True, True)


def _positions(name: str, shares: Sequence[float], colour: str, dash: str) -> Curve:
    return Curve(name, range(1, len(shares) + 1), shares, colour, dash)


def _each_position(title: str, figures: Figures, shares: Callable[[HeldOut], Sequence[float]]) -> Plot:
    n = max((len(shares(row)) for row in figures.held_out), default=0)
    curves = [
        _line(str(place + 1), [(row, shares(row)[place]) for row in figures.held_out], _shade(place, n))
        for place in range(n)
    ]
    return _over_time(title, "right", curves, True)


def _shade(place: int, n: int) -> str:
    """Blue for the first position, orange for the last."""
    part = place / max(n - 1, 1)
    mixed = [round(a + (b - a) * part) for a, b in zip(_FIRST, _LAST, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _covered(figures: Figures) -> Plot:
    curve = _line("training", [(row, row.covered) for row in figures.steps], *_TRAINING)
    return _over_time("Covered by the candidates, training", "positions", [curve], True)


def _speed_up(figures: Figures) -> Plot:
    curves = [
        _line(on, [(row, row.speed_up) for row in figures.on(on)], *style) for on, style in _PROMPTS.items()
    ]
    return _over_time("Speed, plain decoding = 1", "times", curves)


def _learning_rate(figures: Figures) -> Plot:
    curve = _line("learning rate", [(row, row.learning_rate) for row in figures.steps], *_HELD_OUT)
    return _over_time("Learning rate", "of its peak", [curve])


def _speed(figures: Figures) -> Plot:
    points = [
        (row, (row.tokens - before.tokens) / (row.seconds - before.seconds))
        for before, row in pairwise(figures.steps)
        if row.seconds > before.seconds
    ]
    return _over_time("Training speed", "tokens a second", [_line("training", points, *_HELD_OUT)])
