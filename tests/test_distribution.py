"""Sampled texts have exactly the target's distribution, whatever the sampler chain, with drafts and without.

Few draws with fixed seeds; scripts/check_distribution.py is the same with many. FALSE_ALARM is the chance
that, with other seeds, one of all tests of a kind would fail although everything is right; they share it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydflash2
from tiny import symbols
from tiny.drawing import BROKEN, DRAFTED, LENGTH, LONG, SPECIAL, Drawn, Oracle, first_tokens, plain, stepped
from tiny.native import Native
from tiny.sampling import Chain, distribution
from tiny.statistics import Text, fit, uniform_fit, uniformity
from tiny.symbols import CASES, END, PROMPT

FALSE_ALARM = 1e-3
LEVEL = FALSE_ALARM / (2 * 8 * len(CASES))  # eight fits a chain, and each is two tests
MIXED = "top-k, top-p, min-p, T 0.8"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return symbols.write(tmp_path_factory.mktemp("symbols"))


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path]) -> Iterator[pydflash2.Engine]:
    with pydflash2.load(
        *pair, context_size=64, n_threads=1, n_gpu_layers=0, kv_type="f32", drafter_kv_type="f32"
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def oracle(pair: tuple[Path, Path]) -> Iterator[Oracle]:
    with Native(pair[0], context_size=64) as target:
        yield Oracle(target)


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> dict[str, dict[Text, float]]:
    """Probabilities of the texts of three tokens, by chain."""
    return {name: oracle.texts(case.chain) for name, case in CASES.items()}


# ---- the engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(engine: pydflash2.Engine) -> dict[tuple[str, str], Drawn]:
    """By chain and way. No two draws share a seed."""
    result = {}
    seed = 0
    for name, case in CASES.items():
        for way, draw, count in (("plain", plain, 600), *((way, draw, 250) for way, draw in DRAFTED.items())):
            result[name, way] = draw(engine, case, range(seed, seed + count))
            seed += count
    return result


@pytest.mark.parametrize("name", CASES)
def test_three_tokens(
    name: str, drawn: dict[tuple[str, str], Drawn], expected: dict[str, dict[Text, float]]
) -> None:
    texts, firsts = expected[name], first_tokens(expected[name])
    drafted = Drawn()
    for way in DRAFTED:
        drafted += drawn[name, way]
        assert fit(drawn[name, way].texts, texts).holds(LEVEL), way
    assert 0.25 < drawn[name, "width 1"].acceptance < 0.9  # whatever the chain, drafts are right now and then
    for one in (drawn[name, "plain"], drafted):
        assert fit(one.first_tokens, firsts).holds(LEVEL)
        assert fit(one.texts, texts).holds(LEVEL)


def test_p_values_are_uniform(
    drawn: dict[tuple[str, str], Drawn], expected: dict[str, dict[Text, float]]
) -> None:
    joint = [fit(one.texts, expected[name]).p for (name, _), one in drawn.items()]
    first = [fit(one.first_tokens, first_tokens(expected[name])).p for (name, _), one in drawn.items()]
    assert uniformity(joint) > FALSE_ALARM
    assert uniformity(first) > FALSE_ALARM


def test_tokens_came_about_in_every_way(drawn: dict[tuple[str, str], Drawn]) -> None:
    total = Drawn()
    for one in drawn.values():
        total += one
    kinds = ("draft", "residual", "bonus")
    # The second token follows the first draft: never a bonus, as no draft here is empty.
    assert [total.origins[2, kind] > 1000 for kind in kinds] == [True, True, False]
    assert all(total.origins[3, kind] > 1000 for kind in kinds)


@pytest.mark.parametrize("name", CASES)
def test_long_texts(name: str, engine: pydflash2.Engine, oracle: Oracle) -> None:
    """Whole drafts, windows of the penalties that slide, grammars far from their start."""
    case, places = CASES[name], list[float]()
    for seed in range(60):
        one = stepped(engine, case, [seed], LONG)
        for text in one.texts:
            places += oracle.places(case.chain, text, seed)
    assert uniform_fit(np.array(places)).holds(FALSE_ALARM / (2 * len(CASES)))


@pytest.mark.parametrize("way", SPECIAL)
def test_special_ways(way: str, engine: pydflash2.Engine, expected: dict[str, dict[Text, float]]) -> None:
    drawn = SPECIAL[way](engine, CASES[MIXED], range(800))
    assert drawn.accepted > 0
    assert fit(drawn.texts, expected[MIXED]).holds(FALSE_ALARM / (2 * len(SPECIAL)))


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_rule_is_caught(
    way: str, engine: pydflash2.Engine, expected: dict[str, dict[Text, float]]
) -> None:
    drawn = BROKEN[way](engine, CASES[MIXED], range(1500))
    assert fit(drawn.texts, expected[MIXED]).p < 1e-6


@pytest.mark.slow
def test_the_script(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "scripts" / "check_distribution.py"
    command = [sys.executable, script, "--draws", "4000", "--texts", "200", "--sampler", MIXED, "--json"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    verdicts = Counter(line["verdict"] for line in report["lines"])
    assert verdicts == {"ok": 2 + len(SPECIAL), "caught": len(BROKEN)}


# ---- the oracle against llama.cpp, where chance has no say -----------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_support_is_llama_cpps(name: str, engine: pydflash2.Engine, oracle: Oracle) -> None:
    """The temperature comes last: a high one makes all that is left equally likely, and nothing else."""
    case = CASES[name]
    hot = case.arguments | {"temperature": 1e4}
    texts = {tuple(engine.generate(PROMPT, max_tokens=1, seed=seed, **hot).tokens) for seed in range(600)}
    # One of 24 is missed by 600 draws with a chance of 2e-10.
    assert {text[0] for text in texts} == set(np.flatnonzero(oracle.following(case.chain, ())))


@pytest.mark.parametrize("name", CASES)
def test_greedy_texts_are_llama_cpps(name: str, engine: pydflash2.Engine, oracle: Oracle) -> None:
    case = CASES[name]
    cold = replace(case.chain, temperature=0.0)
    text: tuple[int, ...] = ()
    while len(text) < LONG and END not in text:
        text += (int(oracle.following(cold, text).argmax()),)
    settings = case.arguments | {"temperature": 0.0}
    for speculate in (False, True):
        result = engine.generate(PROMPT, max_tokens=LONG, speculate=speculate, **settings)
        assert tuple(result.tokens) == text


@pytest.mark.parametrize("name", CASES)
def test_no_chain_stands_at_a_tie(name: str, oracle: Oracle, expected: dict[str, dict[Text, float]]) -> None:
    """Otherwise oracle and engine could differ by a rounding."""
    chain = CASES[name].chain
    noise = np.random.default_rng(0)
    for text in {text[:length] for text in expected[name] for length in range(LENGTH)}:
        if END not in text:
            logits = oracle.logits(text)
            nudged = logits + 1e-5 * noise.standard_normal(len(logits))
            following = distribution(chain, logits, PROMPT, text)
            np.testing.assert_allclose(distribution(chain, nudged, PROMPT, text), following, atol=1e-4)


# ---- the oracle by hand --------------------------------------------------------------------------

SHARES = np.array([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, SHARES),
        ({"temperature": 0.5}, SHARES**2),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"top_k": 3}, [4, 3, 2, 0]),
        ({"top_k": 9}, SHARES),
        ({"top_p": 0.41}, [4, 3, 0, 0]),  # the token that reaches it is kept
        ({"top_p": 0.39}, [1, 0, 0, 0]),
        ({"min_p": 0.45}, [4, 3, 2, 0]),
        ({"min_p": 0.55}, [4, 3, 0, 0]),
        ({"min_p": 0.45, "temperature": 0.5}, [16, 9, 4, 0]),  # the temperature comes last
        # Surprises 0.92, 1.20, 1.61, 2.30; the entropy is 1.28: first 0.3, then 0.2, 0.4, 0.1.
        ({"typical_p": 0.29}, [0, 1, 0, 0]),
        ({"typical_p": 0.49}, [0, 3, 2, 0]),
        ({"typical_p": 0.51}, [4, 3, 2, 0]),
        ({"top_k": 2, "top_p": 0.56}, [1, 0, 0, 0]),  # of what top-k left: 4/7, 3/7
        ({"typical_p": 0.49, "top_p": 0.55}, [0, 1, 0, 0]),
        ({"logit_bias": {0: -np.inf, 3: np.log(2)}}, [0, 3, 2, 2]),
        ({"presence_penalty": np.log(2), "penalty_last_n": 4}, [4, 1.5, 1, 0.5]),
        ({"presence_penalty": np.log(2), "penalty_last_n": 1}, [4, 3, 2, 0.5]),
        ({"frequency_penalty": np.log(2), "penalty_last_n": 4}, [4, 1.5, 0.5, 0.5]),
        ({"frequency_penalty": np.log(2), "penalty_last_n": 0}, SHARES),
        ({"repeat_penalty": 2.0}, [0.4, 0.3**2, 0.2**2, 0.1**2]),  # once, however often a token was seen
    ],
)
def test_the_oracle(settings: dict[str, Any], shares: Any) -> None:
    expected = np.array(shares, float) / np.sum(shares)
    chain = Chain(**settings)
    np.testing.assert_allclose(distribution(chain, np.log(SHARES), [1, 2, 2], [3]), expected, atol=1e-12)


def test_the_oracle_penalizes_likely_tokens_too() -> None:
    after = distribution(Chain(repeat_penalty=2.0), [3.0, 1.0], [0], [])
    assert after[0] / after[1] == pytest.approx(np.exp(3.0 / 2 - 1.0))


def test_the_oracle_follows_a_grammar() -> None:
    chain = Chain(allowed=lambda generated: np.array([True, False, len(generated) > 0, True]))
    np.testing.assert_allclose(distribution(chain, np.log(SHARES), [2], []), np.array([4, 0, 0, 1]) / 5)
    np.testing.assert_allclose(distribution(chain, np.log(SHARES), [2], [0]), np.array([4, 0, 2, 1]) / 7)


# ---- the statistics ------------------------------------------------------------------------------


def test_a_fit_is_pearsons() -> None:
    result = fit(Counter({(0,): 30, (1,): 50, (2,): 20}), {(0,): 0.25, (1,): 0.5, (2,): 0.25})
    assert (result.statistic, result.freedom) == (pytest.approx(2.0), 2)
    assert result.p == pytest.approx(np.exp(-1.0))
    assert result.distance == pytest.approx(0.05)


def test_rare_cells_are_pooled() -> None:
    expected = {(token,): 0.01 for token in range(20)} | {(20,): 0.8}
    counts = Counter({(token,): 1 for token in range(20)} | {(20,): 80})
    assert fit(counts, expected).freedom == 4  # one draw is expected in each rare cell: four pools of five


def test_what_cannot_be_fails_at_once() -> None:
    result = fit(Counter({(0,): 999, (7,): 1}), {(0,): 1.0})
    assert result.p == 0
    assert not result.holds(1e-12)


def test_the_expected_distance_is_what_chance_gives() -> None:
    probabilities = np.array([0.6, 0.3, 0.07, 0.02, 0.01])
    draws = np.random.default_rng(1).multinomial(200, probabilities, size=20_000)
    measured = np.abs(draws / 200 - probabilities).sum(1).mean() / 2
    expected = {(token,): float(p) for token, p in enumerate(probabilities)}
    assert fit(Counter({(0,): 200}), expected).expected_distance == pytest.approx(measured, rel=0.01)
