"""Our engine against the reference's golden files: every draft, every lattice, every committed token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.cases import CASES, load
from pydflash2._native import lib
from tiny import head_file
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.lattice import assert_same_lattice
from tiny.native import Native
from tiny.numbers import token_ids


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, tiny: TinyFiles) -> None:
    case, golden = CASES[name], load(name)
    with Native(*tiny.pair(case.head)) as engine:
        text = [engine.prefill(golden.prompt)]
        for index, turn in enumerate(golden.rounds):
            assert len(golden.prompt) + len(text) - 1 == turn.position
            assert text[-1] == turn.anchor
            if turn.drafted:
                draft = engine.draft(len(turn.drafted))
                assert draft.tokens == turn.drafted, f"round {index}"
                if index in golden.lattices:
                    assert_same_lattice(draft, golden.lattices[index])
            verdict = engine.verify(turn.drafted, case.n_tokens - len(text))
            assert len(verdict.tokens) == turn.n_committed
            assert verdict.n_accepted == min(turn.n_accepted, turn.n_committed)
            text += verdict.tokens
        assert text == golden.committed
        assert engine.tokens == golden.prompt + golden.committed


# What engines got wrong before, each a change to the head file that no error would betray.
WRONG = [
    ("mixed", {"window": 10}),
    ("sliding", {"window": 11}),
    ("narrow-window", {"window": 4}),
    ("causal", {"causal": False}),
    ("causal-absent", {"causal": False}),
    ("causal-absent", {"causal": True}),
    ("window-off", {"causal": False}),
    ("plain", {"taps": (0, 3)}),
    ("taps-out-of-order", {"taps": (0, 2, 3)}),
    ("last-tap", {"taps": (1, 3)}),
    ("scaled", {"output_multiplier": None}),
    ("scaled", {"soft_cap": None}),
    ("scaled", {"embedding_scale": None}),
    ("taps-out-of-order", {"rope_theta": 10000.0}),
    ("yarn", {"yarn_factor": None}),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_a_head_read_wrongly_is_noticed(
    name: str, change: dict[str, Any], tiny: TinyFiles, tmp_path: Path
) -> None:
    golden = load(name)
    wrong = head_file.write(dataclasses.replace(HEADS[name], **change), tmp_path / "head.gguf")
    with Native(tiny.pair(name)[0], wrong) as engine:
        engine.prefill(golden.prompt)
        with pytest.raises(AssertionError):
            assert_same_lattice(engine.draft(HEADS[name].block_size - 1), golden.lattices[0])


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("name", ["mixed", "last-tap", "narrow-window-causal"])
def test_prefill_in_chunks_changes_no_draft(name: str, chunk: int, tiny: TinyFiles) -> None:
    golden = load(name)
    with Native(*tiny.pair(CASES[name].head)) as engine:
        assert engine.prefill(golden.prompt, chunk=chunk) == golden.committed[0]
        assert_same_lattice(engine.draft(7), golden.lattices[0])


def test_drafting_twice_changes_nothing(tiny: TinyFiles) -> None:
    golden = load("chain")
    with Native(*tiny.pair("chain")) as engine:
        engine.prefill(golden.prompt)
        engine.draft(3)
        first, second = engine.draft(7), engine.draft(7)
        assert first.tokens == second.tokens == golden.rounds[0].drafted
        np.testing.assert_array_equal(first.scores, second.scores)
        assert engine.tokens == [*golden.prompt, golden.committed[0]]


def test_probabilities_are_those_of_the_path(tiny: TinyFiles) -> None:
    golden = load("chain")
    with Native(*tiny.pair("chain")) as engine:
        engine.prefill(golden.prompt)
        draft = engine.draft(7)
    before = 0
    for step, token in enumerate(draft.tokens):
        row = draft.scores[step, before].astype(np.float64)
        before = int(row.argmax())
        assert draft.candidates[step, before] == token
        probability = 1.0 / np.exp(row - row.max()).sum()
        assert draft.probabilities[step] == pytest.approx(probability, rel=1e-5)


def test_degenerate_sections_change_no_number(tiny: TinyFiles) -> None:
    """A head for an M-RoPE target rotates text as plain rope does."""
    target, plain = tiny.pair("mixed")
    sections = head_file.write(HEADS["mixed"], plain.with_name("mixed-sections.gguf"), mrope=True)
    prompt = token_ids(3, 40, 0, 300)
    lattices = []
    for head in (plain, sections):
        with Native(target, head) as engine:
            engine.prefill(prompt)
            lattices.append(engine.draft(7))
    assert lattices[0].tokens == lattices[1].tokens
    np.testing.assert_allclose(lattices[0].scores, lattices[1].scores, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen3moe", "qwen35", "qwen3next"])
def test_wired_taps_and_callback_read_the_same(name: str, tiny: TinyFiles) -> None:
    pair = tiny.pair("plain" if name == "qwen3" else name)
    prompt = token_ids(4, 24, 0, 300)
    rows = []
    for taps in (lib.PD2_TAPS_WIRED, lib.PD2_TAPS_CALLBACK):
        with Native(*pair, taps=taps) as engine:
            assert engine.target_info.taps_wired == (taps == lib.PD2_TAPS_WIRED)
            engine.prefill(prompt)
            prefilled = engine.features()
            engine.verify(
                [] if name == "qwen3next" else engine.draft(5).tokens
            )  # that one cannot take tokens back
            rows.append((prefilled, engine.features()))
    for wired, called in zip(*rows, strict=True):
        assert wired.shape == called.shape
        np.testing.assert_allclose(wired, called, rtol=1e-5, atol=1e-5 * np.abs(wired).max())
