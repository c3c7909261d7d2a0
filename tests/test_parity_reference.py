"""Our engine against the reference run live, on prompts no golden file has: every lattice of every round."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("dflash")

from golden.cases import CASES, PROMPT_LENGTH
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.lattice import Lattice, assert_same_lattice
from tiny.native import Native
from tiny.numbers import token_ids
from tiny.reference import Reference

pytestmark = pytest.mark.reference

CLOSE_CALL = 1e-4  # below, rounding may decide: the rounds before are compared, the run ends there


@pytest.mark.parametrize("name", CASES)
def test_live(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    case = CASES[name]
    head = HEADS[case.head]
    prompt = token_ids(1000, PROMPT_LENGTH + 9, 0, head.of.vocabulary.eos)
    run = Reference.tiny(head, tmp_path).run(prompt, case.n_tokens, case.width)
    with Native(*tiny.pair(case.head)) as engine:
        text = [engine.prefill(prompt)]
        n_compared = 0
        for turn in run.rounds:
            if min(turn.margin, turn.border) < CLOSE_CALL:
                break
            drafted = turn.drafted.tolist()
            if drafted:
                draft = engine.draft(len(drafted))
                assert draft.tokens == drafted
                assert_same_lattice(draft, Lattice(turn.candidates, turn.unary, turn.scores))
            verdict = engine.verify(drafted, case.n_tokens - len(text))
            assert len(verdict.tokens) == turn.n_committed
            text += verdict.tokens
            n_compared += 1
        assert text == run.committed[: len(text)]
        assert n_compared >= min(5, len(run.rounds))
