"""The C ABI's sequence under misuse, at the edges of context and batch, and over long texts.

The measure of a cache is an engine that has seen nothing but this text: its next lattice must be the same.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydflash2._native import ffi, lib
from tiny import head_file
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.lattice import Lattice, assert_same_lattice
from tiny.native import Native, NativeFailure
from tiny.numbers import token_ids

WIDTH = 7
CONTEXT = 128


@pytest.fixture
def engine(tiny: TinyFiles) -> Iterator[Native]:
    with Native(*tiny.pair("mixed"), context_size=CONTEXT, batch_size=32) as engine:
        yield engine


def text(n: int, seed: int = 0) -> list[int]:
    return token_ids(seed, n, 0, 256)


def step(engine: Native, max_tokens: int = 0) -> int:
    """One chunk of the prompt; returns the tokens left."""
    left = ffi.new("int32_t *")
    if lib.pd2_sequence_prefill(engine._sequence, max_tokens, left) != lib.PD2_OK:
        raise NativeFailure(lib.PD2_ERROR_ARGUMENT)
    return int(left[0])


def assert_drafts_like_a_fresh_engine(engine: Native, tiny: TinyFiles, name: str, context: int) -> None:
    *before, anchor = engine.tokens
    with Native(*tiny.pair(name), context_size=context) as fresh:
        assert fresh.prefill(before) == anchor
        expected = [fresh.draft(width) for width in (2, WIDTH)]
    # The narrow block first: rows that a wider one left in the cache must not be seen.
    for width, theirs in zip((2, WIDTH), expected, strict=True):
        ours = engine.draft(width)
        assert_same_lattice(ours, Lattice(theirs.candidates.astype(np.int64), theirs.unary, theirs.scores))


# ---- calls out of order --------------------------------------------------------------------------


def test_nothing_happens_before_a_prompt(engine: Native) -> None:
    for call, message in (
        (lambda: engine.draft(3), "no draft is possible: the prompt has not been decoded yet"),
        (lambda: engine.verify([]), "nothing to verify; prefill a prompt first"),
        (lambda: step(engine), "nothing to prefill; begin with a prompt first"),
    ):
        with pytest.raises(NativeFailure, match=f"^{message}$"):
            call()
    assert engine.tokens == []
    assert len(engine.logits()) == len(engine.features()) == 0


def test_a_half_read_prompt_is_not_a_text(engine: Native) -> None:
    engine.begin(text(60))
    assert step(engine, 25) == 35
    assert step(engine, 1) == 34
    with pytest.raises(NativeFailure, match="no draft is possible: the prompt has not been decoded yet"):
        engine.draft(3)
    with pytest.raises(NativeFailure, match="nothing to verify; prefill a prompt first"):
        engine.verify([])
    assert step(engine) == 2  # nothing was lost: a chunk is 32 at most
    assert step(engine) == 0
    with pytest.raises(NativeFailure, match="nothing to prefill"):
        step(engine)


@pytest.mark.parametrize("shared", [0, 20, 26, 59, 60])
def test_another_prompt_in_mid_prefill(engine: Native, tiny: TinyFiles, shared: int) -> None:
    first = text(60)
    engine.begin(first)
    step(engine, 26)
    second = [*first[:shared], *text(10, seed=1)]
    assert engine.begin(second) <= min(shared, 26)
    while step(engine) > 0:
        pass
    assert engine.tokens[:-1] == second
    assert_drafts_like_a_fresh_engine(engine, tiny, "mixed", CONTEXT)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has no tokens; give at least one (a BOS token, for example)"),
        ([5, -1], "token 1 of the prompt is -1, the target's ids are 0..319"),
        ([320], "token 0 of the prompt is 320, the target's ids are 0..319"),
        ([2**31 - 1], "token 0 of the prompt is 2147483647"),
        (
            [1] * CONTEXT,
            "the prompt has 128 tokens, the context holds 128 with at least one to",
        ),
        ([1] * 1000, "the prompt has 1000 tokens"),
    ],
)
def test_a_refused_prompt_changes_nothing(engine: Native, prompt: list[int], message: str) -> None:
    engine.prefill(text(40))
    before, expected = engine.tokens, engine.draft(WIDTH).scores
    with pytest.raises(NativeFailure, match=re.escape(message)):
        engine.begin(prompt)
    assert engine.tokens == before
    np.testing.assert_array_equal(engine.draft(WIDTH).scores, expected)


@pytest.mark.parametrize(
    ("draft", "max_commit", "message"),
    [
        ([1, 320], -1, "token 320 does not exist: the target's vocabulary has ids 0 to 319"),
        ([-1], -1, "token -1 does not exist"),
        ([1] * 32, -1, "a draft of 32 tokens; 0 to 31 can be verified at once"),
        ([1] * 5000, -1, "a draft of 5000 tokens; 0 to 31"),
        ([1], 0, "max_commit is 0; a round commits at least one token"),
    ],
)
def test_a_refused_draft_changes_nothing(
    engine: Native, draft: list[int], max_commit: int, message: str
) -> None:
    engine.prefill(text(90))
    before, expected = engine.tokens, engine.draft(WIDTH)
    with pytest.raises(NativeFailure, match=re.escape(message)):
        engine.verify(draft, max_commit)
    assert engine.tokens == before
    again = engine.draft(WIDTH)
    np.testing.assert_array_equal(again.scores, expected.scores)
    assert again.tokens == expected.tokens
    assert engine.verify(again.tokens).tokens


def test_more_rows_than_a_decode_may_judge(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("mixed")) as engine:
        engine.prefill(text(20))
        with pytest.raises(NativeFailure, match="65 rows are to be judged at once, but this engine has room"):
            engine.verify([1] * 64)
        assert len(engine.verify([1] * 63).tokens) >= 1
        assert_drafts_like_a_fresh_engine(engine, tiny, "mixed", 512)


@pytest.mark.parametrize("width", [0, -1, -(2**31)])
def test_a_draft_of_nothing(engine: Native, width: int) -> None:
    engine.prefill(text(20))
    with pytest.raises(NativeFailure, match=f"a draft of {width} tokens was asked for; 1 is the least"):
        engine.draft(width)


def test_any_width_is_cut_to_the_block(engine: Native) -> None:
    engine.prefill(text(20))
    assert len(engine.draft(2**31 - 1).tokens) == engine.head_info.block_size - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_threads": 513}, "n_threads is 513: ggml runs 512 at most"),
        (
            {"n_threads": 100000},
            "n_threads is 100000: ggml runs 512 at most",
        ),
        ({"n_threads": -1}, "n_threads is -1: give a number of threads"),
        ({"batch_size": -7}, "batch_size is -7: give at least 1 token"),
        ({"context_size": -1}, "context_size is -1: give a number of tokens"),
        ({"taps": 3}, "taps is 3; give one of pd2_taps"),
        ({"kv_type": "f8"}, "kv_type is 'f8'; possible are f16, f32, bf16, q8_0"),
        ({"drafter_kv_type": "q8_0"}, "drafter_kv_type is 'q8_0'; possible are f16, f32, bf16"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, tiny: TinyFiles) -> None:
    with pytest.raises(NativeFailure, match=re.escape(message)) as failure:
        Native(*tiny.pair("mixed"), **options)
    assert failure.value.status == lib.PD2_ERROR_ARGUMENT


# ---- edges of context and batch ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed", "sliding", "block-16"])
@pytest.mark.parametrize("n_prompt", [1, CONTEXT - 20, CONTEXT - 2, CONTEXT - 1])
def test_a_text_up_to_the_last_position(name: str, n_prompt: int, tiny: TinyFiles) -> None:
    prompt = text(n_prompt)
    with Native(*tiny.pair(name), context_size=CONTEXT) as engine:
        expected = engine.plain(prompt, CONTEXT + 1 - n_prompt)
        done = [engine.prefill(prompt)]
        while engine.draft_obstacle is None:
            room = CONTEXT - len(engine.tokens)
            draft = engine.draft(100).tokens
            assert len(draft) == min(engine.head_info.block_size - 1, room)
            done += engine.verify(draft).tokens
        assert engine.draft_obstacle == "the context is full"
        with pytest.raises(NativeFailure, match="no draft is possible: the context is full"):
            engine.draft(1)
        if len(engine.tokens) == CONTEXT:
            done += engine.verify([]).tokens
        assert done == expected
        with pytest.raises(NativeFailure, match="129 tokens are committed and 0 drafted, the context holds"):
            engine.verify([])
        assert engine.tokens == [*prompt, *expected]


def test_a_block_longer_than_what_is_left(tiny: TinyFiles, tmp_path: Path) -> None:
    long = dataclasses.replace(HEADS["mixed"], block_size=1024)
    head = head_file.write(long, tmp_path / "head.gguf")
    with Native(tiny.target("qwen3"), head, context_size=CONTEXT) as engine:
        engine.prefill(text(20))
        draft = engine.draft(5000)
        assert len(draft.tokens) == CONTEXT - 1 - 20
        assert np.isfinite(draft.scores).all()
        assert engine.verify(draft.tokens).tokens


@pytest.mark.parametrize(("batch_size", "most"), [(1, 0), (2, 1), (3, 2), (8, 7)])
@pytest.mark.parametrize("name", ["mixed", "last-tap", "qwen2"])
def test_batches_smaller_than_a_block(name: str, batch_size: int, most: int, tiny: TinyFiles) -> None:
    prompt = text(30)
    with Native(*tiny.pair(name), context_size=CONTEXT) as engine:
        expected = engine.plain(prompt, 20)
    with Native(*tiny.pair(name), context_size=CONTEXT, batch_size=batch_size) as engine:
        engine.prefill(prompt)
        if most == 0:
            with pytest.raises(NativeFailure, match="batch_size leaves no room for a drafted token"):
                engine.draft(WIDTH)
            with pytest.raises(NativeFailure, match="a draft of 1 tokens; 0 to 0 can be verified at once"):
                engine.verify([1])
            return
        assert len(engine.draft(100).tokens) == most
        assert engine.speculative(prompt, 20, 100)[0] == expected


# ---- long texts ----------------------------------------------------------------------------------

SLIDING = ["mixed", "narrow-window", "gemma3"]  # gemma3: the target itself has windows


def rounds(engine: Native, until: int, seed: int) -> None:
    """Goes on with drafts that are partly right, until `until` tokens are committed."""
    shifts = iter(token_ids(seed, 10 * until, 0, 10**6))
    while len(engine.tokens) < until:
        draft = engine.draft(1 + next(shifts) % WIDTH).tokens
        wrong = next(shifts) % (len(draft) + 1)
        engine.verify([token if i < wrong else (token + 1) % 256 for i, token in enumerate(draft)])


@pytest.mark.parametrize("name", SLIDING)
def test_a_ring_that_wraps_many_times(name: str, tiny: TinyFiles) -> None:
    with Native(*tiny.pair(name)) as engine:
        engine.prefill(text(20), chunk=7)
        for until in (60, 130, 330, 450):
            rounds(engine, until, seed=until)
            assert_drafts_like_a_fresh_engine(engine, tiny, name, 512)


@pytest.mark.parametrize("name", SLIDING)
def test_accepted_runs_across_the_rings_end(name: str, tiny: TinyFiles) -> None:
    """Drafts that are all right and all wrong by turns: cells are written and given back."""
    prompt = text(50)
    with Native(*tiny.pair(name)) as plain:
        known = plain.plain(prompt, 150)
    with Native(*tiny.pair(name)) as engine:
        engine.prefill(prompt)
        done = 1
        while done + 2 * WIDTH < len(known):
            for right in (0, WIDTH):
                engine.draft(WIDTH)
                draft = known[done : done + WIDTH]
                draft[right:] = [(token + 1) % 256 for token in draft[right:]]
                assert engine.verify(draft).n_accepted == right
                done += right + 1
        assert_drafts_like_a_fresh_engine(engine, tiny, name, 512)


@pytest.mark.parametrize("name", SLIDING)
def test_a_prefix_whose_window_was_overwritten(name: str, tiny: TinyFiles) -> None:
    """The drafter's windows forget what the target still has: not read again, acceptance collapses."""
    first = text(300)
    with Native(*tiny.pair(name)) as engine:
        for n_shared in (250, 64, 63, 1):
            engine.prefill(first)
            rounds(engine, 310, seed=n_shared)
            prompt = [*first[:n_shared], *text(5, seed=n_shared + 1)]
            assert engine.begin(prompt) <= n_shared
            engine.prefill(prompt)
            assert_drafts_like_a_fresh_engine(engine, tiny, name, 512)


@pytest.mark.parametrize("name", SLIDING)
def test_drafting_and_plain_requests_by_turns(name: str, tiny: TinyFiles) -> None:
    first = text(200)
    with Native(*tiny.pair(name)) as engine:
        for n_prompt, drafting in ((100, True), (160, False), (130, True), (200, False), (200, True)):
            engine.prefill(first[:n_prompt], drafting)
            if drafting:
                assert_drafts_like_a_fresh_engine(engine, tiny, name, 512)
            else:
                assert engine.draft_obstacle == "this text was begun without drafting"
            engine.verify([])


def test_two_engines_in_two_threads(tiny: TinyFiles) -> None:
    """Two heads at once: nothing of one engine's is in the other's drafts."""
    names = ["mixed", "block-16"]
    expected, found = {}, {}
    for name in names:
        with Native(*tiny.pair(name)) as engine:
            expected[name] = engine.speculative(text(40), 60, WIDTH)

    def work(name: str) -> None:
        with Native(*tiny.pair(name)) as engine:
            found[name] = [engine.speculative(text(40), 60, WIDTH) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: [expected[name]] * 3 for name in names}


# ---- features that no draft can see ---------------------------------------------------------------


def test_a_prompt_is_read_for_the_last_window_only(tiny: TinyFiles) -> None:
    prompt, window, chunk = text(100), HEADS["sliding"].window, 16
    assert window is not None
    with Native(*tiny.pair("sliding"), context_size=CONTEXT, batch_size=chunk) as engine:
        engine.begin(prompt)
        read = []
        while step(engine) > 0:
            read.append(len(engine.features()))
        read.append(len(engine.features()))
        # Chunks end at 16, 32, ... 96, 100; a block after 100 tokens sees from 100 - window + 1 on.
        seen = len(prompt) - window + 1
        assert read == [min(16, 100 - at) if at + 16 > seen else 0 for at in range(0, 100, 16)]
        skipping = engine.draft(WIDTH)
    with Native(*tiny.pair("sliding"), context_size=CONTEXT, batch_size=chunk) as engine:
        for end in range(4, 101, 4):  # text by text, each continuing the one before: every position is read
            engine.prefill(prompt[:end])
        everything = engine.draft(WIDTH)
    assert_same_lattice(
        skipping,
        Lattice(everything.candidates.astype(np.int64), everything.unary, everything.scores),
    )


def test_heads_with_full_layers_read_every_position(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("mixed"), context_size=CONTEXT, batch_size=16) as engine:
        engine.begin(text(100))
        read = []
        while step(engine) > 0:
            read.append(len(engine.features()))
        assert read == [16] * 6


def test_the_cache_of_a_sliding_head_does_not_grow_with_the_context(tiny: TinyFiles) -> None:
    sizes = []
    for context_size in (4096, 131072):
        with Native(*tiny.pair("sliding"), context_size=context_size) as engine:
            sizes.append(engine.head_info.cache_bytes)
    assert sizes[0] == sizes[1]


def test_plain_steps_between_drafts(tiny: TinyFiles, engine: Native) -> None:
    engine.prefill(text(20))
    for _ in range(40):  # more than wait for a draft
        engine.verify([])
    assert_drafts_like_a_fresh_engine(engine, tiny, "mixed", CONTEXT)


def test_a_draft_that_nobody_verifies_leaves_no_trace(tiny: TinyFiles, engine: Native) -> None:
    engine.prefill(text(20))
    for width in (7, 1, 5):
        engine.draft(width)
    engine.verify([])
    engine.draft(3)
    engine.verify([1, 2])
    assert_drafts_like_a_fresh_engine(engine, tiny, "mixed", CONTEXT)
