"""Our drafter against llama.cpp's own on the same files, where llama.cpp implements what the head asks for.

It doesn't for: a causal key that is absent, a window smaller than the block, a tap on the last layer, K(K+1)
over the hidden size, a reduced vocabulary with a selector; and targets whose graphs hand out no taps.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tiny.files import TinyFiles
from tiny.heads import HEADS, SLIDING
from tiny.lattice import Lattice, assert_same_lattice
from tiny.native import Native
from tiny.numbers import token_ids

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
ORACLE = FOLDER / "llama_oracle"

pytestmark = pytest.mark.skipif(
    not ORACLE.exists(),
    reason=f"no {ORACLE}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build llama_oracle",
)

WIRED = ("qwen3", "llama", "qwen3moe", "qwen35")  # targets whose graphs hand out taps, and that can roll back


def implemented(name: str) -> bool:
    head, target = HEADS[name], HEADS[name].of
    return (
        target.architecture in WIRED
        and max(head.taps) < target.n_layer - 1
        and (head.causal is not None or SLIDING not in head.layers)
        and (head.window is None or head.window >= head.block_size)
        and (
            head.version == 1
            or (head.top_k * (head.top_k + 1) <= target.n_embd and head.n_draft_vocab is None)
        )
    )


NAMES = [name for name in HEADS if implemented(name)]


def oracle(pair: tuple[Path, Path], width: int, prompt: list[int]) -> tuple[int, Lattice]:
    """llama.cpp's anchor and lattice after the prompt."""
    command = [ORACLE, *pair, str(width), *map(str, prompt)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    rows = np.array(answer["rows"], np.float32)
    k = answer["k"]
    if k == 0:
        return answer["anchor"], Lattice(rows[:, :1].astype(np.int64), rows[:, 1:], None)
    return answer["anchor"], Lattice(rows[:, :k].astype(np.int64), None, rows[:, k:].reshape(-1, k, k))


def test_most_heads_are_compared() -> None:
    assert len(NAMES) >= 15
    assert {HEADS[name].target for name in NAMES} >= {"qwen3", "qwen3-tied", "llama", "qwen3moe", "qwen35"}


@pytest.mark.parametrize("name", NAMES)
def test_lattice_is_llama_cpps(name: str, tiny: TinyFiles) -> None:
    pair = tiny.pair(name)
    for seed, width in ((50, HEADS[name].block_size - 1), (51, 2)):
        prompt = token_ids(seed, 45, 0, 300)
        anchor, theirs = oracle(pair, width, prompt)
        with Native(*pair) as engine:
            assert engine.prefill(prompt) == anchor
            assert_same_lattice(engine.draft(width), theirs)
