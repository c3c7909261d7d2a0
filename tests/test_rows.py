"""From a row of logits to the next token: what llama.cpp's samplers make of it, without sorting a vocabulary.

Whole vocabularies are also what the acceptance rule is tried on here; test_distribution.py has 24 tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tiny.sampling_oracle import PROGRAM, Floats, Refused, SamplingOracle, Settings
from tiny.statistics import fit

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(),
    reason=f"no {PROGRAM}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build sampling_oracle",
)

SIZES = (3, 256, 700, 5000, 70_000)  # less than a block of logits, one, and many
BIG = 3e8  # llama.cpp's bucket sort holds it in an int
HUGE = float(np.finfo(np.float32).max)
ROUNDING = 3e-5  # of a sum over a vocabulary, in floats: llama.cpp's


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, SamplingOracle]]:
    folder = tmp_path_factory.mktemp("vocabularies")
    with ExitStack() as stack:
        yield {n: stack.enter_context(SamplingOracle(Path(folder, f"{n}.gguf"), n)) for n in SIZES}


@dataclass(frozen=True)
class Row:
    """Flat or peaked, with ties, forbidden tokens, huge logits."""

    seed: int
    spread: float
    head: int  # tokens
    height: float  # of the head
    grid: float  # logits are multiples of it, 0: of nothing
    forbidden: float  # share
    huge: list[float]

    def logits(self, n: int) -> Floats:
        random = np.random.default_rng(self.seed)
        row = random.standard_normal(n) * self.spread
        row[random.integers(0, n, self.head)] += self.height - np.log1p(np.arange(self.head))
        if self.grid:
            row = np.round(row / self.grid) * self.grid
        row[random.integers(0, n, len(self.huge))] = self.huge
        row[(random.random(n) < self.forbidden) & (np.arange(n) != self.seed % n)] = -np.inf
        return row.astype(np.float32)


def rows(
    spreads: Sequence[float] = (0.01, 1, 3, 20, 1e4),
    grids: Sequence[float] = (0, 0, 0.25, 4),
    most_huge: int = 3,
) -> st.SearchStrategy[Row]:
    often = st.sampled_from
    return st.builds(
        Row,
        seed=st.integers(0, 2**32),
        spread=often(spreads),
        head=often([0, 1, 5, 60]),
        height=often([2.0, 12.0, 18.0]),
        grid=often(grids),
        forbidden=often([0, 0, 0.01, 0.5, 0.999]),
        huge=st.lists(often([BIG, -BIG, BIG / 3]), max_size=most_huge),
    )


def untied(row: Floats) -> Floats:
    """Of equal logits all but one moved up, to the next floats that are free. What is forbidden stays so."""
    row = row.copy()
    likeliest_last = np.argsort(row)
    for one, next_one in pairwise(likeliest_last[~np.isneginf(row[likeliest_last])]):
        row[next_one] = max(row[next_one], np.nextafter(row[one], np.float32(np.inf)))
    return row


@st.composite
def chains(draw: st.DrawFn, n: int) -> Settings:
    token = st.integers(0, n - 1)
    tokens = st.lists(token, max_size=90)
    biases = st.sampled_from([-np.inf, -100.0, -1.0, 0.0, 1.5, 30.0])
    often = st.sampled_from
    return Settings(
        temperature=draw(often([0, 0.3, 0.8, 0.8, 1, 2, 50])),
        top_k=draw(often([0, 0, 1, 5, 40, 40, 400, n, 2**30])),
        top_p=draw(often([1, 1, 0.95, 0.95, 0.5, 0.999, 1e-6])),
        min_p=draw(often([0, 0, 0.05, 0.5, 1, 1e-7])),
        logit_bias=draw(st.lists(st.tuples(token, biases), max_size=5)),
        text=draw(tokens),
        repeat_penalty=draw(often([1, 1, 1.1, 8, 0.5])),
        presence_penalty=draw(often([0, 0, 1, -2])),
        frequency_penalty=draw(often([0, 0, 0.3])),
        penalty_last_n=draw(often([64, 64, 0, 1, 10, -1])),
    )


def likeliest_first(oracle: SamplingOracle, chain: Settings, row: Floats) -> tuple[Floats, Floats]:
    """Which of tied tokens a cut keeps is nobody's to say."""
    ours, theirs = oracle.compare(chain, row)
    return -np.sort(-ours), -np.sort(-theirs)


def exact_cut(oracle: SamplingOracle, chain: Settings, row: Floats) -> Floats:
    """top-p in float64. llama.cpp's own sum in floats is off by parts in a thousand where thousands of tokens
    are all but equally likely.
    """
    whole = replace(chain, top_p=1)
    likely = likeliest_first(oracle, replace(whole, min_p=0, temperature=1), row)[1].astype(np.float64)
    count = int(np.searchsorted(np.cumsum(likely / likely.sum()), chain.top_p * (1 - 1e-9))) + 1
    left = likeliest_first(oracle, whole, row)[1]
    return np.where(np.arange(len(left)) < count, left, 0) / left[:count].sum()


def check(oracle: SamplingOracle, chain: Settings, row: Floats) -> None:
    ours, theirs = likeliest_first(oracle, chain, row)
    wanted, count = [theirs], np.count_nonzero(ours)
    for name in ("top_p", "typical_p"):
        value = getattr(chain, name)
        if value < 1:  # where it cuts is a matter of rounding
            nudged = (value * (1 - ROUNDING), min(value * (1 + ROUNDING), np.nextafter(np.float32(1), 0)))
            less, more = (likeliest_first(oracle, replace(chain, **{name: one}), row)[1] for one in nudged)
            wanted += [less, more]
            if name == "top_p" and np.count_nonzero(less) <= count <= np.count_nonzero(more):
                wanted.append(np.where(np.arange(len(more)) < count, more, 0) / more[:count].sum())
    if chain.top_p < 1 and chain.temperature > 0:
        wanted.append(exact_cut(oracle, chain, row))
    close = [
        len(np.flatnonzero(ours)) <= len(np.flatnonzero(one > 0))
        and np.allclose(ours, one, rtol=2e-5, atol=1e-12)
        for one in wanted
    ]
    assert any(close), (
        f"{ours[:5]}, {np.count_nonzero(ours)} tokens; {theirs[:5]}, {np.count_nonzero(theirs)} tokens"
    )


@pytest.mark.parametrize("n", SIZES)
@settings(max_examples=120)
@given(data=st.data())
def test_distributions_are_llama_cpps(
    oracles: dict[int, SamplingOracle], n: int, data: st.DataObject
) -> None:
    row, chain = data.draw(rows()).logits(n), data.draw(chains(n))
    try:
        check(oracles[n], chain, row)
    except Refused:
        biased = row.astype(np.float64)
        for token, value in chain.logit_bias:
            biased[token] += value
        assert np.isneginf(biased).all()
        event("nothing left")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "chain",
    [
        Settings(),
        Settings(top_k=300, top_p=0.9),
        Settings(top_p=0.9),
        Settings(typical_p=0.9),
        Settings(min_p=0.1),
    ],
    ids=["temperature", "top-k", "top-p", "typical", "min-p"],
)
def test_the_largest_logits_there_can_be(oracles: dict[int, SamplingOracle], chain: Settings, n: int) -> None:
    row = np.linspace(-HUGE, HUGE, n, dtype=np.float32)
    pushed = [(n - 1, 1e38), (n - 2, HUGE), (n - 2, HUGE)]  # over the edge, and back to it
    for one in (chain, replace(chain, logit_bias=pushed)):
        ours, _ = oracles[n].compare(one, row)
        assert ours[n - 1] == 1 / (1 + len(one.logit_bias[2:]))
        assert ours.sum() == 1


@pytest.mark.parametrize("n", SIZES[:-1])
@settings(max_examples=40)
@given(data=st.data())
def test_typical_is_llama_cpps(oracles: dict[int, SamplingOracle], n: int, data: st.DataObject) -> None:
    """Beyond 80 logits its own floats underflow, and no token would be typical. Of tied ones it keeps any."""
    row = untied(data.draw(rows((0.01, 1, 3), grids=(0,), most_huge=0)).logits(n))
    chain = Settings(
        temperature=0.8,
        typical_p=data.draw(st.sampled_from([0.2, 0.7, 0.95])),
        top_k=data.draw(st.sampled_from([0, 40])),
        top_p=data.draw(st.sampled_from([1, 0.9])),
    )
    check(oracles[n], chain, row)


@pytest.mark.parametrize("n", SIZES)
@settings(max_examples=40)
@given(kind=rows())
def test_greedy_is_the_first_of_the_largest(oracles: dict[int, SamplingOracle], n: int, kind: Row) -> None:
    row = kind.logits(n)
    ours, _ = oracles[n].compare(Settings(temperature=0), row)
    assert (ours.argmax(), ours.sum()) == (row.argmax(), 1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("chain", [Settings(temperature=0), Settings(), Settings(top_k=3)], ids=str)
def test_logits_that_are_no_numbers_are_refused(
    oracles: dict[int, SamplingOracle], n: int, chain: Settings
) -> None:
    row = np.linspace(-3, 3, n, dtype=np.float32)
    for place in [0, n - 1, *np.random.default_rng(0).integers(0, n, 20)]:
        for value in (np.nan, np.inf):
            broken = row.copy()
            broken[place] = value
            with pytest.raises(Refused):
                oracles[n].compare(chain, broken)
    with pytest.raises(Refused):
        oracles[n].compare(chain, np.full(n, -np.inf))


# ---- whole drafts ------------------------------------------------------------------------------------------

DRAFT, K, DRAWS = 3, 6, 4000


def drafted(n: int, seed: int) -> tuple[Floats, np.ndarray, np.ndarray]:
    """Rows, and proposals that are right now and then: among the likeliest tokens, and beside them."""
    random = np.random.default_rng(seed)
    rows = (1.5 * random.standard_normal((DRAFT + 1, n))).astype(np.float32)
    head = random.permutation(n)[:30]
    rows[:, head] += 12 - np.arange(30, dtype=np.float32) / 2
    candidates = np.array([[*head[: K - 2], *random.integers(0, n, 2)] for _ in range(DRAFT)])
    q = np.exp(np.take_along_axis(rows[:DRAFT], candidates, 1) / 1.5) * random.uniform(0.3, 2, (DRAFT, K))
    return rows, candidates, q / q.sum(1, keepdims=True)


@pytest.mark.parametrize("n", [256, 700, 5000])
@pytest.mark.parametrize(
    "chain",
    [
        Settings(temperature=0.9),
        Settings(temperature=0.9, logit_bias=[(5, 9.0), (88, -3.0)], text=[1, 2, 250], repeat_penalty=1.5),
        Settings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
        Settings(min_p=0.01),
        Settings(top_p=0.9),
    ],
    ids=["temperature", "bias and penalties", "chain", "min-p", "top-p"],
)
def test_drafted_texts_have_the_rows_distributions(
    oracles: dict[int, SamplingOracle], chain: Settings, n: int
) -> None:
    rows, candidates, q = drafted(n, seed=n)
    rounds = oracles[n].rounds(chain, rows, candidates, q, DRAWS, seed=1)
    assert 0.1 < rounds.accepted.mean() / DRAFT < 0.9
    assert set(rounds.accepted) == set(range(DRAFT + 1))
    exact = [oracles[n].compare(chain, row)[1] for row in rows]
    for place, p in enumerate(exact):
        counts = Counter((int(token),) for token in rounds.tokens[:, place])
        assert fit(counts, {(token,): float(p[token]) for token in np.flatnonzero(p)}).holds(1e-6), place
    # Neighbours are independent, as the rows are given.
    for place in range(DRAFT):
        shares = [np.bincount(np.arange(n) % 7, p) for p in exact[place : place + 2]]
        pairs = Counter(map(tuple, (rounds.tokens[:, place : place + 2] % 7).tolist()))
        expected = {(a, b): float(shares[0][a] * shares[1][b]) for a in range(7) for b in range(7)}
        assert fit(pairs, {pair: p for pair, p in expected.items() if p > 0}).holds(1e-6), place


def test_no_row_is_sampled_after_the_first_that_cannot_stand(oracles: dict[int, SamplingOracle]) -> None:
    rows, candidates, q = drafted(5000, seed=2)
    candidates[:, 0] = rows[:DRAFT].argmax(1)
    for chain in (Settings(temperature=0), Settings(top_k=1), Settings(top_k=3)):
        rounds = oracles[5000].rounds(chain, rows, candidates, q, DRAWS, seed=2)
        possible = [np.flatnonzero(oracles[5000].compare(chain, row)[0]) for row in rows[:DRAFT]]
        if chain.top_k != 3:
            assert (rounds.sampled == rounds.accepted + 1).all()
        for accepted, sampled in zip(rounds.accepted, rounds.sampled, strict=True):
            assert accepted < sampled <= DRAFT + 1
        # All rows but the last one sampled were passed by a token that its row can be followed by.
        assert set(rounds.sampled) == set(range(1, DRAFT + 2))
        for place in range(DRAFT):
            passed = rounds.sampled > place + 1
            whole = passed & (rounds.accepted > place)
            assert np.isin(rounds.tokens[whole, place], possible[place]).all()
