"""pydflash2 in a process of its own: `python ours_worker.py`, driven by a `process.Worker`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

import pydflash2
from compare.process import answer_requests

ENGINES: dict[str, pydflash2.Engine] = {}


def load(name: str, target: str, head: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Keeps the engine under `name` for the requests that follow."""
    ENGINES[name] = engine = pydflash2.load(target, head, **options)
    info = engine._native.head
    return {
        "block_size": engine.block_size,
        "round_nodes": None if info is None else getattr(info, "round_nodes", None),
    }


def generate(name: str, prompt: list[int], n: int, width: int) -> dict[str, Any]:
    """A greedy text of n tokens, drafted by the head alone, `width` tokens a round.

    `seconds` is the wall's, from the first token's arrival to the last's, and `n` the tokens in that time.
    """
    engine = ENGINES[name]
    first = end = perf_counter()
    text = ""
    n_tokens = n_first = 0
    stats = None
    for piece in engine.stream(prompt, max_tokens=n, max_draft_tokens=width):
        end = perf_counter()
        if n_tokens == 0:
            first, n_first = end, len(piece.tokens)
        n_tokens += len(piece.tokens)
        text += piece.text
        stats = piece.stats
    assert stats is not None
    return {
        "text": text,
        "n": n_tokens - n_first,
        "seconds": end - first,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rounds": stats.rounds,
        "prompt_n": stats.prompt_tokens - stats.reused_tokens,
        "prompt_seconds": stats.prefill_seconds,
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "drafting": stats.drafting,
    }


def rounds(name: str, prompt: list[int], width: int, n: int) -> dict[str, Any]:
    """Milliseconds of the two steps of n rounds, all of full width (the last ones of a text are shorter)."""
    engine = ENGINES[name]
    engine.prefill(prompt)
    draft_ms, verify_ms = [], []
    accepted = 0
    for _ in range(n):
        start = perf_counter()
        draft = engine.draft(max_draft_tokens=width)
        middle = perf_counter()
        accepted += engine.verify(draft).n_accepted
        draft_ms.append((middle - start) * 1000)
        verify_ms.append((perf_counter() - middle) * 1000)
    return {"draft_ms": draft_ms, "verify_ms": verify_ms, "accepted": accepted}


if __name__ == "__main__":
    answer_requests({"load": load, "generate": generate, "rounds": rounds})
