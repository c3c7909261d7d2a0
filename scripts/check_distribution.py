#!/usr/bin/env python3
"""Check that sampled texts have exactly the target's distribution, for every sampler, drafted or not.

    python scripts/check_distribution.py [--draws 200000] [--jobs 2]

A pair of 24 tokens makes it possible: the probability of each text of three tokens is computed from the
target's logits and an independent model of the sampler chain (tests/tiny/sampling.py), and texts drawn from
the engine are counted. Each line is one chain, drawn plainly, or with drafts 1, 2, 3 and 7 tokens wide, a
quarter each:

    first     chi-square test of the first token, which the prefill draws: statistic / degrees of freedom, p
    three     the same for the first three tokens together (cells pooled until 5 draws are expected in each)
    distance  total variation between counted and exact distribution, and what it should be by chance
    long      chi-square test of all tokens of longer texts, each placed in its own distribution
    accepted  share of the drafted tokens that the target accepted

Exit status 0: every test holds, the p-values are uniform, and acceptance rules broken on purpose are caught.
Needs the package with its test extra: pip install '.[test]'
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pydflash2
from tiny import symbols
from tiny.drawing import BROKEN, DRAFTED, LENGTH, LONG, SPECIAL, Drawn, Oracle, Way, first_tokens, plain
from tiny.native import Native
from tiny.statistics import Fit, fit, uniform_fit, uniformity

WAYS: dict[str, Way] = {"plain": plain, **DRAFTED, **SPECIAL, **BROKEN}
SPECIAL_CASE = "top-k, top-p, min-p, T 0.8"  # the chain that is drawn in every special way
BROKEN_CASES = ("temperature 1.0", SPECIAL_CASE)
CAUGHT = 1e-6  # a broken rule's p-value must be below
FALSE_ALARM = 1e-3  # chance that one of all tests fails although everything is right
CHUNK = 2_000  # draws a task


@dataclass
class Line:
    """A line of the table: what it draws, what came of it."""

    case: str
    name: str
    ways: list[str]
    drawn: Drawn = field(default_factory=Drawn)
    by_way: dict[str, Drawn] = field(default_factory=dict)
    long: Drawn = field(default_factory=Drawn)
    places: list[float] = field(default_factory=list)  # of the long texts' tokens, see Oracle.places
    fits: dict[str, Fit] = field(default_factory=dict)  # "first", "three", "long"
    fits_by_way: dict[str, dict[str, Fit]] = field(default_factory=dict)
    tasks_left: int = 0

    @property
    def broken(self) -> bool:
        return self.ways[0] in BROKEN

    @property
    def p(self) -> float:
        return min(one.p for one in self.fits.values())


@dataclass(frozen=True)
class Task:
    line: int
    case: str
    way: str
    seeds: range
    long: bool


# ---- the processes that draw ---------------------------------------------------------------------


class Worker:
    """One process's engine, and the target alone beside it."""

    here: Worker

    def __init__(self, target: Path, head: Path) -> None:
        self.engine = pydflash2.load(
            target, head, context_size=64, n_threads=1, n_gpu_layers=0, kv_type="f32", drafter_kv_type="f32"
        )
        self.oracle = Oracle(Native(target, context_size=64))


def start(target: Path, head: Path) -> None:
    Worker.here = Worker(target, head)


def work(task: Task) -> tuple[Task, Drawn, list[float]]:
    engine, oracle = Worker.here.engine, Worker.here.oracle
    case, way = symbols.CASES[task.case], WAYS[task.way]
    if not task.long:
        return task, way(engine, case, task.seeds), []
    drawn, places = Drawn(), list[float]()
    for seed in task.seeds:
        one = way(engine, case, [seed], LONG)
        for text in one.texts:
            places += oracle.places(case.chain, text, seed)
        drawn += one
    return task, drawn, places


# ---- what is drawn -------------------------------------------------------------------------------


def lines(cases: Iterable[str], width: int | None) -> list[Line]:
    drafted = [f"width {width}"] if width else list(DRAFTED)
    result = []
    for case in cases:
        result += [Line(case, "plain", ["plain"]), Line(case, "drafts", drafted)]
        if case == SPECIAL_CASE:
            result += [Line(case, way, [way]) for way in SPECIAL]
    return result + [Line(case, way, [way]) for case in cases if case in BROKEN_CASES for way in BROKEN]


def tasks(table: list[Line], draws: int, texts: int, seed: int) -> Iterator[Task]:
    """No two draws share a seed."""
    for index, line in enumerate(table):
        for way in line.ways:
            for long, wanted in ((False, draws // len(line.ways)), (True, texts // len(line.ways))):
                for done in range(0, wanted, CHUNK):
                    count = min(CHUNK, wanted - done)
                    yield Task(index, line.case, way, range(seed, seed + count), long)
                    seed += count


# ---- what is made of it --------------------------------------------------------------------------


def judge(line: Line, oracle: Oracle) -> None:
    texts = oracle.texts(symbols.CASES[line.case].chain)
    firsts = first_tokens(texts)
    for way, drawn in line.by_way.items():
        line.fits_by_way[way] = {
            "first": fit(drawn.first_tokens, firsts),
            "three": fit(drawn.texts, texts),
        }
        line.drawn += drawn
    line.fits = {
        "first": fit(line.drawn.first_tokens, firsts),
        "three": fit(line.drawn.texts, texts),
        "long": uniform_fit(np.array(line.places)),
    }


def verdict(line: Line, level: float) -> str:
    if line.broken:
        return "caught" if line.fits["three"].p < CAUGHT else "NOT CAUGHT"
    fits = [*line.fits.values(), *(one for fits in line.fits_by_way.values() for one in fits.values())]
    return "ok" if all(one.holds(level) for one in fits) else "WRONG"


HEADER = (
    f"{'sampler':<31} {'drawn':<17} {'accepted':>8}  {'first':>9} {'p':>6}  {'three':>13} {'p':>6}  "
    f"{'distance':>8} {'chance':>7}  {'long':>6} {'p':>6}  verdict"
)


def row(line: Line, level: float) -> str:
    first, three, long = (line.fits[kind] for kind in ("first", "three", "long"))
    accepted = f"{line.drawn.acceptance:.1%}" if line.drawn.drafted else "-"
    return (
        f"{line.case:<31} {line.name:<17} {accepted:>8}  {ratio(first, 9)}  {ratio(three, 13)}  "
        f"{three.distance:>8.5f} {three.expected_distance:>7.5f}  {long.statistic:>6.1f} {p_value(long)}  "
        f"{verdict(line, level)}"
    )


def ratio(one: Fit, width: int) -> str:
    return f"{f'{one.statistic:.1f}/{one.freedom}':>{width}} {p_value(one)}"


def p_value(one: Fit) -> str:
    return f"{one.p:>6.4f}" if one.p >= 5e-5 else f"{one.p:>6.0e}"


def uniformities(table: list[Line]) -> dict[str, float]:
    """Whether the p-values of each kind are uniform. Each comes from draws of its own."""
    right = [line for line in table if not line.broken]
    result = {
        kind: uniformity([fits[kind].p for line in right for fits in line.fits_by_way.values()])
        for kind in ("first", "three")
    }
    return result | {"long": uniformity([line.fits["long"].p for line in right])}


# ---- the command ---------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--draws", type=int, default=200_000, help=f"of {LENGTH} tokens, a line (default: %(default)s)")
    add("--texts", type=int, default=4_000, help=f"of {LONG} tokens, a line (default: %(default)s)")
    add("--width", type=int, choices=[int(way.split()[1]) for way in DRAFTED], help="drafts this wide alone")
    add(
        "--sampler",
        action="append",
        choices=symbols.CASES,
        metavar="NAME",
        help="this line's alone; repeatable",
    )
    add("--seed", type=int, default=1, help="of the first draw; the others count on (default: %(default)s)")
    add("--jobs", type=int, default=1, help="processes, a core each (default: %(default)s)")
    add(
        "--json",
        action="store_true",
        help="print JSON, with the p-values of each width, in place of the table",
    )
    args = parser.parse_args()
    if args.draws < 1_000 or args.texts < 100 or args.jobs < 1 or args.seed < 0:
        parser.error("--draws takes 1000 at least, --texts 100, --jobs 1, --seed 0")
    return args


def main() -> int:
    args = arguments()
    began = perf_counter()
    table = lines(args.sampler or list(symbols.CASES), args.width)
    todo = list(tasks(table, args.draws, args.texts, args.seed))
    for task in todo:
        table[task.line].tasks_left += 1
    n_fits = sum(3 + 2 * len(line.ways) for line in table if not line.broken)
    level = FALSE_ALARM / (2 * n_fits)  # each is two tests: chi-square and total variation

    with tempfile.TemporaryDirectory() as folder:
        target, head = symbols.write(Path(folder))
        oracle = Oracle(Native(target, context_size=64))
        fresh = multiprocessing.get_context("spawn")
        total = sum(len(task.seeds) for task in todo)
        if not args.json:
            print(HEADER, flush=True)
        with (
            ProcessPoolExecutor(args.jobs, fresh, start, (target, head)) as pool,
            tqdm(total=total, unit=" texts", unit_scale=True, smoothing=0.05, disable=None) as progress,
        ):
            for task, drawn, places in pool.map(work, todo):
                line = table[task.line]
                progress.set_description(f"{line.case}, {task.way}")
                progress.update(len(task.seeds))
                if task.long:
                    line.long += drawn
                    line.places += places
                else:
                    line.by_way.setdefault(task.way, Drawn())
                    line.by_way[task.way] += drawn
                line.tasks_left -= 1
                if line.tasks_left == 0:
                    judge(line, oracle)
                    if not args.json:
                        progress.write(row(line, level))
                        sys.stdout.flush()
    return report(table, level, perf_counter() - began, args)


def report(table: list[Line], level: float, seconds: float, args: argparse.Namespace) -> int:
    uniform = uniformities(table)
    wrong = [line for line in table if verdict(line, level) not in ("ok", "caught")]
    not_uniform = [kind for kind, p in uniform.items() if p < FALSE_ALARM / len(uniform)]
    passed = not wrong and not not_uniform
    if args.json:
        print(
            json.dumps(
                {
                    "passed": passed,
                    "draws": args.draws,
                    "seconds": round(seconds, 1),
                    "p_values_uniform": uniform,
                    "level": level,
                    "lines": [
                        {
                            "sampler": line.case,
                            "drawn": line.name,
                            "verdict": verdict(line, level),
                            "drafted": line.drawn.drafted,
                            "accepted": line.drawn.accepted,
                            "fits": {kind: asdict(one) for kind, one in line.fits.items()},
                            "by_way": {
                                way: {kind: asdict(one) for kind, one in fits.items()}
                                for way, fits in line.fits_by_way.items()
                            },
                        }
                        for line in table
                    ],
                },
                indent=2,
            )
        )
        return 0 if passed else 1

    print()
    print(
        "p-values uniform (Kolmogorov-Smirnov; each width apart): "
        + ", ".join(f"{kind} {p:.3f}" for kind, p in uniform.items())
        + (f": WRONG for {', '.join(not_uniform)}" if not_uniform else "")
    )
    print(origins(table))
    print(
        f"a test fails at p < {level:.1e}: {FALSE_ALARM:g} shared by all of them, each width's included; "
        f"{seconds / 60:.1f} minutes, {args.jobs} process{'es' if args.jobs > 1 else ''}"
    )
    print("PASSED" if passed else f"FAILED: {', '.join(f'{line.case} ({line.name})' for line in wrong)}")
    return 0 if passed else 1


def origins(table: list[Line]) -> str:
    """How the tokens of the three-token texts came about, first of all that all kinds did."""
    drawn = Drawn()
    for line in table:
        if not line.broken:
            drawn += line.drawn
    parts = []
    for place in range(2, LENGTH + 1):
        kinds = {kind: drawn.origins[place, kind] for kind in ("draft", "residual", "bonus")}
        total = sum(kinds.values()) or 1
        parts.append(f"token {place}: " + ", ".join(f"{kind} {n / total:.0%}" for kind, n in kinds.items()))
    return "drawn as " + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
