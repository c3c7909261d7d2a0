"""The policy in made-up worlds: against plain decoding, the best that never changes, and what must hold.

tests/native/policy.cpp has the machines and the worlds, and reads scripts.
"""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
POLICY = FOLDER / "policy"

pytestmark = pytest.mark.skipif(
    not POLICY.exists(),
    reason=f"no {POLICY}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build policy",
)

GRID = (*range(1, 8), 11, 15, 23, 31, 47, 63)


def run(*arguments: str, script: str = "") -> list[str]:
    done = subprocess.run([POLICY, *arguments], input=script, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Rates(NamedTuple):  # as ratios to plain decoding
    auto: float
    best: float  # of 24 arms that never change, in hindsight
    best_arm: str


def simulate(machine: str, world: str, n: int, *flags: str, seed: int = 1) -> Rates:
    auto, best, arm = run("simulate", machine, world, str(seed), str(n), *flags)[0].split()
    return Rates(float(auto), float(best), arm)


def alone(machine: str, world: str, n: int, *flags: str, seed: int = 1) -> float:
    return float(run("simulate", machine, world, str(seed), str(n), "alone", *flags)[0])


# ---- simulated worlds --------------------------------------------------------------------------------------

# 3,200 tokens each: what is learned and probed on the way counts, and the best arm is known in hindsight.
STEADY = [
    ("gpu", "code", 0.96),
    ("gpu", "useless", 0.96),
    ("gpu", "always", 0.97),
    ("gpu", "editing", 0.95),
    ("gpu", "loops", 0.95),
    ("cliff", "prose", 0.96),
    ("cliff", "editing", 0.95),
    ("small-cpu", "code", 0.98),
    ("small-cpu", "boastful", 0.97),
    ("small-cpu", "editing", 0.97),
    ("linear-cpu", "code", 0.98),
    ("linear-cpu", "always", 0.96),
    ("dear", "editing-prose", 0.96),
    ("deep", "code", 0.98),
    ("big-head", "editing", 0.95),
]


@pytest.mark.parametrize(("machine", "world", "bar"), STEADY)
def test_auto_keeps_up_with_the_best_that_never_changes(machine: str, world: str, bar: float) -> None:
    rates = simulate(machine, world, 3200, "texts=4")
    assert rates.auto >= bar * rates.best, rates


@pytest.mark.parametrize("machine", ["small-cpu", "linear-cpu", "dear", "deep"])
def test_auto_is_ahead_where_texts_change_their_kind(machine: str) -> None:
    rates = simulate(machine, "mixed", 3200, "texts=2")
    assert rates.auto > 1.03 * rates.best, rates


NEVER = [
    ("gpu", "never"),
    ("gpu", "never-useless"),
    ("cliff", "never-boastful"),
    ("small-cpu", "third"),
    ("small-cpu", "third-useless"),
    ("dear", "third-useless"),
    ("linear-cpu", "prose"),
    ("linear-cpu", "never-useless"),
    ("linear-cpu", "phrases"),
    ("deep", "third"),
    ("big-head", "prose"),
]


@pytest.mark.parametrize(("machine", "world"), NEVER)
def test_drafting_that_never_pays_costs_little(machine: str, world: str) -> None:
    assert alone(machine, world, 2000, "texts=2") >= 0.98
    assert alone(machine, world, 2000, "uncalibrated", "from=64") >= 0.98
    assert alone(machine, world, 2000, "texts=4", "reproducible") >= 0.97  # four times from nothing


@pytest.mark.parametrize("machine", ["gpu", "small-cpu", "linear-cpu"])
def test_an_uncalibrated_engine_learns_its_costs(machine: str) -> None:
    for world in ("code", "editing"):
        assert alone(machine, world, 3000, "uncalibrated") > 0.92 * alone(machine, world, 3000)


@pytest.mark.parametrize("machine", ["gpu", "small-cpu"])
def test_paths_may_be_drawn_token_by_token(machine: str) -> None:
    for world in ("code", "mixed"):
        assert alone(machine, world, 3000, "drawn") > 0.9 * alone(machine, world, 3000)


# ---- costs -------------------------------------------------------------------------------------------


def costs(script: list[str], sizes: range, curve: str = "verify") -> list[float]:
    return list(map(float, run(script="\n".join([*script, *(f"cost {curve} {size}" for size in sizes)]))))


def plain(seconds: float, rows: int = 1) -> str:
    return f"learn none 0 {rows - 1} 0 0 0 {seconds} 0"


def test_unknown_costs_are_estimated() -> None:
    new = "new 7 63"
    assert costs([new, "set verify 1 2.0"], range(1, 4)) == pytest.approx([2, 2.5, 3])
    assert costs([new, "set verify 1 2.0"], range(1, 3), "draft") == pytest.approx([0.6, 0.63])
    known = [new, "set verify 1 1", "set verify 3 2", "set verify 5 2"]
    assert costs(known, range(1, 8)) == pytest.approx([1, 1.5, 2, 2, 2, 2.25, 2.5])
    falling = [new, "set verify 1 1", "set verify 2 3", "set verify 3 1"]
    assert costs(falling, range(1, 5)) == pytest.approx([1, 2, 2, 2.5])
    assert run(script="\n".join([*known, "points verify"])) == ["1 1 3 2 5 2 "]


def test_a_stall_moves_nothing() -> None:
    known = ["new 7 63", "set verify 1 1", "set verify 8 2", *3 * [plain(1)], plain(10)]
    assert costs(known, range(1, 9, 7)) == pytest.approx([1, 2], rel=0.05)
    first = ["new 7 63", *3 * [plain(1)], plain(15, rows=8), plain(2, rows=8)]
    assert costs(first, range(8, 9)) == pytest.approx([2.75], rel=0.3)


def test_sizes_not_visited_keep_what_is_known_of_them() -> None:
    known = ["new 7 63", "set verify 1 1", "set verify 4 2", "set verify 8 4"]
    for others in (30 * [plain(2), plain(4, rows=4)], 200 * [plain(1.2), plain(0.8)]):
        assert costs([*known, *others], range(8, 9)) == pytest.approx([4], rel=0.05)


# ---- what must always hold ---------------------------------------------------------------------------------

SECONDS = st.sampled_from(("1e-3", "0.01", "1", "0", "-1", "1e300", "1e-300", "nan", "inf", "-inf"))
CONFIDENCE = st.sampled_from(("0", "0.2", "0.5", "0.9", "0.999", "1", "nan", "-1", "7"))
LENGTHS = st.sampled_from((0, 1, 5, 12, 48, 64))


class Talk:
    """With a policy, line by line."""

    def __init__(self) -> None:
        self.program = subprocess.Popen([POLICY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, *words: object) -> None:
        assert self.program.stdin
        print(*words, file=self.program.stdin, flush=True)

    def ask(self, *words: object) -> list[str]:
        self.tell(*words)
        assert self.program.stdout
        return self.program.stdout.readline().split()

    def close(self) -> None:
        self.program.communicate()
        assert self.program.returncode == 0


def play(data: st.DataObject, head: int, allowed: list[int], begin: str, times: list[str]) -> list[list[str]]:
    """Rounds of anything, with the given times; returns what was chosen."""
    talk = Talk()
    talk.tell("new", head, 63, *allowed)
    talk.tell("begin", begin)
    answers = []
    for i, seconds in enumerate(times):
        found = {name: data.draw(LENGTHS) for name in ("map-k4v", "mod")}
        for name, length in found.items():
            talk.tell("found", name, 12 + length, *range(length))
        room = data.draw(st.sampled_from((-1, 0, 1, 3, 20, 1000)))
        kind, width, probe = answer = talk.ask("choose", room)
        n = int(width)
        assert n <= max(room, 0)
        assert (n == 0) == (kind == "none")
        confidences: list[str] = []
        if kind == "head":
            assert n <= head
            confidences = [data.draw(CONFIDENCE) for _ in range(data.draw(st.integers(0, n)))]
            more = talk.ask("more", *confidences, data.draw(CONFIDENCE))[0]
            assert len(confidences) < n or more == "0"
            answer += [more, *talk.ask("cut", *confidences)]
            n = int(answer[-1])
            assert n <= len(confidences)
        elif kind != "none":
            assert n <= found[kind]
        if allowed and n:
            assert n in allowed
        if begin.startswith("-1 any") and kind in found:
            assert n in GRID or n <= head
        answers.append([*answer, probe])
        accepted = data.draw(st.integers(0, n))
        ended = data.draw(st.integers(0, 1))
        committed = range(accepted + 1)
        talk.tell(
            "learn",
            kind,
            width,
            n,
            accepted,
            ended,
            seconds,
            times[-i],
            len(committed),
            *committed,
            *confidences,
        )
        costs = [
            float(talk.ask("cost", curve, size)[0]) for curve in ("verify", "draft") for size in (1, 2, 7, 64)
        ]
        assert all(math.isfinite(cost) and cost > 0 for cost in costs)
        assert costs[:4] == sorted(costs[:4])
    talk.close()
    return answers


MODES = [f"{width} {lookups}" for width in (-1, 0, 5, 9) for lookups in ("any", "off", "map-k4v", "mod")]


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    head=st.sampled_from((0, 1, 7, 15)),
    allowed=st.lists(st.integers(1, 20), max_size=4),
    mode=st.sampled_from(MODES),
    reproducible=st.integers(0, 1),
    times=st.lists(SECONDS, min_size=1, max_size=25),
)
def test_choices_keep_within_limits(
    data: st.DataObject, head: int, allowed: list[int], mode: str, reproducible: int, times: list[str]
) -> None:
    if allowed:
        mode = mode.replace("any", "off")
    play(data, head, allowed, f"{mode} {reproducible} 1", times)


def script_of(begin: list[str], seconds: list[str]) -> str:
    """Rounds whose outcomes do not depend on what was chosen."""
    lines = ["new 7 63", "set verify 1 1", "set verify 8 1.5", *begin]
    for i, time in enumerate(seconds):
        lines += [
            *[f"found mod {12 + i % 40} 1 2 3 4 5 6 7 8 9 10 11 12"][: i % 2],
            "choose 40",
            "cut 0.9 0.8 0.7 0.4 0.3 0.9 0.9",
            "more 0.9 0.5 0.7",
            f"learn head 7 3 {i % 4} 0 {time} {time} {i % 4 + 1} 1 2 3 4 0.9 0.8 0.7 0.4".replace(
                f"{i % 4 + 1} 1 2 3 4", f"{i % 4 + 1} " + " ".join(map(str, range(1, i % 4 + 2)))
            ),
        ]
    return "\n".join(lines)


@given(first=st.lists(SECONDS, min_size=30, max_size=30), second=st.lists(SECONDS, min_size=30, max_size=30))
@settings(max_examples=20, deadline=None)
def test_reproducible_texts_do_not_see_the_clock_or_the_past(first: list[str], second: list[str]) -> None:
    text = ["begin -1 any 1 1"]
    alone = run(script=script_of(text, first))
    assert alone == run(script=script_of(text, second))
    before = [*script_of(["begin -1 any 0 1"], second).splitlines()[3:], *text]
    assert run(script=script_of(before, first))[-len(alone) :] == alone


def test_an_engines_own_statistics_outlive_a_reproducible_text() -> None:
    own = ["begin -1 any 0 1", *script_of([], 40 * ["1"]).splitlines()[3:], "begin -1 any 0 1"]
    between = [*script_of(["begin -1 any 1 1"], 5 * ["9"]).splitlines()[3:], "begin -1 any 0 1"]
    ask = ["cut 0.9 0.8 0.7 0.4 0.3 0.9 0.9", "cost verify 4"]
    start = script_of([], []).splitlines()
    one = run(script="\n".join([*start, *own, "choose 40", "begin -1 any 0 1", "choose 40", *ask]))
    two = run(script="\n".join([*start, *own, "choose 40", *between, "choose 40", *ask]))
    assert one[-3:] == two[-3:]


def test_forced_settings() -> None:
    found = ["found map-k4v 20 " + " ".join(map(str, range(40))), "found mod 20 1 2 3"]
    answers = {
        "5 any": "head 5 0",
        "0 any": "none 0 0",
        "9 off": "head 7 0",
        "-1 map-k4v": "map-k4v 40 0",
        "5 mod": "mod 3 0",
        "0 mod": "mod 3 0",
    }
    for mode, answer in answers.items():
        assert run(script="\n".join(["new 7 63", f"begin {mode} 0 1", *found, "choose 50"])) == [answer]
    nothing = [
        "new 7 63",
        "begin 5 map-k4v 0 1",
        "choose 50",
        "choose 3",
        "cut 0.1 0.1 0.1",
        "begin 5 any 0 0",
    ]
    assert run(script="\n".join([*nothing, "choose 50"])) == ["head 5 0", "head 3 0", "3", "none 0 0"]
    exact = ["new 7 63 1 3 6", "begin 5 any 0 1", "choose 50", "cut 0.1 0.1", "begin 5 mod 0 1", found[0]]
    assert run(script="\n".join(exact)) == ["head 3 0", "1"]
