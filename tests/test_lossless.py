"""Greedy text with drafts is the target's own, whatever the drafts: a head's, right ones, wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydflash2._native import lib
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.native import Array, Native
from tiny.numbers import token_ids

# One head a target; what each target stands for.
PAIRS = {
    "plain": "qwen3, taps wired",
    "tied-target": "tied embeddings, one K/V head",
    "llama": "taps wired, interleaved rope",
    "qwen2": "no taps in the graph, biases",
    "gemma3": "no taps in the graph, sliding window, tied and scaled embeddings",
    "phi3": "no taps in the graph, fused projections",
    "qwen3moe": "experts",
    "qwen35": "gated delta net, rolled back by snapshots",
    "chain": "drafts that are accepted",
}
N_TOKENS = 40


def prompts(head: str) -> list[list[int]]:
    end = min(HEADS[head].of.vocabulary.ends)
    high = 300 if end > 300 else 261  # within the vocabulary's ordinary tokens
    low = 5 if end < 5 else 0
    return [token_ids(seed, length, low, high) for seed, length in ((1, 5), (2, 23), (3, 60))]


@pytest.mark.parametrize("name", PAIRS)
def test_text_is_the_targets_own_at_every_width(name: str, tiny: TinyFiles) -> None:
    with Native(*tiny.pair(name)) as engine:
        for prompt in prompts(name):
            expected = engine.plain(prompt, N_TOKENS)
            assert len(set(expected)) > 1
            for width in range(1, HEADS[name].block_size):
                text, _ = engine.speculative(prompt, N_TOKENS, width)
                assert text == expected, f"width {width}"


def test_a_target_without_rollback_decodes_plainly_and_says_why(tiny: TinyFiles) -> None:
    prompt = token_ids(1, 20, 0, 300)
    with Native(tiny.target("qwen3next")) as alone:
        expected = alone.plain(prompt, 20)
    with Native(*tiny.pair("qwen3next")) as engine:
        text = [engine.prefill(prompt)]
        obstacle = engine.draft_obstacle
        assert obstacle is not None
        assert "take back" in obstacle
        while len(text) < 20:
            text += engine.verify([]).tokens
        assert text == expected


def test_drafts_that_fit_are_accepted(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("chain")) as engine:
        text, verdicts = engine.speculative(token_ids(2, 40, 0, 300), 120, 7)
    assert len(text) == 120
    accepted = [verdict.n_accepted for verdict in verdicts]
    assert 1 + np.mean(accepted) > 2
    assert {0, 7} <= set(accepted)  # rejection at once and the whole draft both happen
    assert any(0 < n < 7 for n in accepted)


# ---- forced drafts -------------------------------------------------------------------------------


@dataclass
class Forced:
    engine: Native
    prompt: list[int]
    expected: list[int]
    n_ordinary: int  # tokens a wrong draft may be made of


@pytest.fixture(scope="module", params=PAIRS)
def forced(request: pytest.FixtureRequest, tiny: TinyFiles) -> Iterator[Forced]:
    prompt = prompts(request.param)[1]
    with Native(*tiny.pair(request.param)) as engine:
        yield Forced(engine, prompt, engine.plain(prompt, N_TOKENS), 250)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(1, 200)), min_size=1, max_size=12
    )
)
def test_any_draft_is_cut_where_the_target_disagrees(
    forced: Forced, rounds: list[tuple[int, int, int]]
) -> None:
    """A round is (width, where the draft goes wrong, by how much); wrong past the width: all is right."""
    engine, expected = forced.engine, forced.expected
    done = 1
    assert engine.prefill(forced.prompt) == expected[0]
    for width, wrong_at, shift in rounds:
        draft = expected[done : done + width]
        if not draft and done >= len(expected):
            break
        n_right = len(draft)
        if wrong_at < len(draft):
            draft[wrong_at] = (draft[wrong_at] + shift) % 256
            n_right = wrong_at
        verdict = engine.verify(draft)
        n_known = len(expected) - done  # the bonus may lie past the text we know
        assert verdict.n_accepted == n_right
        assert verdict.tokens[:n_known] == expected[done : done + len(verdict.tokens)]
        ended = lib.pd2_token_is_end(engine.engine, verdict.tokens[-1])
        assert verdict.finished == ended
        assert len(verdict.tokens) == n_right + verdict.has_bonus
        assert verdict.has_bonus or ended
        done += len(verdict.tokens)
        if verdict.finished:
            break
    assert engine.tokens[len(forced.prompt) :][: len(expected)] == expected[:done]


def test_an_end_token_inside_the_accepted_run_cuts_it(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("chain-ending")) as engine:
        prompt = token_ids(0, 40, 0, 300)
        expected = engine.plain(prompt, N_TOKENS)
        end = expected[-1]
        assert lib.pd2_token_is_end(engine.engine, end)
        engine.prefill(prompt)
        verdict = engine.verify([*expected[1:], 7, 7][:7])
        assert verdict.tokens == expected[1:]
        assert verdict.finished
        assert not verdict.has_bonus
        assert verdict.n_accepted == len(expected) - 1


def test_max_commit_cuts_the_run_and_the_text_goes_on(tiny: TinyFiles) -> None:
    with Native(*tiny.pair("plain")) as engine:
        prompt = prompts("plain")[1]
        expected = engine.plain(prompt, N_TOKENS)
        engine.prefill(prompt)
        verdict = engine.verify(expected[1:8], 3)
        assert verdict.tokens == expected[1:4]
        assert engine.verify(expected[4:9]).tokens == expected[4:10]


# ---- requests after requests ---------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_second_requests_and_shared_prefixes_are_as_good_as_fresh(name: str, tiny: TinyFiles) -> None:
    """The same text and, round by round, the same acceptance as an engine that has seen nothing."""
    first = prompts(name)[2]
    with Native(*tiny.pair(name)) as engine:
        text, _ = engine.speculative(first, N_TOKENS, 7)
        sequel = [*first, *text[:20], *prompts(name)[0]]
        for prompt in (first, first, sequel, first[:30], [*first[:30], 9, 8, 7], prompts(name)[0]):
            with Native(*tiny.pair(name)) as fresh:
                expected = fresh.speculative(prompt, N_TOKENS, 7)
            assert engine.speculative(prompt, N_TOKENS, 7) == expected


def test_a_shared_prefix_needs_no_prefill(tiny: TinyFiles) -> None:
    first = prompts("plain")[2]
    with Native(*tiny.pair("plain")) as engine:
        assert engine.begin(first) == 0
        engine.speculative(first, N_TOKENS, 7)
        assert engine.begin([*first[:50], 1, 2, 3]) == 50


def test_drafting_after_a_plain_request_reads_the_features_it_lacks(tiny: TinyFiles) -> None:
    prompt = prompts("chain")[2]
    with Native(*tiny.pair("chain")) as fresh:
        expected = fresh.speculative(prompt, N_TOKENS, 7)
    with Native(*tiny.pair("chain")) as engine:
        assert engine.plain(prompt, N_TOKENS) == expected[0]
        assert engine.speculative(prompt, N_TOKENS, 7) == expected


# ---- quantised targets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file_type"),
    [("llama", "q4_0"), ("qwen35", "bf16"), ("qwen3moe", "q8_0"), ("chain-wide", "q8_0")],
)
def test_quantised_text_departs_only_at_near_ties(name: str, file_type: str, tiny: TinyFiles) -> None:
    """ggml's kernels for these weights change with the number of rows (4, 8 ..). Where a text departs from
    the plain one, the target's two best tokens must be closer than its logits move between row counts."""
    n_texts, departures = 0, []
    with Native(*tiny.pair(name, file_type)) as engine:
        for seed in range(6):
            prompt = token_ids(seed, 30, 0, 300)
            expected, one_row = plain_with_logits(engine, prompt, N_TOKENS)
            for width in range(1, 8):
                moved = row_count_difference(engine, prompt, expected, one_row, width)
                text, _ = engine.speculative(prompt, N_TOKENS, width)
                n_texts += 1
                if text != expected:
                    at = next(i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b)
                    second, best = np.sort(one_row[at])[-2:]
                    departures.append((width, float(best - second), moved))
    print(f"{name} {file_type}: {len(departures)} of {n_texts} depart; (width, gap, moved): {departures}")
    for _, gap, moved in departures:
        assert gap <= 2 * moved


def plain_with_logits(engine: Native, prompt: list[int], n: int) -> tuple[list[int], list[Array]]:
    """Greedy text and, for each token, the logits [n_vocab] it was chosen from."""
    text = [engine.prefill(prompt, drafting=False)]
    logits = [engine.logits()[-1]]
    while len(text) < n and not lib.pd2_token_is_end(engine.engine, text[-1]):
        text += engine.verify([]).tokens
        logits.append(engine.logits()[-1])
    return text, logits


def row_count_difference(
    engine: Native, prompt: list[int], text: list[int], one_row: list[Array], width: int
) -> float:
    """The most a logit moves when the text is decoded width + 1 rows at a time."""
    engine.prefill(prompt, drafting=False)
    done, moved = 1, 0.0
    while done + width <= len(text):
        engine.verify(text[done : done + width])
        for row, logits in enumerate(engine.logits()):
            if done + row < len(text):
                moved = max(moved, float(np.abs(logits - one_row[done + row]).max()))
        done = len(engine.tokens) - len(prompt)
        if engine.tokens[len(prompt) :] != text[:done]:  # departed: the rest is another text
            break
    return moved
