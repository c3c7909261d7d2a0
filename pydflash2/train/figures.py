"""The figures of a training run: what figures.json holds, and all that the report and the model card show."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydflash2.errors import PyDFlash2Error
from pydflash2.train.files import write_beside

FORMAT = 1  # of the JSON; grows when a reader would have to change

On = Literal["held out", "training"]


@dataclass(frozen=True)
class Step:
    """The training loss, a mean over the steps since the row before."""

    step: int  # optimiser steps so far
    seconds: float  # of training so far, over all runs; generating and measuring left out
    tokens: int  # trained on so far: positions of blocks, the anchors left out
    unary_loss: float  # nats
    selector_loss: float | None  # nats, over the positions that are covered; None: a head without a selector
    covered: float | None  # share of positions whose token is among the selector's candidates
    learning_rate: float  # share of its peak


@dataclass(frozen=True)
class HeldOut:
    """The same losses on texts that are never trained on, and how often each position is right."""

    step: int
    seconds: float
    unary_loss: float
    selector_loss: float | None
    unary_accuracy: list[float]  # [n] by position: the likeliest token is the text's
    selector_accuracy: list[float]  # [n]: the selector's choice is, given the true predecessor; []: none
    recall: list[float]  # [n]: the text's token is among the candidates; []: no selector
    path_length: float  # 1 + tokens of the greedy path before the first wrong one, at anchors anywhere


@dataclass(frozen=True)
class Measured:
    """What the engine made of the exported head: greedy, rounds of the head's full width.

    Speeds are those of automatic width, in turn with the target alone; None where they weren't measured.
    """

    step: int
    seconds: float
    on: On  # which prompts
    texts: int
    mean_acceptance_length: float  # 1 + accepted / rounds
    acceptance_by_position: list[float]  # [n] share of rounds that accepted it
    tokens_per_second: float | None = None
    plain_tokens_per_second: float | None = None
    speed_up: float | None = None  # the median of the texts' own ratios
    automatic_length: float | None = None  # mean acceptance length at automatic width
    length_with_loops: float | None = None  # mean acceptance length of whole texts, their loops included


@dataclass
class Figures:
    """Written whole at each report, so that a run that is killed has lost no row before."""

    settings: dict[str, Any] = field(default_factory=dict)  # as chosen: geometry, objective, seed, ...
    data: dict[str, Any] = field(default_factory=dict)  # texts, tokens, loops dropped, seconds, ...
    steps: list[Step] = field(default_factory=list)
    held_out: list[HeldOut] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)  # of the head that was kept

    def on(self, prompts: On) -> list[Measured]:
        return [row for row in self.measured if row.on == prompts]

    def back_to(self, step: int) -> None:
        """Forgets what came after a checkpoint, before its run is resumed."""
        self.steps = [row for row in self.steps if row.step <= step]
        self.held_out = [row for row in self.held_out if row.step <= step]
        self.measured = [row for row in self.measured if row.step <= step]
        self.final = {}

    def write(self, path: Path) -> None:
        """ValueError for a figure that is no number: a run that diverged has no such row."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, allow_nan=False, indent=1)
        write_beside(path, lambda file: file.write(text.encode() + b"\n"))

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Raises PyDFlash2Error for a file that no `write` has left so."""
        try:
            record = json.loads(path.read_bytes())
            if record.pop("format") != FORMAT:
                raise ValueError("it is of another version")
            for name, kind in (("steps", Step), ("held_out", HeldOut), ("measured", Measured)):
                record[name] = [kind(**row) for row in record[name]]
            return cls(**record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PyDFlash2Error(
                f"{path} doesn't hold a training run's figures ({error}). Remove it, or give another --out"
            ) from error
