"""What the engine returns. Shapes are in brackets: n drafted tokens, K candidates for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class Draft:
    """A proposal of the head: the path through the lattice, and the lattice's rows along that path.

    The anchor isn't part of it. `verify` takes a draft or any list of token ids. A draft drawn at a
    temperature above 0 must reach it as it is: without its `proposal` the text would not follow the target's
    distribution.
    """

    tokens: list[int]  # [n]
    probabilities: npt.NDArray[np.float32]  # [n] of the token, among its candidates
    candidates: npt.NDArray[np.int32]  # [n, K] token ids
    scores: npt.NDArray[np.float32]  # [n, K] of the candidates, after the path's previous token
    proposal: npt.NDArray[np.float32] | None = None  # [n, K] q, what each token was drawn from; None: certain

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Verdict:
    """What the target made of a draft. All of `tokens` are committed."""

    tokens: list[int]  # accepted drafts, then the bonus token where there is one
    n_accepted: int  # drafts among them
    bonus_token: int | None  # the target's own choice; None where an accepted end token cut the run
    finished: bool  # the last token is an end-of-generation token


@dataclass
class DrafterStats:
    """What one drafter did: its rounds, the tokens it drafted, and those of them that stood."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Counts and times of one request. Widths and counts never include the anchor.

    The acceptance figures are defined as vLLM defines them. A round is one draft and its verification; a
    last step that has no room for a draft is none, so plain decoding has no rounds. A draft that
    `min_draft_probability` or a grammar cuts to nothing makes a round of 0 drafted tokens.
    """

    drafting: str = "on"  # "on", "on, ..." where the width was limited, else why nothing was drafted
    max_draft_tokens: int = 0  # of the head, a round; drafts that were looked up in the text can be longer
    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt: already in the caches
    generated_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)  # [width] rounds that did
    rounds_by_width: list[int] = field(default_factory=list)  # [width + 1] rounds that drafted 0, 1, ...
    plain_steps: int = 0  # steps without a draft
    by_drafter: dict[str, DrafterStats] = field(default_factory=dict)  # "head", "map-k4v", "mod"
    # By how much verifying several tokens at once moved a logit when target, device and build were checked,
    # at the widths that were used; 0.0: not by a bit. None: plain decoding.
    logit_difference: float | None = None
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0  # plain steps included

    def count(self, drafter: str | None, n_drafted: int, n_accepted: int) -> None:
        """One step of a text."""
        if drafter is None:
            self.plain_steps += 1
            return
        self.rounds += 1
        self.drafted += n_drafted
        self.accepted += n_accepted
        own = self.by_drafter.setdefault(drafter, DrafterStats())
        own.rounds += 1
        own.drafted += n_drafted
        own.accepted += n_accepted
        self.rounds_by_width += [0] * (n_drafted + 1 - len(self.rounds_by_width))
        self.rounds_by_width[n_drafted] += 1
        self.accepted_by_position += [0] * (n_drafted - len(self.accepted_by_position))
        for position in range(n_accepted):
            self.accepted_by_position[position] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a round commits: 1 + accepted / rounds. 1.0 without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """accepted / drafted. 0.0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of rounds that accepted the 1st, 2nd, ... drafted token: [the widest draft]."""
        return [n / self.rounds if self.rounds else 0.0 for n in self.accepted_by_position]

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, over the seconds of drafting and verifying: the prefill isn't counted."""
        seconds = self.draft_seconds + self.verify_seconds
        return (self.generated_tokens - 1) / seconds if seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All figures, the derived ones included; ready for JSON."""
        return asdict(self) | {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "tokens_per_second": self.tokens_per_second,
        }


class TokenLogprob(NamedTuple):
    """The target's own log-probability of a committed token, at temperature 1 and before any sampler."""

    token: int
    logprob: float  # natural logarithm
    top: list[
        tuple[int, float]
    ]  # (token, logprob) of the likeliest ones, best first: as many as were asked for


@dataclass(frozen=True)
class Piece:
    """One step of a stream: the tokens of a prefill or a round, and the text that is certain since.

    Text lags behind where a character is incomplete or a stop string might be forming, so it can be empty.
    The last piece, and no other, has `finish_reason` and `stats`.
    """

    text: str
    tokens: list[int]
    finish_reason: str | None = None
    stats: Stats | None = None
    logprobs: list[TokenLogprob] | None = None  # of `tokens`, where they were asked for


@dataclass(frozen=True)
class Result:
    """A finished generation.

    finish_reason: "stop" (an end-of-generation token or a stop string) or "length" (`max_tokens`, or the
    context is full). `tokens` holds the end-of-generation token where there was one, and the token that
    completed a stop string; `text` holds neither.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    seed: int  # gives the same text again, with the same settings on the same engine
    stats: Stats
    logprobs: list[TokenLogprob] | None = None  # of `tokens`, where they were asked for


@dataclass(frozen=True)
class Memory:
    """Bytes that a loaded pair takes, beside what llama.cpp takes for the target's context.

    All but the first two are 0 without a head.
    """

    context_size: int  # tokens
    target_weights: int
    drafter_weights: int = 0  # without the draft vocabulary
    draft_vocabulary: int = 0  # rows copied from the target's output table; 0: drafts need no copy
    draft_tokens: int = 0  # tokens that drafts are made of,
    target_tokens: int = 0  # of the target's
    drafter_kv: int = 0  # at this context_size
    drafter_kv_per_token: int = 0  # of context, by layers without a window; 0: all layers slide
    drafter_compute: int | None = 0  # None: ggml's schedulers hold it, one a graph
