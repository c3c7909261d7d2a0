"""Lets the target continue the prompts, many side by side, as it will when it serves.

How a text is continued depends on the seed and on its prompt's number alone; so a run that was interrupted
goes on as if it hadn't been. (Kernels may treat a row otherwise when others are decoded with it: where the
two likeliest tokens are that close, a text that is written again can take the other one.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydflash2.loops import loop_start
from pydflash2.settings import SAMPLING_DEFAULTS, Sampling
from pydflash2.train.prompts import Prompt, Prompts
from pydflash2.train.texts import Outcome, Text, Texts, TextStore, manifest_of, n_to_train

_LOOK_EVERY = 32  # tokens, for loops
_SHARD_TEXTS = 256
_SHARD_SECONDS = 60.0
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Plan:
    """How prompts are continued. Everything here decides what the texts are."""

    seed: int = 0
    greedy_share: float = 0.5  # of the training texts; held-out ones are all greedy
    temperatures: tuple[float, float] = (0.7, 1.0)  # of the others, drawn evenly from between
    max_tokens: int = 256  # written, for each prompt
    text_size: int = 2048  # tokens a text has at most, prompt included
    shortest: int = 16  # useful tokens written; texts with fewer are dropped
    n_top: int = 0  # likeliest tokens kept beside each token written
    top_k: int = 0  # samplers, as in pydflash2.settings
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.temperatures
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(f"greedy_share is {self.greedy_share}: give a share between 0 and 1")
        if not 0 < low <= high:
            raise ValueError(f"temperatures are {low} to {high}: give two above 0, the lower first")
        if not 1 <= self.shortest <= self.max_tokens < self.text_size:
            raise ValueError(
                f"shortest is {self.shortest}, max_tokens {self.max_tokens}, text_size {self.text_size}: "
                "each must be smaller than the next"
            )

    def settings(self) -> dict[str, Any]:
        return vars(self) | {"temperatures": list(self.temperatures)}

    def chosen_for(self, index: int, held_out: bool) -> tuple[float, int]:
        """Temperature and seed with which prompt `index` is continued."""
        generator = np.random.default_rng((self.seed, index))
        greedy = generator.random() < self.greedy_share
        temperature = float(generator.uniform(*self.temperatures))
        return 0.0 if greedy or held_out else temperature, int(generator.integers(2**63))


@dataclass(frozen=True)
class Progress:
    """How far the writing is."""

    n_texts: int  # done, those of earlier runs among them
    n_prompts: int
    n_tokens: int  # to train with, so far
    n_loops: int
    tokens_per_second: float  # generated in this run, dropped ones included
    seconds: float  # of this run


class Chosen(Protocol):
    """One token, chosen in one slot of the batch; see pydflash2.batch."""

    @property
    def slot(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    @property
    def top_tokens(self) -> npt.NDArray[np.int32]: ...  # [n_top]
    @property
    def top_logprobs(self) -> npt.NDArray[np.float32]: ...  # [n_top]


class Batch(Protocol):
    """Texts that are decoded side by side; see pydflash2.batch."""

    def begin(self, slot: int, tokens: Sequence[int], sampling: Any) -> None: ...
    def end(self, slot: int) -> None: ...
    def step(self) -> Sequence[Chosen]: ...


class Samplers(Protocol):
    """What makes a slot's sampling; see NativeEngine."""

    def sampling(self, chosen: Sampling, seed: int, logprobs: int | None) -> Any: ...


@dataclass
class _Draft:
    """A text that is being written."""

    index: int
    prompt: Prompt
    temperature: float
    limit: int  # tokens to write at most
    tokens: list[int] = field(default_factory=list)
    top_tokens: list[npt.NDArray[np.int32]] = field(default_factory=list)
    top_logprobs: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, chosen: Chosen) -> bool:
        """Whether the text ends with it."""
        self.tokens.append(chosen.token)
        self.top_tokens.append(chosen.top_tokens)
        self.top_logprobs.append(chosen.top_logprobs)
        n = len(self.tokens)
        return chosen.finished or n >= self.limit or (n % _LOOK_EVERY == 0 and loop_start(self.tokens) < n)

    def outcome(self, plan: Plan) -> Outcome:
        n = loop_start(self.tokens)
        looped = n < len(self.tokens)
        kept = n if n >= plan.shortest else 0
        tokens = [*self.prompt.tokens, *self.tokens[:kept]] if kept else []
        return Outcome(
            self.index,
            Text(
                np.array(tokens, np.int32),
                len(self.prompt.tokens) if kept else 0,
                self.temperature,
                _stacked(self.top_tokens[:kept], plan.n_top, np.int32),
                _stacked(self.top_logprobs[:kept], plan.n_top, np.float16),
                self.prompt.held_out,
                self.prompt.source,
            ),
            looped,
        )


def _stacked(rows: list[Any], n_top: int, dtype: Any) -> npt.NDArray[Any]:
    return np.array(rows, dtype).reshape(len(rows), n_top)


class Writer:
    """Writes texts into a folder, and goes on with what it has."""

    def __init__(
        self,
        engine: Samplers,
        batch: Batch,
        n_slots: int,
        target: Path,
        prompts: Prompts,
        plan: Plan,
        folder: Path,
    ) -> None:
        """engine: the target's. batch: with `n_slots` slots for texts of plan.text_size tokens.

        Raises ValueError where the folder holds texts of other prompts, another target or another plan.
        """
        self.store = TextStore(folder, manifest_of(target, prompts.digest(), plan.settings()))
        self._engine = engine
        self._batch = batch
        self._n_slots = n_slots
        self._prompts = prompts
        self._plan = plan
        self._live: dict[int, _Draft] = {}  # by slot
        self._first = 0  # prompts before it are done
        self._n_first = 0  # tokens to train with that they gave
        self._n_generated = 0

    def write(
        self,
        n_tokens: int | None = None,
        minutes: float | None = None,
        progress: Callable[[Progress], object] = lambda _: None,
        n_held_out: int = 0,
    ) -> Texts:
        """Writes until the first prompts have given `n_tokens` to train with, time is over, or all are done;
        then held-out ones until there are `n_held_out`.

        With `n_tokens` the texts are the same on every run; with `minutes`, how many there are is chance, and
        those that are being written when time is over are left out.

        Raises OSError where the disk is full. What was written until then, or until Ctrl-C, is kept.
        """
        begun = time.monotonic()
        todo = iter([index for index in range(len(self._prompts)) if index not in self.store])
        held_out = [index for index, prompt in enumerate(self._prompts) if prompt.held_out][:n_held_out]
        deadline = float("inf") if minutes is None else begun + 60.0 * minutes
        saved = shown = begun
        self._n_generated = 0
        writing_held_out = False
        try:
            while True:
                now = time.monotonic()
                if not writing_held_out and (self._enough(n_tokens) or now >= deadline):
                    writing_held_out = True
                    self._drop({draft.index for draft in self._live.values()} - set(held_out))
                    there = {draft.index for draft in self._live.values()}
                    todo = iter(
                        [index for index in held_out if index not in self.store and index not in there]
                    )
                self._fill(todo)
                if not self._live:
                    break
                self._step()
                if now - shown >= _PROGRESS_SECONDS:
                    shown = now
                    progress(self._progress(begun))
                if self.store.n_waiting >= _SHARD_TEXTS or now - saved >= _SHARD_SECONDS:
                    self.store.flush()
                    saved = now
        finally:
            try:
                self.store.flush()
            finally:
                while self._live:
                    self._batch.end(self._live.popitem()[0])
        progress(self._progress(begun))
        return self.store.texts(n_tokens, n_held_out)

    def _drop(self, indices: set[int]) -> None:
        """Ends texts that nobody waits for."""
        for slot in [slot for slot, draft in self._live.items() if draft.index in indices]:
            self._batch.end(slot)
            del self._live[slot]

    def _fill(self, todo: Any) -> None:
        for slot in range(self._n_slots):
            while slot not in self._live:
                index = next(todo, None)
                if index is None:
                    return
                self._begin(slot, index)

    def _begin(self, slot: int, index: int) -> None:
        prompt = self._prompts[index]
        temperature, seed = self._plan.chosen_for(index, prompt.held_out)
        limit = min(self._plan.max_tokens, self._plan.text_size - len(prompt.tokens))
        draft = _Draft(index, prompt, temperature, limit)
        if limit < self._plan.shortest:  # no room
            self.store.add(draft.outcome(self._plan))
            return
        chosen = Sampling.of(
            {
                **SAMPLING_DEFAULTS,
                "temperature": temperature,
                "top_k": self._plan.top_k,
                "top_p": self._plan.top_p,
                "min_p": self._plan.min_p,
            }
        )
        sampling = self._engine.sampling(chosen, seed, None)
        self._batch.begin(slot, prompt.tokens.tolist(), sampling)
        self._live[slot] = draft

    def _step(self) -> None:
        for chosen in self._batch.step():
            draft = self._live[chosen.slot]
            self._n_generated += 1
            if draft.add(chosen):
                self._batch.end(chosen.slot)
                del self._live[chosen.slot]
                self.store.add(draft.outcome(self._plan))

    def _enough(self, n_tokens: int | None) -> bool:
        """Whether the prompts from the first on, without a gap, have given as much."""
        while self._first in self.store and (n_tokens is None or self._n_first < n_tokens):
            self._n_first += n_to_train(self.store[self._first])
            self._first += 1
        return n_tokens is not None and self._n_first >= n_tokens

    def _progress(self, begun: float) -> Progress:
        seconds = time.monotonic() - begun
        return Progress(
            len(self.store),
            len(self._prompts),
            self.store.n_tokens,
            self.store.n_loops,
            self._n_generated / seconds if seconds > 0 else 0.0,
            seconds,
        )
