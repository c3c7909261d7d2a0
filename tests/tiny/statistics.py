"""How well counted texts fit the distribution they should have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Text = tuple[int, ...]
Floats = npt.NDArray[np.float64]

LEAST_EXPECTED = 5.0  # in a cell: below, Pearson's statistic no longer has the chi-square distribution
BINS = 50  # of numbers that should be uniform


@dataclass(frozen=True)
class Fit:
    draws: int
    statistic: float  # Pearson's
    freedom: int  # cells - 1
    p: float  # 0 where something was drawn that can't be
    distance: float  # total variation between what was counted and what should be
    expected_distance: float  # its mean where the texts do have that distribution

    def holds(self, level: float) -> bool:
        """False with a chance of 2 * level at most where the texts do have that distribution."""
        # McDiarmid: one draw moves the distance by 1 / draws at most, so that
        # P(distance >= its mean + x) <= exp(-2 draws x^2).
        margin = math.sqrt(math.log(1 / level) / (2 * self.draws))
        return self.p >= level and self.distance < self.expected_distance + margin


def fit(counts: Counter[Text], expected: Mapping[Text, float]) -> Fit:
    """expected: every text that can be, with its probability."""
    draws = counts.total()
    probabilities = np.array(list(expected.values()))
    if abs(probabilities.sum() - 1) > 1e-9:
        raise ValueError(f"the probabilities add up to {probabilities.sum()}")
    observed = np.array([counts[text] for text in expected], np.float64)
    impossible = draws - observed.sum()
    statistic, freedom = _chi_square(observed, draws * probabilities)
    p = float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0
    distance = (np.abs(observed / draws - probabilities).sum() + impossible / draws) / 2
    return Fit(
        draws,
        statistic,
        freedom,
        0.0 if impossible else p,
        float(distance),
        _expected_distance(probabilities, draws),
    )


def uniform_fit(numbers: Floats) -> Fit:
    """Of numbers in [0, 1) to the uniform distribution."""
    bins = np.minimum((numbers * BINS).astype(int), BINS - 1)
    counts = Counter({(int(index),): int(count) for index, count in enumerate(np.bincount(bins))})
    return fit(counts, {(index,): 1 / BINS for index in range(BINS)})


def uniformity(p_values: list[float]) -> float:
    """Kolmogorov and Smirnov's p-value of these being uniform, as p-values of true hypotheses are."""
    return float(stats.kstest(p_values, "uniform").pvalue)


def _chi_square(observed: Floats, expected: Floats) -> tuple[float, int]:
    """Statistic and degrees of freedom. Rare cells are pooled until each has LEAST_EXPECTED."""
    pools: list[list[float]] = [[0.0, 0.0]]
    for cell in np.argsort(expected, kind="stable"):
        if pools[-1][1] >= LEAST_EXPECTED:
            pools.append([0.0, 0.0])
        pools[-1][0] += observed[cell]
        pools[-1][1] += expected[cell]
    counted, wanted = np.array(pools).T
    return float(((counted - wanted) ** 2 / wanted).sum()), len(pools) - 1


def _expected_distance(probabilities: Floats, draws: int) -> float:
    """Half the cells' mean absolute deviations from their probability, by de Moivre's formula for n draws:
    E|X - np| = 2 k C(n, k) p^k (1 - p)^(n - k + 1), k = floor(np) + 1.
    """
    p = probabilities[(probabilities > 0) & (probabilities < 1)]
    k = np.floor(draws * p) + 1
    return float((k * stats.binom.pmf(k, draws, p) * (1 - p)).sum() / draws)
