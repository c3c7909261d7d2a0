"""The packaged demo pair against the reference on the same prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("dflash")

from test_lossless_demo import MAX_PROMPT, N_TOKENS, sources

from pydflash2 import model_files
from pydflash2._native import lib
from tiny import unpack
from tiny.native import Native
from tiny.reference import Reference, Run

pytestmark = pytest.mark.reference

N_PROMPTS = 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo pair with its very weights, but in F32: what remains between the two sides is rounding."""
    folder = tmp_path_factory.mktemp("demo")
    target, head = model_files.demo_pair()
    return unpack.as_f32(target, folder / "target.gguf"), unpack.as_f32(head, folder / "head.gguf")


@pytest.fixture(scope="module")
def runs(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    with Native(pair[0]) as engine:
        prompts = [engine.tokenize(text)[:MAX_PROMPT] for text in sources(N_PROMPTS)]
        ends = [t for t in range(engine.target_info.n_vocab) if lib.pd2_token_is_end(engine.engine, t)]
    target, weights = unpack.target(pair[0])
    head = unpack.checkpoint(pair[1], target.n_layer)
    reference = Reference(target, weights, head, ends, tmp_path_factory.mktemp("checkpoint"))
    return [reference.run(prompt, N_TOKENS) for prompt in prompts]


def test_every_round_is_the_references(pair: tuple[Path, Path], runs: list[Run]) -> None:
    """Up to the first round in which a choice hangs on less than rounding does."""
    n_compared = 0
    with Native(*pair) as engine:
        for run in runs:
            text = [engine.prefill(run.prompt)]
            for turn in run.rounds:
                if turn.margin < 1e-3:
                    break
                drafted = turn.drafted.tolist()
                if drafted:
                    assert engine.draft(len(drafted)).tokens == drafted
                text += engine.verify(drafted, N_TOKENS - len(text)).tokens
                assert text == run.committed[: len(text)]
                n_compared += 1
    assert n_compared > 5 * N_PROMPTS


def test_acceptance_by_position_is_the_references(runs: list[Run]) -> None:
    """The pair as packaged: quantised weights and F16 caches may move a draft here and there, no more."""
    ours, theirs = [], [turn.n_accepted for run in runs for turn in run.rounds]
    with Native(
        *model_files.demo_pair(), kv_type="f16", drafter_kv_type="f16", draft_vocabulary=-1
    ) as engine:
        width = engine.head_info.block_size - 1
        for run in runs:
            _, verdicts = engine.speculative(run.prompt, N_TOKENS, width)
            ours += [verdict.n_accepted for verdict in verdicts]
    for position in range(width):
        reached = np.mean(np.array(theirs) > position), np.mean(np.array(ours) > position)
        noise = np.sqrt(2 * 0.25 / len(theirs))
        assert abs(reached[0] - reached[1]) < 3 * noise, f"position {position}: {reached}"
