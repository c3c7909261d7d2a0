"""The pair whose texts can be counted: 24 tokens, distributions neither flat nor sure, drafts right about
half the time. And the sampler chains it is run with, each with the oracle's view of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tiny import head_file, targets
from tiny.heads import FULL, Head
from tiny.sampling import Allowed, Chain

HEAD = Head(
    "symbols",
    seed=140,
    taps=(0,),
    layers=(FULL,),
    n_head=2,
    n_head_kv=1,
    n_ff=48,
    rank=16,
    top_k=16,
    output_multiplier=0.1,
    follows_chain=True,
    knows_pairs=True,
)
VOCABULARY = HEAD.of.vocabulary
END = VOCABULARY.eos
PROMPT = [4, 14, 5, 8, 8, 8, 12, 12]  # some tokens several times, for the penalties


def write(folder: Path) -> tuple[Path, Path]:
    """The files of target and head."""
    target = targets.write(HEAD.of, folder / "symbols.gguf")
    return target, head_file.write(HEAD, folder / "symbols-head.gguf")


# ---- two grammars ----------------------------------------------------------------------------------

# The symbols in two classes, taking turns; a text may end after each pair.
TURNS = "root ::= ([0-4a-d] [5-9f-i-])*"
_FIRST = "01234abcd"


def turns(generated: Sequence[int]) -> Allowed:
    text = _spell(generated)
    pieces = VOCABULARY.tokens
    result = np.array([piece[0] != "<" and _takes_turns(text + piece) for piece in pieces])
    result[END] = len(text) % 2 == 0
    return result


def _takes_turns(text: str) -> bool:
    return all((symbol in _FIRST) == (place % 2 == 0) for place, symbol in enumerate(text))


INTEGER = {"type": "integer"}  # a JSON schema; llama.cpp's converter allows 16 digits


def integer(generated: Sequence[int]) -> Allowed:
    text, digits = _spell(generated), "-?(0|[1-9][0-9]{0,15})"
    result = np.array([bool(re.fullmatch(f"-|{digits}", text + piece)) for piece in VOCABULARY.tokens])
    result[END] = bool(re.fullmatch(digits, text))
    return result


def _spell(tokens: Sequence[int]) -> str:
    return "".join(VOCABULARY.tokens[token] for token in tokens)


# ---- chains --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A sampler chain: as the engine is told it, and as the oracle computes it."""

    settings: dict[str, Any]
    constraint: dict[str, Any] = field(default_factory=dict)
    allowed: Callable[[Sequence[int]], Allowed] | None = None  # what the constraint allows

    @property
    def chain(self) -> Chain:
        return Chain(**self.settings, allowed=self.allowed)

    @property
    def arguments(self) -> dict[str, Any]:
        """For `Engine.generate` and `prefill`."""
        return {"temperature": 1.0, **self.settings, **self.constraint}


_BIAS = {3: 2.0, 8: -1.5, 11: 1.0, 14: -math.inf}

# Windows of the penalties are shorter than prompt and text, so that tokens leave them.
CASES: dict[str, Case] = {
    "temperature 0.7": Case({"temperature": 0.7}),
    "temperature 1.0": Case({}),
    "temperature 1.5": Case({"temperature": 1.5}),
    "top-k 5": Case({"top_k": 5}),
    "top-p 0.8": Case({"top_p": 0.8}),
    "min-p 0.1": Case({"min_p": 0.1}),
    "typical 0.7": Case({"typical_p": 0.7}),
    "repetition penalty": Case({"repeat_penalty": 1.6, "penalty_last_n": 6}),
    "presence penalty": Case({"presence_penalty": 1.2, "penalty_last_n": 5}),
    "frequency penalty": Case({"frequency_penalty": 0.9, "penalty_last_n": 6}),
    "logit bias": Case({"logit_bias": _BIAS}),
    "grammar": Case({}, {"grammar": TURNS}, turns),
    "json schema": Case({}, {"json_schema": INTEGER}, integer),
    # llama.cpp's defaults, with a top-k that bites in this vocabulary
    "top-k, top-p, min-p, T 0.8": Case({"top_k": 12, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8}),
    "penalties, min-p, T 0.9": Case(
        {
            "repeat_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            "min_p": 0.05,
            "temperature": 0.9,
        }
    ),
    "typical, T 1.3": Case({"typical_p": 0.8, "temperature": 1.3}),
    "penalties, bias, top-p": Case(
        {
            "repeat_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.4,
            "penalty_last_n": 7,
            "logit_bias": _BIAS,
            "top_p": 0.9,
        }
    ),
    "grammar, penalty, top-k, T 0.7": Case(
        {"repeat_penalty": 1.4, "penalty_last_n": 8, "top_k": 8, "temperature": 0.7},
        {"grammar": TURNS},
        turns,
    ),
}
