"""Sampling on tiny models: seeds, log-probabilities, samplers with state, cut drafts, drafts by hand.

That the target's distribution is kept is tests/test_distribution.py's matter.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pydflash2
from pydflash2.settings import Request
from tiny.files import TinyFiles

PROMPT = "the cat sat on"
WARM: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40}


@pytest.fixture(scope="module")
def chain(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    """Predictable: most drafts are accepted."""
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, kv_type="f32") as engine:
        yield engine


# ---- seeds -----------------------------------------------------------------------------------------------


def test_a_seed_gives_its_text_again(chain: pydflash2.Engine) -> None:
    first = chain.generate(PROMPT, seed=6, max_draft_tokens=7, **WARM)
    other = chain.generate(PROMPT, seed=8, max_draft_tokens=7, **WARM)
    again = chain.generate(PROMPT, seed=6, max_draft_tokens=7, **WARM)
    assert first.tokens == again.tokens != other.tokens
    assert (first.seed, other.seed, chain.seed) == (6, 8, 6)
    assert first.stats.accepted > 0


def test_a_fresh_seed_is_returned(chain: pydflash2.Engine) -> None:
    settings = WARM
    results = [chain.generate(PROMPT, **settings) for _ in range(3)]
    assert len({result.seed for result in results}) == 3
    assert chain.generate(PROMPT, seed=results[1].seed, **settings).tokens == results[1].tokens


def test_samples_of_one_prompt(chain: pydflash2.Engine) -> None:
    results = chain.samples(PROMPT, 3, seed=2**64 - 2, **WARM)
    assert [result.seed for result in results] == [2**64 - 2, 2**64 - 1, 0]
    assert [result.stats.reused_tokens > 0 for result in results[1:]] == [True, True]
    for result in results:
        assert result.tokens == chain.generate(PROMPT, seed=result.seed, **WARM).tokens
    with pytest.raises(ValueError, match="n is 0"):
        chain.samples(PROMPT, 0)


def test_one_token_left_is_greedy(chain: pydflash2.Engine) -> None:
    greedy = chain.generate(PROMPT, max_tokens=40)
    assert chain.generate(PROMPT, top_k=1, **WARM).tokens == greedy.tokens
    assert chain.generate(PROMPT, temperature=1e-30, max_tokens=40).tokens == greedy.tokens


def test_a_draft_that_failed_leaves_the_text_where_it_was(chain: pydflash2.Engine) -> None:
    """The source of chance and every sampler's state too."""
    settings: dict[str, Any] = {"temperature": 1.0, "repeat_penalty": 1.2, "seed": 5}

    def text(fail: bool) -> list[int]:
        chain.prefill(PROMPT, **settings)
        for _ in range(6):
            draft = chain.draft(4)
            if fail:
                with pytest.raises(ValueError, match="drafted token 0 gives token"):
                    chain.verify(dataclasses.replace(draft, proposal=np.zeros_like(draft.proposal)))
            chain.verify(draft)
        return chain.tokens

    assert text(fail=True) == text(fail=False)


# ---- log-probabilities -----------------------------------------------------------------------------------


def test_logprobs_are_the_same_without_speculation(chain: pydflash2.Engine) -> None:
    settings: dict[str, Any] = {"max_tokens": 40, "logprobs": 3, "repeat_penalty": 8.0}
    plain = chain.generate(PROMPT, speculate=False, **settings)
    drafted = chain.generate(PROMPT, max_draft_tokens=7, **settings)
    assert drafted.stats.accepted > 0
    assert plain.logprobs is not None and drafted.logprobs is not None
    assert [entry.token for entry in drafted.logprobs] == drafted.tokens == plain.tokens
    for one, other in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)
        assert [value for _, value in other.top] == pytest.approx([value for _, value in one.top], abs=1e-3)


def test_logprobs_are_the_targets_own(chain: pydflash2.Engine) -> None:
    """Of its logits as they are: neither temperature, penalties nor a bias show in them."""
    result = chain.generate(
        PROMPT, max_tokens=30, temperature=5, seed=1, logprobs=320, logit_bias={9: 50}, repeat_penalty=3
    )
    assert result.logprobs is not None
    for entry in result.logprobs:
        values = dict(entry.top)
        assert sum(np.exp(list(values.values()))) == pytest.approx(1, abs=1e-4)
        assert entry.top == sorted(entry.top, key=lambda pair: -pair[1])
        assert entry.logprob == values[entry.token]
    assert 9 in result.tokens
    assert max(entry.logprob for entry in result.logprobs if entry.token == 9) < -3  # with the bias: about 0


def test_logprobs_of_a_text_that_a_stop_string_cuts(chain: pydflash2.Engine) -> None:
    whole = chain.generate(PROMPT, max_tokens=30)
    stop = whole.text[len(whole.text) // 2 :][:3]
    pieces = list(chain.stream(PROMPT, max_tokens=30, stop=stop, logprobs=0))
    entries = [entry for piece in pieces for entry in piece.logprobs or []]
    tokens = [token for piece in pieces for token in piece.tokens]
    assert [entry.token for entry in entries] == tokens
    assert all(entry.top == [] for entry in entries)
    assert len(tokens) < 30


def test_no_logprobs_unless_asked_for(chain: pydflash2.Engine) -> None:
    assert chain.generate(PROMPT, max_tokens=3).logprobs is None


# ---- samplers with state ---------------------------------------------------------------------------------

STATEFUL: list[dict[str, Any]] = [
    {"repeat_penalty": 8.0},
    {"presence_penalty": 30.0, "penalty_last_n": 20},
    {"frequency_penalty": 20.0, "penalty_last_n": -1},
    {"logit_bias": {100: 4.0, 101: -np.inf}},
    {"grammar": 'root ::= ([a-z] [a-z]? " ")* "."'},
    {"grammar": "root ::= [^G]*", "repeat_penalty": 1.3, "logit_bias": {97: 2.0}},
]


@pytest.mark.parametrize("settings", STATEFUL, ids=lambda settings: "+".join(settings))
@pytest.mark.parametrize("width", [1, 3, 7])
def test_greedy_text_is_the_targets_own(
    chain: pydflash2.Engine, settings: dict[str, Any], width: int
) -> None:
    plain = chain.generate(PROMPT, max_tokens=40, speculate=False, **settings)
    drafted = chain.generate(PROMPT, max_tokens=40, max_draft_tokens=width, **settings)
    assert drafted.tokens == plain.tokens
    assert drafted.tokens != chain.generate(PROMPT, max_tokens=40).tokens  # the settings do something
    assert drafted.stats.rounds > 0


def test_penalties_still_accept(chain: pydflash2.Engine) -> None:
    for settings in STATEFUL[:3]:
        result = chain.generate(PROMPT, seed=3, max_draft_tokens=7, **WARM, **settings)
        assert result.stats.accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_and_cuts_drafts(chain: pydflash2.Engine, temperature: float) -> None:
    form = re.compile(r"(?:[a-z]{1,3},)*[a-z]{0,3}")
    for seed in range(5):
        chain.prefill(
            PROMPT, temperature=temperature, seed=seed, grammar='root ::= ([a-z] [a-z]? [a-z]? ",")* [a-z]'
        )
        for _ in range(8):
            draft = chain.draft()
            start = len(chain.tokenize(PROMPT))
            assert form.fullmatch(chain.detokenize(chain.tokens[start:] + draft.tokens))
            if chain.verify(draft).finished:
                break


def test_an_end_that_a_grammar_demands(chain: pydflash2.Engine) -> None:
    result = chain.generate(PROMPT, grammar='root ::= "yes" | "no"', max_tokens=40)
    assert (result.text in ("yes", "no"), result.finish_reason) == (True, "stop")


def test_nothing_left_to_choose(chain: pydflash2.Engine) -> None:
    everything = dict.fromkeys(range(320), -np.inf)
    with pytest.raises(ValueError, match="logit_bias left no token to continue with"):
        chain.generate(PROMPT, max_tokens=2, logit_bias=everything)
    assert chain.generate(PROMPT, max_tokens=2).tokens  # the engine goes on


# ---- how drafts are chosen -------------------------------------------------------------------------------


def test_drafts_end_where_their_probability_falls_too_low(chain: pydflash2.Engine) -> None:
    full, cut, none = (
        chain.generate(PROMPT, max_tokens=60, max_draft_tokens=7, min_draft_probability=least)
        for least in (0.0, 0.5, 1.0)
    )
    assert full.tokens == cut.tokens == none.tokens
    assert full.stats.drafted > cut.stats.drafted > none.stats.drafted
    for result in (full, cut, none):
        widths = result.stats.rounds_by_width
        assert sum(widths) == result.stats.rounds
        assert sum(width * rounds for width, rounds in enumerate(widths)) == result.stats.drafted
    assert none.stats.rounds_by_width[0] > 0.9 * none.stats.rounds  # a softmax can round to 1

    chain.prefill(PROMPT)
    draft, whole = chain.draft(min_probability=0.3), chain.draft()
    so_far = np.cumprod(whole.probabilities)
    assert len(draft) == np.count_nonzero(so_far >= 0.3)
    assert draft.tokens == whole.tokens[: len(draft)]


def test_what_a_token_was_drawn_from(chain: pydflash2.Engine) -> None:
    chain.prefill(PROMPT, temperature=0.8, seed=1)
    draft = chain.draft()
    assert draft.proposal is not None
    assert draft.proposal.shape == draft.candidates.shape == draft.scores.shape
    share = Request.of({"temperature": 0.8}).draft_temperature
    weights = np.exp((draft.scores - draft.scores.max(1, keepdims=True)) / share)
    np.testing.assert_allclose(draft.proposal, weights / weights.sum(1, keepdims=True), atol=1e-6)
    for token, candidates, q, probability in zip(
        draft.tokens, draft.candidates, draft.proposal, draft.probabilities, strict=True
    ):
        assert q[candidates == token] == [probability]
    assert chain.draft(temperature=0.0).proposal is None
    drawn = {tuple(chain.draft().tokens) for _ in range(20)}
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proposal": np.full((3, 4), np.nan, np.float32)}, "has a probability of nan"),
        ({"proposal": np.full((3, 4), -1, np.float32)}, "has a probability of -1"),
        ({"proposal": np.full((3, 4), 0.9, np.float32)}, "all candidates together 3.6"),
        ({"proposal": np.full((2, 4), 0.25, np.float32)}, r"a proposal of shape \(2, 4\)"),
        ({"proposal": np.full(12, 0.25, np.float32)}, r"a proposal of shape \(12,\)"),
        ({"candidates": np.zeros((3, 4), np.int32)}, "the probability 0 and"),
        ({"tokens": [5, 6]}, "the draft has 2 tokens, candidates of shape"),
    ],
)
def test_a_draft_that_was_tampered_with(
    chain: pydflash2.Engine, change: dict[str, Any], message: str
) -> None:
    chain.prefill(PROMPT, temperature=0.8, seed=1)
    before = chain.tokens
    draft = pydflash2.Draft(
        [40, 41, 42],
        np.ones(3, np.float32),
        np.tile(np.array([40, 41, 42, 43], np.int32), (3, 1)),
        np.zeros((3, 4), np.float32),
        np.full((3, 4), 0.25, np.float32),
    )
    with pytest.raises(ValueError, match=message):
        chain.verify(dataclasses.replace(draft, **change))
    assert chain.tokens == before
    assert chain.verify(draft).tokens


def test_help_shows_the_settings() -> None:
    for method in (pydflash2.Engine.generate, pydflash2.Engine.stream, pydflash2.Engine.samples):
        assert inspect.signature(method).parameters["temperature"].default == 0.0
