"""Many texts decoded side by side, plainly: what training data are made with."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from pydflash2.errors import EngineClosedError
from pydflash2.native import Floats, Integers, NativeEngine, SamplingStruct, check, ffi, floats, integers, lib

__all__ = ["Batch", "Chosen"]


class Chosen(NamedTuple):
    """A token that a step chose for one text."""

    slot: int
    token: int
    finished: bool  # the text's last token: an end-of-generation token, or the one that filled text_size
    top_tokens: Integers  # [n_top] likeliest first
    top_logprobs: Floats  # [n_top] log softmax of the target's logits, before any sampler


class Batch:
    """Slots for texts that are continued together, each by its own sampling and seed.

    Prompts come and go while others are being continued: begin a new text in the slot of a finished one. What
    a text becomes depends on its prompt, its sampling and its seed, not on its slot or its neighbours, beyond
    what kernels round. The engine's own text is not touched. Calls raise EngineBusyError and
    EngineClosedError as the engine does; closing it closes its batches.

    text_size: tokens a text can have, prompt included. n_top: likeliest tokens reported beside each chosen
    one. ValueError for numbers out of range, OutOfMemoryError for caches this machine has no room for.
    """

    def __init__(self, engine: NativeEngine, n_texts: int, text_size: int, n_top: int = 0) -> None:
        self._engine, self._n_top = engine, n_top
        self._batch = engine.create_batch(n_texts, text_size, n_top)
        self._release = weakref.finalize(self, engine.batch_release(self._batch))

    def begin(self, slot: int, tokens: Sequence[int], sampling: SamplingStruct) -> None:
        """Puts a text that begins with the prompt `tokens` into a slot, in the place of what was there.

        sampling: of `engine.sampling`. ValueError for a slot or token that does not exist or an empty prompt,
        ContextOverflowError for one that leaves no room in text_size.
        """
        self._engine.alone(
            lambda: check(lib.pd2_batch_begin(self._open(), slot, list(tokens), len(tokens), sampling.struct))
        )

    def end(self, slot: int) -> None:
        """Empties a slot."""
        self._engine.alone(lambda: check(lib.pd2_batch_end(self._open(), slot)))

    def step(self) -> list[Chosen]:
        """Reads on in the prompts, then chooses one token for each text whose prompt has been read.

        By slot; none while the prompts are longer than one decode. A finished text is in no later step.
        ValueError when no text is left to continue. A step that fails changes nothing.
        """
        return self._engine.alone(self._step)

    def _step(self) -> list[Chosen]:
        step = ffi.new("pd2_step *")
        check(lib.pd2_batch_step(self._open(), step))
        n, n_top = step.n, self._n_top
        top_tokens, top = integers(step.top_tokens, n, n_top), floats(step.top, n, n_top)
        return [
            Chosen(one.slot, one.token, one.finished, top_tokens[i], top[i])
            for i, one in enumerate(step.chosen[0:n])
        ]

    def close(self) -> None:
        """Frees the caches. Later calls raise EngineClosedError."""
        self._release()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> object:
        if self._batch[0] == ffi.NULL:
            raise EngineClosedError("the batch is closed: make a new one")
        return self._batch[0]
