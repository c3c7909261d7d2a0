"""The loop: generate, stream, and its steps by hand, on tiny models whose drafts are accepted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pydflash2
from tiny.files import TinyFiles

PROMPT = "the cat sat on"


def load(tiny: TinyFiles, head: str, **options: Any) -> pydflash2.Engine:
    return pydflash2.load(*tiny.pair(head), n_threads=1, **options)


@pytest.fixture(scope="module")
def chain(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with load(tiny, "chain") as engine:
        yield engine


@pytest.fixture(scope="module")
def ending(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with load(tiny, "chain-ending") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(chain: pydflash2.Engine) -> pydflash2.Result:
    """What the target alone says."""
    return chain.generate(PROMPT, max_tokens=80, speculate=False)


# ---- the text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 5, 6, 7, "auto"])
def test_every_width_gives_the_targets_own_text(
    chain: pydflash2.Engine, plain: pydflash2.Result, width: int | str
) -> None:
    result = chain.generate(PROMPT, max_tokens=80, max_draft_tokens=width)  # type: ignore[arg-type]
    assert (result.text, result.tokens, result.finish_reason) == (plain.text, plain.tokens, "length")
    assert result.stats.max_draft_tokens == (7 if width == "auto" else width)
    assert (result.stats.accepted > 0) == (width != 0)


@pytest.mark.parametrize("prompt", ["a", PROMPT, " \n\t", "é😀"])
@pytest.mark.parametrize("head", ["chain", "chain-ending"])
def test_stream_is_generate_in_pieces(tiny: TinyFiles, head: str, prompt: str) -> None:
    with load(tiny, head) as engine:
        result = engine.generate(prompt, max_tokens=40)
        pieces = list(engine.stream(prompt, max_tokens=40))
    assert "".join(piece.text for piece in pieces) == result.text
    assert [token for piece in pieces for token in piece.tokens] == result.tokens
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [result.finish_reason]
    assert [piece.stats is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_a_streams_return_value_is_the_result(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    stream = chain.stream(PROMPT, max_tokens=80)
    with pytest.raises(StopIteration) as end:
        while True:
            next(stream)
    assert end.value.value.tokens == plain.tokens


def test_characters_spread_over_tokens(tiny: TinyFiles) -> None:
    """A random model emits bytes of characters anyhow: the pieces join to what decoding at once gives."""
    with load(tiny, "plain") as engine:
        pieces = list(engine.stream(PROMPT, max_tokens=400))
        tokens = [token for piece in pieces for token in piece.tokens]
        text = "".join(piece.text for piece in pieces)
        assert text == engine.detokenize(tokens)
        whole = [
            character
            for character in text
            if ord(character) > 127 and character != "\N{REPLACEMENT CHARACTER}"
        ]
        assert whole, "no character was spread over tokens: the test shows nothing"


def test_tokens_round_trip(chain: pydflash2.Engine) -> None:
    text = "the café 😀\n\tdone"
    tokens = chain.tokenize(text)
    assert len(tokens) > len("😀".encode())
    assert chain.detokenize(tokens) == text
    assert [chain.detokenize([token]) for token in chain.tokenize("😀")] == ["\N{REPLACEMENT CHARACTER}"] * 4


def test_special_tokens_are_recognised_in_a_prompt_and_have_no_text(chain: pydflash2.Engine) -> None:
    assert len(chain.tokenize("<|im_end|>")) == 1
    assert chain.detokenize(chain.tokenize("a<|im_end|>b")) == "ab"


# ---- where it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(8))
def test_an_end_token_inside_an_accepted_run_ends_the_text(ending: pydflash2.Engine, width: int) -> None:
    plain = ending.generate(PROMPT, max_tokens=80, speculate=False)
    result = ending.generate(PROMPT, max_tokens=80, max_draft_tokens=width)
    assert (result.tokens, result.text, result.finish_reason) == (plain.tokens, plain.text, "stop")
    assert result.tokens[-1] == ending.tokenize("<|end|>")[0]
    assert result.text == ending.detokenize(result.tokens[:-1])
    assert ending.tokens == ending.tokenize(PROMPT) + result.tokens


def test_an_end_token_right_after_the_prompt(ending: pydflash2.Engine) -> None:
    tokens = ending.generate(PROMPT, max_tokens=80).tokens
    result = ending.generate(ending.tokenize(PROMPT) + tokens[:-1], max_tokens=80)
    assert (result.text, result.tokens, result.finish_reason) == ("", tokens[-1:], "stop")


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_is_never_exceeded(
    chain: pydflash2.Engine, plain: pydflash2.Result, max_tokens: int
) -> None:
    result = chain.generate(PROMPT, max_tokens=max_tokens)
    assert result.tokens == plain.tokens[:max_tokens]
    assert result.finish_reason == "length"
    assert chain.tokens == chain.tokenize(PROMPT) + result.tokens
    assert result.stats.generated_tokens == max_tokens


def test_the_last_round_drafts_only_what_can_still_be_committed(chain: pydflash2.Engine) -> None:
    stats = chain.generate(PROMPT, max_tokens=3, max_draft_tokens=7).stats
    assert (stats.rounds, stats.drafted) == (
        1,
        1,
    )  # anchor, then one draft and the bonus token (or a plain step)


def test_without_max_tokens_the_context_is_filled(tiny: TinyFiles) -> None:
    with load(tiny, "chain", context_size=64) as engine:
        result = engine.generate(PROMPT)
        assert result.finish_reason == "length"
        assert len(engine.tokens) == 64
        assert engine.generate(PROMPT, speculate=False).tokens == result.tokens


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_a_stop_string_anywhere_ends_the_text_at_the_same_token(
    chain: pydflash2.Engine, plain: pydflash2.Result, length: int
) -> None:
    for start in range(0, 20):
        stop = plain.text[start : start + length]
        result = chain.generate(PROMPT, max_tokens=80, stop=stop)
        alone = chain.generate(PROMPT, max_tokens=80, stop=[stop], speculate=False)
        assert result.text == plain.text[: plain.text.index(stop)]
        assert (result.text, result.tokens, result.finish_reason) == (alone.text, alone.tokens, "stop")
        streamed = "".join(piece.text for piece in chain.stream(PROMPT, max_tokens=80, stop=stop))
        assert streamed == result.text


def test_the_stop_string_completed_first_wins(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    long, short = plain.text[2:9], plain.text[5:7]
    assert chain.generate(PROMPT, max_tokens=80, stop=[long, short, "nowhere"]).text == plain.text[:5]


def test_text_held_back_for_a_stop_string_is_not_lost(
    chain: pydflash2.Engine, plain: pydflash2.Result
) -> None:
    almost = plain.text[-4:] + "\N{SNOWMAN}"
    result = chain.generate(PROMPT, max_tokens=80, stop=almost)
    assert (result.text, result.finish_reason) == (plain.text, "length")


# ---- by hand ---------------------------------------------------------------------------------------------


def test_the_loop_by_hand(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    prompt = chain.tokenize(PROMPT)
    tokens = [chain.prefill(PROMPT)]
    assert chain.tokens == prompt + tokens
    accepted = 0
    while len(tokens) < 40:
        before = chain.tokens
        draft = chain.draft(max_draft_tokens=5)
        assert chain.tokens == before  # a draft is a proposal
        verdict = chain.verify(draft)
        assert verdict.tokens[: verdict.n_accepted] == draft.tokens[: verdict.n_accepted]
        assert verdict.tokens == [*draft.tokens[: verdict.n_accepted], verdict.bonus_token]
        assert not verdict.finished
        tokens += verdict.tokens
        accepted += verdict.n_accepted
        assert chain.tokens == before + verdict.tokens
    assert tokens == plain.tokens[: len(tokens)]
    assert accepted > 0


def test_a_drafts_arrays_belong_to_its_path(chain: pydflash2.Engine) -> None:
    chain.prefill(PROMPT)
    draft = chain.draft()
    assert len(draft) == len(draft.tokens) == 7
    assert draft.probabilities.shape == (7,)
    assert draft.candidates.shape == draft.scores.shape == (7, 16)
    best = np.argmax(draft.scores, axis=1)
    assert draft.candidates[np.arange(7), best].tolist() == draft.tokens
    weights = np.exp(draft.scores.astype(np.float64) - draft.scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        draft.probabilities, (weights / weights.sum(axis=1, keepdims=True)).max(axis=1), rtol=1e-5
    )
    assert chain.draft(max_draft_tokens=3).tokens != []  # and the arrays are copies
    assert draft.candidates[np.arange(7), best].tolist() == draft.tokens


def test_a_dropped_draft_changes_nothing(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    chain.prefill(PROMPT)
    for width in (7, 1, 4):
        chain.draft(max_draft_tokens=width)
    tokens = [chain.tokens[-1]]
    while len(tokens) < 10:
        tokens += chain.verify([]).tokens
    assert tokens == plain.tokens[:10]


def test_any_tokens_can_be_verified(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    anchor = chain.prefill(chain.tokenize(PROMPT))
    assert anchor == plain.tokens[0]
    verdict = chain.verify(plain.tokens[1:21])  # more than a block holds
    assert (verdict.n_accepted, verdict.bonus_token) == (20, plain.tokens[21])
    wrong = (plain.tokens[23] + 1) % 256
    verdict = chain.verify([plain.tokens[22], wrong, wrong])
    assert (verdict.tokens, verdict.n_accepted) == (plain.tokens[22:24], 1)
    draft = chain.draft()  # the drafter has followed
    assert (
        chain.verify(draft).tokens
        == plain.tokens[24 : 24 + len(chain.tokens) - len(chain.tokenize(PROMPT)) - 24]
    )


def test_a_verdict_cut_by_an_end_token_has_no_bonus(ending: pydflash2.Engine) -> None:
    tokens = ending.generate(PROMPT, max_tokens=80).tokens
    ending.prefill(PROMPT)
    verdict = ending.verify([*tokens[1:], 5, 6])
    assert verdict == pydflash2.Verdict(tokens[1:], len(tokens) - 1, None, True)


# ---- statistics ------------------------------------------------------------------------------------------


def test_statistics_are_those_of_the_rounds(chain: pydflash2.Engine) -> None:
    max_tokens, n_tokens = 60, 1
    rounds = []
    chain.prefill(PROMPT)
    while n_tokens < max_tokens:
        width = min(7, max_tokens - n_tokens - 1)
        draft = chain.draft(max_draft_tokens=width).tokens if width else []
        verdict = chain.verify(draft)
        n_tokens += len(verdict.tokens)
        if draft:
            rounds.append((len(draft), verdict.n_accepted))

    stats = chain.generate(PROMPT, max_tokens=max_tokens, max_draft_tokens=7).stats
    drafted, accepted = sum(n for n, _ in rounds), sum(n for _, n in rounds)
    assert (stats.rounds, stats.drafted, stats.accepted) == (len(rounds), drafted, accepted)
    assert stats.mean_acceptance_length == 1 + accepted / len(rounds)
    assert stats.draft_acceptance_rate == accepted / drafted
    assert stats.acceptance_by_position == [sum(n > at for _, n in rounds) / len(rounds) for at in range(7)]
    assert (stats.drafting, stats.generated_tokens) == ("on", max_tokens)
    assert stats.prompt_tokens == len(chain.tokenize(PROMPT))
    assert min(stats.prefill_seconds, stats.draft_seconds, stats.verify_seconds, stats.tokens_per_second) > 0
    assert stats.as_dict()["mean_acceptance_length"] == stats.mean_acceptance_length


def test_why_nothing_was_drafted(tiny: TinyFiles, chain: pydflash2.Engine) -> None:
    assert chain.generate(PROMPT, max_tokens=2, speculate=False).stats.drafting == "off: speculate=False"
    assert (
        chain.generate(PROMPT, max_tokens=2, max_draft_tokens=0).stats.drafting == "off: max_draft_tokens=0"
    )
    with pydflash2.load(tiny.target("qwen3-chain"), None, n_threads=1) as engine:
        assert (
            engine.generate(PROMPT, max_tokens=5).stats.drafting
            == "on, by lookup alone: loaded with head=None"
        )
        stats = engine.generate(PROMPT, max_tokens=5, lookup="off").stats
        assert stats.drafting == "off: loaded with head=None"
        assert stats.plain_steps == 4
        assert (stats.rounds, stats.mean_acceptance_length, stats.draft_acceptance_rate) == (0, 1.0, 0.0)
        assert stats.acceptance_by_position == []
    with pydflash2.load(tiny.target("qwen3-chain"), n_threads=1) as engine:
        drafting = engine.generate(PROMPT, max_tokens=5, lookup="off").stats.drafting
        assert drafting == "off: no head lies beside qwen3-chain-f32.gguf"


def test_a_width_beyond_the_block_is_clamped_with_one_warning(
    tiny: TinyFiles, plain: pydflash2.Result
) -> None:
    with load(tiny, "chain") as engine:
        expected = (
            r"max_draft_tokens=12 is more than this pair can draft: 7 is used "
            r"\(the head's block has 8 rows, one the anchor's\)"
        )
        with pytest.warns(UserWarning, match=expected) as caught:
            result = engine.generate(PROMPT, max_tokens=80, max_draft_tokens=12)
        assert caught[0].filename == __file__
        assert (result.tokens, result.stats.max_draft_tokens) == (plain.tokens, 7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert engine.generate(PROMPT, max_tokens=9, max_draft_tokens=100).stats.max_draft_tokens == 7
            engine.prefill(PROMPT)
            assert len(engine.draft(max_draft_tokens=9)) == 7


def test_a_target_that_can_take_back_less_than_a_block(tiny: TinyFiles) -> None:
    """None of the tiny targets is like that, so the number llama.cpp reports is lowered here."""
    with load(tiny, "qwen35") as engine:
        native = engine._native
        native.target.rollback_limit = 3
        limited = pydflash2.Engine(native, engine._target, engine._head, "", {"exact": False})
        with pytest.warns(
            UserWarning, match=r"3 is used \(this target's state can take back 3 tokens a round\)"
        ):
            stats = limited.generate(PROMPT, max_tokens=20, max_draft_tokens=7).stats
        assert (stats.max_draft_tokens, len(stats.accepted_by_position)) == (3, 3)
        assert stats.drafting == "on, 3 a round: this target's state can take back 3 tokens a round"
        native.target.rollback_limit = 0
        stats = (
            pydflash2.Engine(native, engine._target, engine._head, "", {"exact": False})
            .generate(PROMPT, max_tokens=5)
            .stats
        )
        assert (stats.rounds, stats.drafting) == (
            0,
            "off: this target's state can take back 0 tokens a round",
        )


# ---- a second request ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requests",
    [
        [PROMPT, PROMPT],
        [PROMPT, PROMPT + " the mat and so on", PROMPT],
        ["something else altogether", PROMPT],
        [PROMPT * 10, PROMPT * 10 + " more", PROMPT * 5],
    ],
)
@pytest.mark.parametrize("between", ["speculated", "plain"])
@pytest.mark.parametrize("head", ["chain", "qwen35"])
def test_later_requests_are_like_those_of_a_fresh_engine(
    tiny: TinyFiles, head: str, requests: list[str], between: str
) -> None:
    with load(tiny, head, drafter_kv_type="f32") as engine:
        for prompt in requests:
            engine.generate(prompt, max_tokens=30, speculate=between == "speculated")
        later = engine.generate(requests[-1], max_tokens=100, max_draft_tokens=7)
    with load(tiny, head, drafter_kv_type="f32") as engine:
        fresh = engine.generate(requests[-1], max_tokens=100, max_draft_tokens=7)
    assert later.tokens == fresh.tokens
    assert later.stats.mean_acceptance_length >= 0.95 * fresh.stats.mean_acceptance_length
    assert fresh.stats.reused_tokens == 0
    if head == "chain" and between == "speculated":
        assert later.stats.reused_tokens > 0.5 * later.stats.prompt_tokens


def test_a_continued_text_is_not_decoded_again(chain: pydflash2.Engine) -> None:
    first = chain.generate(PROMPT, max_tokens=60)
    conversation = chain.tokens
    more = chain.generate([*conversation, *chain.tokenize(" and then")], max_tokens=20)
    assert more.stats.prompt_tokens > len(first.tokens)
    assert more.stats.reused_tokens >= len(conversation) - 1
    with_nothing_shared = chain.generate("xyz", max_tokens=5)
    assert with_nothing_shared.stats.reused_tokens == 0


def test_a_beginning_token_makes_an_empty_prompt_possible(tiny: TinyFiles) -> None:
    with pydflash2.load(tiny.target("gemma3"), n_threads=1) as engine:
        result = engine.generate("", max_tokens=4)
        assert result.stats.prompt_tokens == 1
        assert engine.tokens == [2, *result.tokens]
