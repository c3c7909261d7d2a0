"""The distribution a sampler chain leaves of a target's logits: the oracle of sampled decoding.

Written from what llama.cpp's samplers do, in float64 and without its code: logit bias, penalties, grammar,
top-k, typical-p, top-p, min-p, temperature, in this order. A sampler at its neutral value is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float64]
Allowed = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Chain:
    """Settings under the names `Engine.generate` gives them."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed: Callable[[Sequence[int]], Allowed] | None = None  # a grammar: generated tokens -> mask [n_vocab]


def distribution(
    chain: Chain, logits: npt.ArrayLike, prompt: Sequence[int], generated: Sequence[int]
) -> Probabilities:
    """[n_vocab] probabilities of the next token after prompt + generated, 0 for what can't be chosen."""
    scores = np.array(logits, np.float64)
    for token, bias in chain.logit_bias.items():
        scores[token] += bias
    _penalize(chain, scores, [*prompt, *generated])
    if chain.allowed is not None:
        scores[~chain.allowed(generated)] = -np.inf
    if chain.temperature <= 0:
        result = np.zeros_like(scores)
        result[scores.argmax()] = 1.0
        return result

    # Best first. What is impossible is no candidate: no sampler may keep it.
    kept = np.argsort(-scores, kind="stable")
    kept = kept[np.isfinite(scores[kept])]
    if chain.top_k > 0:
        kept = kept[: chain.top_k]
    if chain.typical_p < 1:
        kept = _typical(kept, scores, chain.typical_p)
    if chain.top_p < 1:
        reached = np.cumsum(softmax(scores[kept])) >= chain.top_p
        kept = kept[: _through_first(reached)]
    if chain.min_p > 0:
        kept = kept[scores[kept] >= scores[kept[0]] + np.log(chain.min_p)]
    result = np.zeros_like(scores)
    result[kept] = softmax(scores[kept] / chain.temperature)
    return result


def softmax(scores: Probabilities) -> Probabilities:
    weights = np.exp(scores - scores.max())
    result: Probabilities = weights / weights.sum()
    return result


def _penalize(chain: Chain, scores: Probabilities, text: Sequence[int]) -> None:
    """By how often each token is among the last penalty_last_n."""
    if chain.penalty_last_n <= 0:
        return
    for token, count in zip(*np.unique(text[-chain.penalty_last_n :], return_counts=True), strict=True):
        # A penalty above 1 pushes down on both sides of 0.
        scores[token] *= chain.repeat_penalty if scores[token] <= 0 else 1 / chain.repeat_penalty
        scores[token] -= count * chain.frequency_penalty + chain.presence_penalty


def _typical(kept: npt.NDArray[np.intp], scores: Probabilities, p: float) -> npt.NDArray[np.intp]:
    """The candidates whose surprise is nearest to the entropy, until they have more than p; best first."""
    probabilities = softmax(scores[kept])
    surprise = -np.log(probabilities)
    entropy = probabilities @ surprise
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    exceeded = np.cumsum(probabilities[order]) > p
    return kept[np.sort(order[: _through_first(exceeded)])]


def _through_first(reached: Allowed) -> int:
    """How many entries there are up to and with the first true one; all where none is."""
    return int(reached.argmax()) + 1 if reached.any() else len(reached)
