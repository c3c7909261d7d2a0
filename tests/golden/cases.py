"""What the golden files hold, and how they are read: one .json and one .npz a case."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny.lattice import Lattice

FOLDER = Path(__file__).parent
PROMPT_LENGTH = 40  # longer than every window


@dataclass(frozen=True)
class Case:
    head: str  # name in tiny.heads.HEADS
    n_tokens: int = 26  # committed after the prompt
    width: int | None = None  # drafted tokens a round; None: block_size - 1


# fmt: off
_ONCE = [
    "plain", "one-layer", "five-taps", "last-tap", "taps-out-of-order", "sliding", "mixed", "causal",
    "causal-absent", "narrow-window", "narrow-window-causal", "window-off", "block-16", "scaled", "yarn",
    "own-embedding", "own-output", "reduced-vocabulary", "tied-target", "dflash-1", "dflash-1-reduced",
]
# fmt: on
CASES: dict[str, Case] = {name: Case(name) for name in _ONCE} | {
    "plain-narrow": Case("plain", width=3),
    "chain": Case("chain", n_tokens=60),
    "chain-narrow": Case("chain", n_tokens=40, width=4),
    "chain-wide": Case("chain-wide", n_tokens=60),
    "chain-ending": Case("chain-ending", n_tokens=40),
}


@dataclass(frozen=True)
class Round:
    position: int
    anchor: int
    drafted: list[int]
    n_accepted: int  # drafts the target agrees with
    n_committed: int  # less than n_accepted + 1 where an end token or the last token wanted cut the run


@dataclass(frozen=True)
class Golden:
    prompt: list[int]
    committed: list[int]
    rounds: list[Round]
    lattices: dict[int, Lattice]  # by round; not of every one, for the files' size


def load(name: str) -> Golden:
    stored: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    lattices = {}
    with np.load(FOLDER / f"{name}.npz") as arrays:
        for turn in stored["lattice_rounds"]:
            scores = arrays.get(f"scores_{turn}")
            lattices[turn] = Lattice(
                arrays[f"candidates_{turn}"].astype(np.int64), arrays[f"unary_{turn}"], scores
            )
    return Golden(stored["prompt"], stored["committed"], [Round(*row) for row in stored["rounds"]], lattices)
