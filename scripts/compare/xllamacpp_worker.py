"""xllamacpp in an environment of its own: `python xllamacpp_worker.py`, driven by a `process.Worker`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

import xllamacpp

from compare.process import answer_requests

SERVERS: list[Any] = []


def load(target: str, head: str, width: int, context_size: int, n_threads: int) -> dict[str, Any]:
    """What `Pair.options` gives llama-server."""
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = context_size
    params.n_parallel = 1
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
    draft = params.speculative.draft
    draft.mparams.path = head
    draft.n_max = width
    draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = n_threads
    SERVERS[:] = [xllamacpp.Server(params)]
    return {"build": str(xllamacpp.BUILD_INFO)}


def generate(body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = SERVERS[0].handle_completions(body)
    return answer


if __name__ == "__main__":
    answer_requests({"load": load, "generate": generate})
