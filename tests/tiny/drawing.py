"""Texts drawn from the engine in every way it has, and the distribution they should have.

The first token is the prefill's, the others come from rounds. Of three tokens, at width 1 the second is an
accepted draft or drawn from the residual, and the third a bonus token or a second round's; at greater widths
the third is a second draft, its residual, or a second round's. Longer texts reach every place of a draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tiny.native import Native
from tiny.sampling import Chain, distribution
from tiny.statistics import Text
from tiny.symbols import END, PROMPT, Case

LENGTH, LONG = 3, 20
WIDTHS = (1, 2, 3, 7)


# ---- what should be ------------------------------------------------------------------------------


class Oracle:
    """The distribution of texts after PROMPT, from the target alone, decoded one row at a time."""

    def __init__(self, target: Native) -> None:
        self._target = target
        self._logits: dict[Text, npt.NDArray[np.float32]] = {}

    def logits(self, generated: Text) -> npt.NDArray[np.float32]:
        logits = self._logits.get(generated)
        if logits is None:
            self._target.prefill([*PROMPT, *generated], drafting=False)
            logits = self._target.logits()[-1]
            if len(generated) < LENGTH:
                self._logits[generated] = logits
        return logits

    def following(self, chain: Chain, generated: Text) -> npt.NDArray[np.float64]:
        return distribution(chain, self.logits(generated), PROMPT, generated)

    def texts(self, chain: Chain, length: int = LENGTH) -> dict[Text, float]:
        """Every text of `length` tokens, or fewer where an end token comes before, with its probability."""
        ended: dict[Text, float] = {}
        going: dict[Text, float] = {(): 1.0}
        for _ in range(length):
            longer: dict[Text, float] = {}
            for text, probability in going.items():
                following = self.following(chain, text)
                for token in np.flatnonzero(following).tolist():
                    into = ended if token == END else longer
                    into[(*text, token)] = probability * float(following[token])
            going = longer
        return ended | going

    def places(self, chain: Chain, text: Text, seed: int) -> list[float]:
        """Where each token lies in its own distribution, likeliest first: independent and uniform in [0, 1)
        where each was drawn from it. The seed spreads a token over the share it has.
        """
        spread = np.random.default_rng(seed).random(len(text))
        result = []
        for place, token in enumerate(text):
            following = self.following(chain, text[:place])
            likelier = following > following[token]
            likelier[:token] |= following[:token] == following[token]
            result.append(float(following[likelier].sum() + spread[place] * following[token]))
            if following[token] == 0:
                raise AssertionError(f"token {token} can't come after {text[:place]}, but did (seed {seed})")
        return result


def first_tokens(texts: dict[Text, float]) -> dict[Text, float]:
    result: dict[Text, float] = {}
    for text, probability in texts.items():
        result[text[:1]] = result.get(text[:1], 0.0) + probability
    return result


# ---- what is drawn -------------------------------------------------------------------------------


@dataclass
class Drawn:
    texts: Counter[Text] = field(default_factory=Counter)
    origins: Counter[tuple[int, str]] = field(default_factory=Counter)  # place in the text, what drew it
    drafted: int = 0
    accepted: int = 0

    def __iadd__(self, other: Drawn) -> Drawn:
        self.texts.update(other.texts)
        self.origins.update(other.origins)
        self.drafted += other.drafted
        self.accepted += other.accepted
        return self

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def first_tokens(self) -> Counter[Text]:
        counts: Counter[Text] = Counter()
        for text, count in self.texts.items():
            counts[text[:1]] += count
        return counts


def plain(engine: Any, case: Case, seeds: Iterable[int], length: int = LENGTH) -> Drawn:
    drawn = Drawn()
    for seed in seeds:
        result = engine.generate(PROMPT, max_tokens=length, speculate=False, seed=seed, **case.arguments)
        drawn.texts[tuple(result.tokens)] += 1
    return drawn


def looped(engine: Any, case: Case, seeds: Iterable[int], length: int = LENGTH) -> Drawn:
    """By `generate`, which drafts no further than the text goes."""
    drawn = Drawn()
    for seed in seeds:
        result = engine.generate(PROMPT, max_tokens=length + 2, seed=seed, **case.arguments)
        drawn.texts[tuple(result.tokens[:length])] += 1
        drawn.drafted += result.stats.drafted
        drawn.accepted += result.stats.accepted
    return drawn


def stepped(
    engine: Any,
    case: Case,
    seeds: Iterable[int],
    length: int = LENGTH,
    *,
    width: int = 7,
    draft_temperature: float | None = None,
    min_probability: float = 0.0,
    handle: Callable[[Any], Any] | None = None,
) -> Drawn:
    """By hand, every draft `width` tokens wide. handle: makes of a draft what `verify` is given."""
    drawn = Drawn()
    for seed in seeds:
        text = [engine.prefill(PROMPT, seed=seed, **case.arguments)]
        while len(text) < length and text[-1] != END:
            draft = engine.draft(width, draft_temperature, min_probability)
            verdict = engine.verify(draft if handle is None else handle(draft))
            for index in range(len(verdict.tokens)):
                drawn.origins[len(text) + index + 1, _origin(index, verdict.n_accepted, len(draft))] += 1
            text += verdict.tokens
            drawn.drafted += len(draft)
            drawn.accepted += verdict.n_accepted
        drawn.texts[tuple(text[:length])] += 1
    return drawn


def _origin(index: int, n_accepted: int, n_drafted: int) -> str:
    if index < n_accepted:
        return "draft"
    return "bonus" if n_accepted == n_drafted else "residual"


def bare(draft: Any) -> Any:
    """Its tokens alone: the target has to take them for certain proposals."""
    return draft.tokens


def halved(draft: Any) -> Any:
    """A lie about what the tokens were drawn from, and too many are accepted."""
    return replace(draft, proposal=draft.proposal / 2)


def swapped(draft: Any) -> Any:
    """A lie that still adds up to 1: each candidate is given the chance of its mirror image."""
    return replace(draft, proposal=draft.proposal[:, ::-1].copy())


Way = Callable[..., Drawn]
DRAFTED: dict[str, Way] = {f"width {width}": partial(stepped, width=width) for width in WIDTHS}
# What else a caller can do; none of it may change the distribution.
SPECIAL: dict[str, Way] = {
    "generate()": looped,
    "greedy drafts": partial(stepped, width=3, draft_temperature=0.0),
    "drafts at T 2": partial(stepped, width=3, draft_temperature=2.0),
    "cut drafts": partial(stepped, min_probability=0.2),
    "bare tokens": partial(stepped, width=3, handle=bare),
}
BROKEN: dict[str, Way] = {
    "broken: q halved": partial(stepped, width=2, handle=halved),
    "broken: q swapped": partial(stepped, width=2, handle=swapped),
}
