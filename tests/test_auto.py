"""Rounds that choose their own draft: the head's, one looked up in the text, or none. Never another text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pydflash2
from pydflash2 import exactness
from pydflash2.calibration import Costs
from pydflash2.exactness import RowCheck
from pydflash2.results import DrafterStats
from tiny.files import TinyFiles

PROMPT = "the cat sat on"  # the chain's text goes round in circles soon
TARGETS = ["qwen3", "qwen3-chain", "qwen3-tied", "llama", "qwen2", "gemma3", "qwen3moe", "phi3"]
RECURRENT = ["qwen35", "qwen3next"]


def load(tiny: TinyFiles, head: str, **options: Any) -> pydflash2.Engine:
    return pydflash2.load(*tiny.pair(head), n_threads=1, kv_type="f32", **options)


@pytest.fixture(scope="module")
def chain(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with load(tiny, "chain") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(chain: pydflash2.Engine) -> pydflash2.Result:
    return chain.generate(PROMPT, max_tokens=300, speculate=False)


def check_sums(stats: pydflash2.Stats) -> None:
    """Of a text that ended by its length: what the parts must add up to."""
    own = stats.by_drafter.values()
    assert stats.rounds == sum(drafter.rounds for drafter in own)
    assert stats.drafted == sum(drafter.drafted for drafter in own)
    assert stats.accepted == sum(drafter.accepted for drafter in own)
    assert 1 + stats.plain_steps + stats.rounds + stats.accepted == stats.generated_tokens
    assert sum(stats.rounds_by_width) == stats.rounds
    assert sum(width * n for width, n in enumerate(stats.rounds_by_width)) == stats.drafted
    assert sum(stats.accepted_by_position) == stats.accepted


# ---- what is chosen --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookup": "ngram"}, "lookup is 'ngram': give one of auto, map-k4v, mod, off"),
        ({"lookup": None}, "lookup is None: give one of"),
        ({"lookup": 7}, "lookup is 7: give one of"),
        ({"max_draft_tokens": "many"}, "max_draft_tokens is 'many': give a number or \"auto\""),
    ],
)
def test_names_are_checked(chain: pydflash2.Engine, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain.generate(PROMPT, **settings)
    with pytest.raises(ValueError, match=message):
        chain.stream(PROMPT, **settings)


@pytest.mark.parametrize(
    ("settings", "drafters"),
    [
        ({}, {"head", "map-k4v", "mod"}),
        ({"lookup": "off"}, {"head"}),
        ({"lookup": "mod"}, {"head", "mod"}),
        ({"lookup": "map-k4v"}, {"head", "map-k4v"}),
        ({"max_draft_tokens": 5}, {"head"}),
        ({"max_draft_tokens": 5, "lookup": "off"}, {"head"}),
        ({"max_draft_tokens": 5, "lookup": "mod"}, {"head", "mod"}),
        ({"max_draft_tokens": 0, "lookup": "map-k4v"}, {"map-k4v"}),
        ({"max_draft_tokens": 0}, set()),
        ({"speculate": False, "lookup": "mod"}, set()),
    ],
)
def test_figures_add_up(
    chain: pydflash2.Engine, plain: pydflash2.Result, settings: dict[str, Any], drafters: set[str]
) -> None:
    result = chain.generate(PROMPT, max_tokens=300, **settings)
    assert result.tokens == plain.tokens
    check_sums(result.stats)
    used = set(result.stats.by_drafter)
    assert used <= drafters
    if "lookup" in settings or "max_draft_tokens" in settings:  # what is asked for is tried
        assert used >= drafters - {"head"}
    if settings.get("max_draft_tokens") == 5:
        assert "head" in used
        assert result.stats.max_draft_tokens == 5
    if settings.get("lookup") in ("mod", "map-k4v") and drafters:
        assert len(result.stats.rounds_by_width) > 40  # a loop is followed further than a block
        assert result.stats.rounds < 150
    if not drafters:
        assert result.stats.plain_steps == 299


# The costs that a test sets decide what drafts, not those that this machine shows meanwhile: a text that is
# drawn goes by the former alone, and of one candidate the likeliest is drawn.
BY_SET_COSTS: dict[str, Any] = {"temperature": 1.0, "top_k": 1, "seed": 1}


def test_a_head_that_does_not_pay_is_left_out_and_a_loop_followed(
    tiny: TinyFiles, plain: pydflash2.Result
) -> None:
    costs = Costs({0: 1e-4, 7: 2e-4}, dict.fromkeys(range(1, 8), 10.0))  # seconds
    with load(tiny, "chain") as engine:  # one try, which an engine can afford once
        engine._costs = costs
        assert engine.generate(PROMPT, max_tokens=90, lookup="off", **BY_SET_COSTS).stats.rounds <= 1
    with load(tiny, "chain") as engine:
        engine._costs = costs
        result = engine.generate(PROMPT, max_tokens=300, **BY_SET_COSTS)
    assert result.tokens == plain.tokens
    assert result.stats.drafting == "on"
    assert result.stats.by_drafter.get("head", DrafterStats()).rounds <= 1
    assert result.stats.accepted > 150
    check_sums(result.stats)


def test_without_a_head_a_loop_is_followed(tiny: TinyFiles, plain: pydflash2.Result) -> None:
    with pydflash2.load(tiny.target("qwen3-chain"), None, n_threads=1, kv_type="f32") as engine:
        engine._costs = Costs({0: 1e-4, 7: 2e-4}, {})
        result = engine.generate(PROMPT, max_tokens=300, **BY_SET_COSTS)
        assert result.tokens == plain.tokens
        assert result.stats.drafting == "on, by lookup alone: loaded with head=None"
        assert result.stats.accepted > 150
        check_sums(result.stats)
        assert engine.generate(PROMPT, max_tokens=300, max_draft_tokens=0).stats.rounds == 0


# ---- no other text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookup", ["auto", "map-k4v", "mod"])
@pytest.mark.parametrize("name", [*TARGETS, *RECURRENT])
def test_lookup_alone_gives_the_targets_own_text(tiny: TinyFiles, name: str, lookup: Any) -> None:
    with pydflash2.load(tiny.target(name), None, n_threads=1, kv_type="f32") as engine:
        for prompt in (PROMPT, "a b c d e f g h i j k l m n " * 4):
            alone = engine.generate(prompt, max_tokens=120, speculate=False)
            result = engine.generate(prompt, max_tokens=120, lookup=lookup)
            assert result.tokens == alone.tokens
            if name in RECURRENT:
                assert result.stats.rounds == 0
                assert result.stats.drafting.endswith("this target's state can take back no tokens")


@pytest.mark.parametrize("lookup", ["auto", "mod"])
@pytest.mark.parametrize("name", ["plain", "llama", "qwen2", "gemma3", "qwen3moe", "phi3", *RECURRENT])
def test_auto_gives_the_targets_own_text(tiny: TinyFiles, name: str, lookup: Any) -> None:
    with load(tiny, name, drafter_kv_type="f32") as engine:
        limit = int(engine._native.target.rollback_limit)
        for prompt in (PROMPT, "a b c d e f g h i j k l m n " * 4):
            alone = engine.generate(prompt, max_tokens=120, speculate=False)
            result = engine.generate(prompt, max_tokens=120, lookup=lookup)
            assert result.tokens == alone.tokens
            if result.finish_reason == "length":
                check_sums(result.stats)
            if limit >= 0:  # no draft is longer than what the target can take back
                assert not any(result.stats.rounds_by_width[limit + 1 :])


@pytest.mark.parametrize("head", ["chain", "llama"])
def test_a_seed_gives_its_text_again_on_another_engine(tiny: TinyFiles, head: str) -> None:
    """Whatever the clocks say, and whatever the engine learned before."""
    settings: dict[str, Any] = {"max_tokens": 80, "temperature": 0.8}
    with load(tiny, head) as engine, load(tiny, head) as other:
        for _ in range(3):
            other.generate(PROMPT, max_tokens=100)
        for seed in range(6):
            tokens = engine.generate(PROMPT, seed=seed, **settings).tokens
            assert other.generate(PROMPT, seed=seed, **settings).tokens == tokens
            assert engine.generate(PROMPT, seed=seed, **settings).tokens == tokens


# ---- where a long draft ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [*range(27, 45), 64, 65, 99])
def test_max_tokens_is_never_exceeded(
    chain: pydflash2.Engine, plain: pydflash2.Result, max_tokens: int
) -> None:
    result = chain.generate(PROMPT, max_tokens=max_tokens, max_draft_tokens=0, lookup="mod")
    assert result.tokens == plain.tokens[:max_tokens]
    assert result.finish_reason == "length"
    assert chain.tokens == chain.tokenize(PROMPT) + result.tokens
    check_sums(result.stats)


def test_the_context_is_filled_and_no_more(tiny: TinyFiles, plain: pydflash2.Result) -> None:
    with load(tiny, "chain", context_size=200) as engine:
        result = engine.generate(PROMPT, lookup="mod")
        assert len(engine.tokens) == 200
        assert result.tokens == plain.tokens[: len(result.tokens)]


def test_a_stop_string_inside_a_long_draft(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    """The prompt has been round the loop already, so the first draft is a long one."""
    prompt = chain.tokenize(PROMPT) + plain.tokens[:150]
    whole = chain.generate(prompt, max_tokens=80, max_draft_tokens=0, lookup="mod")
    assert max(width for width, n in enumerate(whole.stats.rounds_by_width) if n) > 40
    for start in range(0, 16):
        stop = whole.text[start : start + 3]
        settings: dict[str, Any] = {"max_tokens": 80, "stop": stop, "logprobs": 1}
        alone = chain.generate(prompt, speculate=False, **settings)
        result = chain.generate(prompt, max_draft_tokens=0, lookup="mod", **settings)
        assert result.text == whole.text[: whole.text.index(stop)]
        assert (result.text, result.tokens, result.finish_reason) == (alone.text, alone.tokens, "stop")
        assert result.logprobs is not None
        assert [entry.token for entry in result.logprobs] == result.tokens


def test_an_end_token_inside_a_long_draft(tiny: TinyFiles) -> None:
    with load(tiny, "chain-ending") as engine:
        before = engine.generate(PROMPT, max_tokens=80, speculate=False)
        assert before.finish_reason == "stop"
        prompt = engine.tokenize(PROMPT) + before.tokens + engine.tokenize(PROMPT)
        alone = engine.generate(prompt, max_tokens=80, speculate=False)
        assert alone.finish_reason == "stop"
        for lookup in ("map-k4v", "mod"):
            for cut in range(0, len(alone.tokens) - 1):  # as if the text had come so far
                begun = prompt + alone.tokens[:cut]
                result = engine.generate(begun, max_tokens=80, max_draft_tokens=0, lookup=lookup)  # type: ignore[arg-type]
                assert result.tokens == alone.tokens[cut:]
                assert result.finish_reason == "stop"
                assert engine.tokens == begun + result.tokens


def test_logprobs_are_as_many_as_tokens(chain: pydflash2.Engine) -> None:
    settings: dict[str, Any] = {"max_tokens": 150, "logprobs": 2}
    alone = chain.generate(PROMPT, speculate=False, **settings)
    result = chain.generate(PROMPT, lookup="mod", **settings)
    assert result.stats.by_drafter["mod"].accepted > 0
    assert alone.logprobs is not None and result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == result.tokens == alone.tokens
    for one, other in zip(alone.logprobs, result.logprobs, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)


@pytest.mark.parametrize("lookup", ["map-k4v", "mod"])
def test_a_grammar_cuts_what_was_looked_up(chain: pydflash2.Engine, lookup: Any) -> None:
    chain_text = 'root ::= ("xyz,"){30} "end"'
    result = chain.generate(PROMPT, grammar=chain_text, max_draft_tokens=0, lookup=lookup)
    assert (result.text, result.finish_reason) == ("xyz," * 30 + "end", "stop")
    assert result.stats.by_drafter[lookup].accepted > 30
    for grammar in ("root ::= [^G]*", 'root ::= ([a-z] [a-z]? " ")* "."'):
        alone = chain.generate(PROMPT, max_tokens=150, grammar=grammar, speculate=False)
        drafted = chain.generate(PROMPT, max_tokens=150, grammar=grammar, lookup=lookup)
        assert drafted.tokens == alone.tokens


def test_a_stream_that_is_closed_early(chain: pydflash2.Engine, plain: pydflash2.Result) -> None:
    for n in range(1, 40, 6):
        stream = chain.stream(PROMPT, max_tokens=300, max_draft_tokens=0, lookup="mod")
        pieces = [piece for piece, _ in zip(stream, range(n), strict=False)]
        stream.close()
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == plain.tokens[: len(tokens)]
        assert chain.generate(PROMPT, max_tokens=300, lookup="mod").tokens == plain.tokens


# ---- exact -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookup", ["auto", "map-k4v", "mod"])
@pytest.mark.parametrize(
    ("differences", "allowed"),
    [([0.0, 0.1, 0.0, 0.2, 0.2, 0.2, 0.2], {1, 3}), ([0.1] * 7, set())],
)
def test_exact_verifies_what_was_looked_up_at_widths_that_passed(
    differences: list[float],
    allowed: set[int],
    tiny: TinyFiles,
    monkeypatch: pytest.MonkeyPatch,
    lookup: Any,
    plain: pydflash2.Result,
) -> None:
    check = RowCheck(dict(enumerate(differences, start=1)), 0.0)
    monkeypatch.setattr(exactness, "read", lambda key: check)
    with load(tiny, "chain", exact=True) as engine:
        result = engine.generate(PROMPT, max_tokens=200, lookup=lookup)
    used = {width for width, n in enumerate(result.stats.rounds_by_width) if n and width}
    assert used <= allowed
    if lookup != "auto":
        assert bool(used) == bool(allowed)
    assert result.tokens == plain.tokens[:200]


def test_exact_looks_nothing_up_where_no_width_was_checked(tiny: TinyFiles) -> None:
    with pydflash2.load(tiny.target("qwen3-chain"), None, n_threads=1, exact=True) as engine:
        stats = engine.generate(PROMPT, max_tokens=100, lookup="mod").stats
    assert stats.rounds == 0
    assert stats.drafting == "off: exact=True allows widths that were checked; there is no head"


# ---- memory ----------------------------------------------------------------------------------------------


def test_a_sliding_heads_cache_does_not_grow_with_the_context(tiny: TinyFiles) -> None:
    from pydflash2.inspection import inspect

    sizes = {}
    for name in ("sliding", "chain"):  # all layers slide; one of two
        cache = inspect(tiny.head(name)).cache
        assert cache is not None
        for context in (4096, 131072):
            with load(tiny, name, context_size=context, batch_size=16) as engine:
                memory = engine.memory
            assert memory.context_size == context
            assert memory.drafter_kv_per_token == cache.per_token
            rest = memory.drafter_kv - cache.sliding - cache.per_token * context
            assert 0 <= rest < cache.per_token * 128 + 4 * 128  # whole steps of cells, aligned tensors
            sizes[name, context] = memory.drafter_kv
    assert sizes["sliding", 131072] == sizes["sliding", 4096]
    assert sizes["chain", 131072] - sizes["chain", 4096] == 128 * (131072 - 4096)
