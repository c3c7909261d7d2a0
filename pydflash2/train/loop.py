"""The training loop: steps, checkpoints, held-out figures, and what to do when something goes wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pydflash2 import arguments
from pydflash2.errors import PyDFlash2Error
from pydflash2.train import held_out, optimisers
from pydflash2.train.batches import Batches
from pydflash2.train.figures import Figures, HeldOut, Step
from pydflash2.train.files import write_beside
from pydflash2.train.head import Head
from pydflash2.train.objective import Blocks, Losses, Objective
from pydflash2.train.optimisers import OptimiserSettings
from pydflash2.train.replicas import Replicas, n_replicas

_MOST_BAD_STEPS = 10  # one after the other
_LOOK_EVERY = 2.0  # minutes
_FEWEST_LOOKS = 12  # in a run


class TrainingError(PyDFlash2Error):
    """Training can't go on. What was reached before is kept."""


@dataclass(frozen=True)
class LoopSettings:
    """How long to train, and how often to look.

    minutes: of training, measuring apart; the learning rate follows the clock. steps: instead of minutes;
        two runs with one seed then give the same head.
    parts: batches a step's gradient is the mean of.
    look_every, save_every: minutes between held-out figures (None: 2, in a short run less), and between
    checkpoints.
    patience: looks without a better head after which training ends; 0: never.
    """

    minutes: float | None = 60.0
    steps: int | None = None
    parts: int = 2
    look_every: float | None = None
    save_every: float = 2.0
    patience: int = 12

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(f"minutes is {self.minutes} and steps {self.steps}: give one of the two")
        if self.minutes is not None:
            arguments.number("minutes", self.minutes, 1e-3)
        if self.steps is not None:
            arguments.integer("steps", self.steps, 1)
        arguments.integer("accumulate", self.parts, 1)
        if self.look_every is not None:
            arguments.number("look_every", self.look_every, 1e-3)
        arguments.integer("patience", self.patience, 0)


@dataclass
class State:
    """How far a run is."""

    step: int = 0
    seconds: float = 0.0  # of training
    tokens: int = 0  # labels trained on
    best: float = -math.inf  # path length of the best head
    best_step: int = -1


def _looks_apart(settings: LoopSettings) -> float:
    """Minutes."""
    if settings.look_every is not None:
        return settings.look_every
    return _LOOK_EVERY if settings.minutes is None else min(_LOOK_EVERY, settings.minutes / _FEWEST_LOOKS)


class Loop:
    """Trains a head. `run` returns when the run is over; `save` at any time keeps what was reached."""

    def __init__(
        self,
        head: Head,
        objective: Objective,
        batches: Batches,
        held_out_blocks: Sequence[Blocks],
        settings: LoopSettings,
        optimiser_settings: OptimiserSettings,
        figures: Figures,
        checkpoint: Path,
        n_threads: int | None,
    ) -> None:
        self.head, self.objective, self.batches = head, objective, batches
        self.held_out_blocks = held_out_blocks
        self.settings, self.optimiser_settings = settings, optimiser_settings
        self.figures = figures
        self.checkpoint = checkpoint
        self.device = next(head.parameters()).device
        self.replicas = Replicas(head, n_replicas(self.device, n_threads, settings.parts))
        self.optimisers = optimisers.optimisers(
            head, optimiser_settings, len(self.replicas.copies), objective.precision
        )
        self.state = State()
        self.best_weights: dict[str, torch.Tensor] = {}
        self._recent: list[Losses] = []
        self._bad_steps = 0

    @property
    def progress(self) -> float:
        """Share of the run that is over."""
        if self.settings.steps is not None:
            return self.state.step / self.settings.steps
        assert self.settings.minutes is not None
        return self.state.seconds / (60 * self.settings.minutes)

    def run(self, tick: Callable[[State, float], None], looked: Callable[[HeldOut, bool], None]) -> str:
        """Trains to the end. tick(state, progress) after each step; looked(look, whether it is the best)
        after each look at the held-out texts. Returns why it ended.

        Raises `TrainingError` where the losses stop being numbers.
        """
        settings, state = self.settings, self.state
        since_look = since_save = 0.0
        pause = 60 * _looks_apart(settings)
        if not self.figures.held_out:
            self._look(looked)
        while self.progress < 1:
            begin = perf_counter()
            self._step()
            spent = perf_counter() - begin
            state.seconds += spent
            since_look, since_save = since_look + spent, since_save + spent
            tick(state, self.progress)
            if since_look >= pause and self.progress < 1:
                since_look = 0.0
                self._look(looked)
                if settings.patience and self._stale() >= settings.patience:
                    self.save()
                    return f"no better head in {settings.patience} looks"
            if since_save >= 60 * settings.save_every:
                since_save = 0.0
                self.save()
        if self.figures.held_out[-1].step < state.step:  # not where a finished run is run again
            self._look(looked)
            self.save()
        return "its time was over" if settings.steps is None else "all steps were done"

    def _stale(self) -> int:
        return sum(look.step > self.state.best_step for look in self.figures.held_out)

    def _step(self) -> None:
        state, parts = self.state, self.settings.parts
        self.objective.vocabulary.at_step(state.step)

        def part(index: int) -> Callable[[], Blocks]:
            return lambda: self.batches.batch(state.step * parts + index).to(self.device)

        losses = self.replicas.gradients(self.objective, [part(index) for index in range(parts)])
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.optimiser_settings.clip)
        share = optimisers.rate_share(self.progress, self.optimiser_settings)
        state.step += 1
        if all(math.isfinite(float(made.total)) for made in losses) and math.isfinite(float(norm)):
            self._bad_steps = 0
            optimisers.set_rate(self.optimisers, share)
            self.replicas.step(self.optimisers)
            self._recent += losses
        else:
            self._bad_steps += 1
            if self._bad_steps == _MOST_BAD_STEPS:
                raise TrainingError(
                    f"the losses of steps {state.step - _MOST_BAD_STEPS + 1} to {state.step} are no numbers: "
                    f"the head as of the last checkpoint is kept in {self.checkpoint.parent}; try a lower "
                    "--rate in a new folder"
                )
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        n_anchors = self.batches.settings.n_texts * self.batches.settings.n_anchors * parts
        state.tokens += n_anchors * (self.batches.block_size - 1)

    def _note(self) -> None:
        """Writes down the means of the steps since the last time."""
        state = self.state
        if not self._recent:
            return
        unary, selector, covered = (
            sum(values) / len(self._recent)
            for values in zip(
                *((made.unary, made.selector, made.covered) for made in self._recent), strict=True
            )
        )
        self._recent.clear()
        share = optimisers.rate_share(self.progress, self.optimiser_settings)
        self.figures.steps.append(
            Step(state.step, state.seconds, state.tokens, unary, selector, covered, share)
        )

    def _look(self, looked: Callable[[HeldOut, bool], None]) -> None:
        state = self.state
        self._note()
        figures = held_out.evaluate(
            self.head, self.objective, self.held_out_blocks, state.step, state.seconds
        )
        self.figures.held_out.append(figures)
        better = figures.path_length > state.best
        if better:
            state.best, state.best_step = figures.path_length, state.step
            self.best_weights = {
                name: value.detach().to("cpu", copy=True) for name, value in self.head.state_dict().items()
            }
        looked(figures, better)

    # ---- checkpoints ----

    def save(self) -> None:
        """Writes a checkpoint beside the last one and puts it in its place."""
        state: dict[str, Any] = {
            "head": self.head.state_dict(),
            "best": self.best_weights,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "state": vars(self.state),
        }
        write_beside(self.checkpoint, lambda file: torch.save(state, file))

    def resume(self) -> bool:
        """Goes on from the checkpoint. False where there is none."""
        if not self.checkpoint.is_file():
            return False
        try:
            saved = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            self.head.load_state_dict(saved["head"])
            for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(state)
            found = saved["state"]
        except Exception as error:  # torch.load raises whatever a damaged file makes it
            raise TrainingError(
                f"{self.checkpoint} can't be gone on from: {str(error).splitlines()[0]}. Delete it to "
                "train anew"
            ) from error
        self.best_weights = saved["best"]
        self.state = State(**found)
        self.figures.back_to(self.state.step)
        return True

    def close(self) -> None:
        self.replicas.close()
