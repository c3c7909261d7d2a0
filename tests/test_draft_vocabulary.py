"""Drafts over a part of the vocabulary: the same scores, and only tokens that are in it or in the text."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

import pydflash2
from pydflash2._native import lib
from tiny.files import TinyFiles
from tiny.native import Draft, Native, NativeFailure
from tiny.numbers import token_ids

PROMPT = token_ids(3, 40, 0, 60)


def vocabulary(tiny: TinyFiles, head: str) -> int:
    with Native(*tiny.pair(head), draft_vocabulary=-1) as engine:
        n_vocab = int(engine.target_info.n_vocab)
        assert engine.head_info.n_candidates == n_vocab
        return n_vocab


def lattice(tiny: TinyFiles, head: str, file_type: str, n: int) -> Draft:
    with Native(*tiny.pair(head, file_type), draft_vocabulary=n) as engine:
        engine.prefill(PROMPT)
        return engine.draft(7)


def by_token(draft: Draft, t: int) -> dict[int, float]:
    return dict(zip(draft.candidates[t].tolist(), draft.unary[t].tolist(), strict=True))


@pytest.mark.parametrize("file_type", ["f32", "q8_0"])
@pytest.mark.parametrize("head", ["plain", "mixed", "gemma3", "tied-target"])
def test_scores_are_those_of_the_whole_vocabulary(tiny: TinyFiles, head: str, file_type: str) -> None:
    full = lattice(tiny, head, file_type, -1)
    for n in (vocabulary(tiny, head) - 1, vocabulary(tiny, head) // 2):
        part = lattice(tiny, head, file_type, n)
        compared = 0
        for t in range(7):
            theirs, ours = by_token(full, t), by_token(part, t)
            assert len(ours) == len(theirs)
            for token in theirs.keys() & ours.keys():
                assert ours[token] == pytest.approx(theirs[token], rel=1e-5, abs=1e-5)
                compared += 1
            # The best of what is there: nothing that the whole vocabulary ranks higher was passed over.
            missing = theirs.keys() - ours.keys()
            if n == vocabulary(tiny, head) - 1:
                assert len(missing) <= 1
        assert compared >= 7


@pytest.mark.parametrize("n", [20, 100])
def test_every_candidate_is_another_token(tiny: TinyFiles, n: int) -> None:
    with Native(*tiny.pair("plain"), draft_vocabulary=n) as engine:
        n_vocab = engine.target_info.n_vocab
        for seed in range(6):  # more tokens than there are places
            engine.prefill(token_ids(seed, 200, 0, 256))
            for _ in range(4):
                draft = engine.draft(7)
                assert all(len(set(row)) == len(row) for row in draft.candidates.tolist())
                assert draft.candidates.max() < n_vocab
                engine.verify(draft.tokens)


def test_tokens_of_the_text_are_taken_in(tiny: TinyFiles) -> None:
    rare = token_ids(5, 60, 200, 235)
    found = 0
    for prompt in (rare, [*PROMPT, *rare]):
        lattices = []
        for n in (-1, 160):
            with Native(*tiny.pair("plain"), draft_vocabulary=n) as engine:
                engine.prefill(prompt)
                lattices.append(engine.draft(7).candidates.tolist())
        for full, part in zip(*lattices, strict=True):
            of_the_text = set(full) & set(rare)
            assert of_the_text <= set(part)
            found += len(of_the_text)
    assert found > 0


def test_a_head_that_brings_its_own_keeps_it(tiny: TinyFiles) -> None:
    for head in ("reduced-vocabulary", "own-output"):
        with Native(*tiny.pair(head), draft_vocabulary=30) as engine:
            assert engine.head_info.n_candidates == engine.head_info.n_draft_vocab != 30


def test_a_small_vocabulary_is_used_whole(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("plain"), draft_vocabulary=0) as engine:
        assert engine.head_info.n_candidates == engine.target_info.n_vocab


def test_what_cannot_be(tiny: TinyFiles) -> None:
    with pytest.raises(NativeFailure, match="draft_vocabulary is -2; give a number of tokens") as failure:
        Native(*tiny.pair("plain"), draft_vocabulary=-2)
    assert failure.value.status == lib.PD2_ERROR_ARGUMENT
    for wrong, message in (
        ("all", 'give a number of tokens, "auto" or "full"'),
        (0, "draft_vocabulary is 0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            pydflash2.load(*tiny.pair("plain"), draft_vocabulary=wrong)  # type: ignore[arg-type]


def test_the_text_is_the_same(tiny: TinyFiles) -> None:
    texts = []
    for n in ("full", 40):
        with pydflash2.load(*tiny.pair("chain"), n_threads=1, draft_vocabulary=n) as engine:  # type: ignore[arg-type]
            texts.append(engine.generate("the cat", max_tokens=60, max_draft_tokens=7).tokens)
    assert texts[0] == texts[1]


def test_drafts_depend_on_the_text_alone(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("plain"), draft_vocabulary=48) as engine:
        engine.prefill(PROMPT)
        first = engine.draft(7)
        for seed in range(3):  # other texts' tokens come and go
            engine.prefill(token_ids(seed, 150, 0, 256))
        engine.prefill(PROMPT)
        again = engine.draft(7)
    assert [sorted(row) for row in first.candidates] == [sorted(row) for row in again.candidates]


def in_parts(target: Path, folder: Path, n_tensors: int) -> Path:
    """The same target in files of `n_tensors` each, as llama.cpp splits large ones: the first."""
    reader = gguf.GGUFReader(target)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(
        folder / "target.gguf", architecture, use_temp_file=False, split_max_tensors=n_tensors
    )
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.glob("target-00001-of-*.gguf"))


@pytest.mark.parametrize("head", ["plain", "tied-target"])
@pytest.mark.parametrize("n_tensors", [1, 7])
def test_a_target_in_several_files(head: str, n_tensors: int, tiny: TinyFiles, tmp_path: Path) -> None:
    """Its output table may lie in any of them."""
    whole, head_file = tiny.pair(head)
    first = in_parts(whole, tmp_path, n_tensors)
    drafts = []
    for target in (whole, first):
        with Native(target, head_file, draft_vocabulary=100) as engine:
            engine.prefill(PROMPT)
            drafts.append(engine.draft(7))
    np.testing.assert_array_equal(drafts[0].scores, drafts[1].scores)
    np.testing.assert_array_equal(drafts[0].candidates, drafts[1].candidates)
