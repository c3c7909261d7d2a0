"""The C ABI as the tests drive it: one engine with one sequence, numpy arrays out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from pydflash2._native import ffi, lib

# Of heads whose targets are on the CPU; scripts/test_vulkan.sh and scripts/build_cuda.sh name another.
DRAFT_DEVICE = os.environ.get("PYDFLASH2_TEST_DRAFT_DEVICE")

Ids = npt.NDArray[np.int32]
Array = npt.NDArray[np.float32]


class NativeFailure(Exception):
    """A call returned a status other than PD2_OK; the text is pd2_last_error()'s."""

    def __init__(self, status: int) -> None:
        super().__init__(ffi.string(lib.pd2_last_error()).decode("utf-8", "replace"))
        self.status = status


@dataclass(frozen=True)
class Draft:
    tokens: list[int]  # [n]
    candidates: Ids  # [n, K]
    unary: Array  # [n, K]
    scores: Array  # [n, K, K]
    probabilities: Array  # [n]


@dataclass(frozen=True)
class Verdict:
    tokens: list[int]
    n_accepted: int
    has_bonus: bool
    finished: bool


def _check(status: int) -> None:
    if status != lib.PD2_OK:
        raise NativeFailure(status)


def _copy(pointer: Any, shape: tuple[int, ...], dtype: type) -> Any:
    n = int(np.prod(shape))
    if n == 0:
        return np.zeros(shape, dtype)
    return np.frombuffer(ffi.buffer(pointer, n * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()


class Native:
    """F32 caches unless told otherwise, so that numbers can be compared closely."""

    def __init__(
        self,
        target: Path,
        head: Path | None = None,
        *,
        context_size: int = 512,
        batch_size: int = 0,
        n_threads: int = 1,
        kv_type: str = "f32",
        drafter_kv_type: str = "f32",
        taps: int = lib.PD2_TAPS_AUTO,
        batch_invariant: bool = False,
        draft_vocabulary: int = -1,
    ) -> None:
        params = ffi.new("pd2_engine_params *")
        lib.pd2_engine_default_params(params)
        strings = [ffi.new("char[]", str(text).encode()) for text in (target, head, kv_type, drafter_kv_type)]
        params.target_path, params.kv_type, params.drafter_kv_type = strings[0], strings[2], strings[3]
        params.head_path = ffi.NULL if head is None else strings[1]
        params.context_size, params.batch_size, params.n_threads = context_size, batch_size, n_threads
        params.n_gpu_layers, params.taps = 0, taps
        draft_device = ffi.NULL if DRAFT_DEVICE is None else ffi.new("char[]", DRAFT_DEVICE.encode())
        params.draft_device = draft_device
        params.batch_invariant = batch_invariant
        params.draft_vocabulary = draft_vocabulary
        self.engine, self._sequence = ffi.NULL, ffi.NULL
        engine, sequence = ffi.new("pd2_engine **"), ffi.new("pd2_sequence **")
        _check(lib.pd2_engine_load(params, engine))
        self.engine = engine[0]
        _check(lib.pd2_sequence_create(self.engine, sequence))
        self._sequence = sequence[0]

    def __enter__(self) -> Native:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        lib.pd2_sequence_free(self._sequence)
        lib.pd2_engine_free(self.engine)

    @property
    def target_info(self) -> Any:
        info = ffi.new("pd2_target_info *")
        _check(lib.pd2_engine_target_info(self.engine, info))
        return info

    @property
    def head_info(self) -> Any:
        info = ffi.new("pd2_head_info *")
        _check(lib.pd2_engine_head_info(self.engine, info))
        return info

    @property
    def draft_obstacle(self) -> str | None:
        reason = lib.pd2_sequence_draft_obstacle(self._sequence)
        return None if reason == ffi.NULL else ffi.string(reason).decode()

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = ffi.new("int32_t[]", len(data) + 8)
        n = lib.pd2_tokenize(self.engine, data, len(data), True, False, tokens, len(data) + 8)
        return list(tokens[0:n])

    def begin(self, prompt: list[int], drafting: bool = True) -> int:
        """Sets the prompt; returns how many of its tokens the caches already held."""
        reused = ffi.new("int32_t *")
        _check(lib.pd2_sequence_begin(self._sequence, prompt, len(prompt), drafting, ffi.NULL, reused))
        return int(reused[0])

    def prefill(self, prompt: list[int], drafting: bool = True, chunk: int = 0) -> int:
        """Begins and decodes the prompt; returns the anchor."""
        self.begin(prompt, drafting)
        left = ffi.new("int32_t *", 1)
        while left[0] > 0:
            _check(lib.pd2_sequence_prefill(self._sequence, chunk, left))
        return self.tokens[-1]

    def draft(self, width: int) -> Draft:
        params, out = ffi.new("pd2_draft_params *"), ffi.new("pd2_draft *")
        lib.pd2_draft_default_params(params)
        params.width = width
        _check(lib.pd2_sequence_draft(self._sequence, params, out))
        n, k = out.proposal.n, out.proposal.k
        return Draft(
            tokens=_copy(out.proposal.tokens, (n,), np.int32).tolist(),
            candidates=_copy(out.candidates, (n, k), np.int32),
            unary=_copy(out.unary, (n, k), np.float32),
            scores=_copy(out.scores, (n, k, k), np.float32),
            probabilities=_copy(out.probabilities, (n,), np.float32),
        )

    def verify(self, draft: list[int], max_commit: int = -1) -> Verdict:
        out = ffi.new("pd2_verdict *")
        tokens = ffi.new("int32_t[]", draft)
        proposal = ffi.new("pd2_proposal *", {"n": len(draft), "tokens": tokens})
        _check(lib.pd2_sequence_verify(self._sequence, proposal, max_commit, out))
        return Verdict(list(out.tokens[0 : out.n]), out.n_accepted, out.has_bonus, out.finished)

    @property
    def tokens(self) -> list[int]:
        """Everything committed, prompt and anchor included."""
        n = lib.pd2_sequence_n_tokens(self._sequence)
        return list(lib.pd2_sequence_tokens(self._sequence)[0:n])

    def logits(self) -> Array:
        """[n_rows, n_vocab] of the last decode."""
        pointer, rows = ffi.new("const float **"), ffi.new("int32_t *")
        _check(lib.pd2_sequence_logits(self._sequence, pointer, rows))
        return _copy(pointer[0], (rows[0], self.target_info.n_vocab), np.float32)

    def features(self) -> Array:
        """[n_rows, n_taps * n_embd] of the last decode."""
        pointer, rows = ffi.new("const float **"), ffi.new("int32_t *")
        _check(lib.pd2_sequence_features(self._sequence, pointer, rows))
        return _copy(pointer[0], (rows[0], self.head_info.n_taps * self.target_info.n_embd), np.float32)

    # ---- whole texts -----------------------------------------------------------------------------

    def plain(self, prompt: list[int], n_tokens: int) -> list[int]:
        """Greedy text by one-token decoding, stopped at an end token."""
        text = [self.prefill(prompt, drafting=False)]
        while len(text) < n_tokens and not lib.pd2_token_is_end(self.engine, text[-1]):
            text += self.verify([]).tokens
        return text

    def speculative(self, prompt: list[int], n_tokens: int, width: int) -> tuple[list[int], list[Verdict]]:
        """The same with drafts of at most `width` tokens; also every round's verdict."""
        text = [self.prefill(prompt)]
        verdicts: list[Verdict] = []
        while len(text) < n_tokens and not lib.pd2_token_is_end(self.engine, text[-1]):
            left = n_tokens - len(text)
            proposed = self.draft(min(width, left - 1)).tokens if left > 1 else []
            verdicts.append(self.verify(proposed, left))
            text += verdicts[-1].tokens
        return text, verdicts
