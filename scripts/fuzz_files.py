#!/usr/bin/env python3
"""Fuzz the public API with mutated model files and random arguments: no crash, no hang, no unhelpful answer.

    python scripts/fuzz_files.py --count 20000
    python scripts/fuzz_files.py --seed 3 --only 1234 --keep DIR    # one file again, kept, in this process

Each file is made from the seed and its index alone: a sound tiny model with one mutation or several, loaded
and decoded with in a worker process. An answer is unhelpful when the exception is not one of ours, ValueError
or TypeError, or when its message does not say what is wrong and what to do (fuzzing/judge.py). A crash may
be the late effect of an earlier file of the same worker: then --only does not crash.

Exit status: 0 when all three counts are 0, else 1. Needs gguf, and the tests' tiny models.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent / "tests")]

from fuzzing import arguments, cases, workers  # noqa: E402

_MEMORY = 8 << 30  # bytes of address space a worker may take: absurd sizes must not take the machine down
_FAILURES = ("crash", "hang", "unhelpful")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20000, help="mutated files (default: %(default)s)")
    parser.add_argument("--arguments", type=int, default=2000, help="argument sets (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same files (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="index of the first file and set")
    parser.add_argument("--kinds", nargs="+", choices=cases.KINDS, default=list(cases.KINDS), metavar="KIND",
                        help="of: " + ", ".join(f'"{kind}"' for kind in cases.KINDS))  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=60, help="seconds until a case counts as hung")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files of failures, or of --only")
    parser.add_argument("--only", type=int, metavar="INDEX", help="this file alone, in this process")
    parser.add_argument("--only-arguments", type=int, metavar="INDEX", help="this argument set alone")
    parser.add_argument("--worker", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


def limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    if "libasan" in os.environ.get("LD_PRELOAD", ""):  # whose shadow takes terabytes of addresses
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def serve(options: argparse.Namespace) -> None:
    """A worker: "file 17" or "arguments 17" a line in, a line of JSON out."""
    import faulthandler

    faulthandler.enable()
    limit_memory()
    os.environ["XDG_CACHE_HOME"] = str(options.worker)  # exact=True keeps what it measured
    files = cases.Files(options.worker)
    caller = arguments.Caller(options.worker)
    for line in sys.stdin:
        print(json.dumps(run(line, options, files, caller)), flush=True)


def run(
    job: str, options: argparse.Namespace, files: cases.Files, caller: arguments.Caller
) -> dict[str, Any]:
    what, index = job.split()
    if what == "arguments":
        return caller.run(options.seed, int(index))
    return cases.run(options.seed, int(index), files, tuple(options.kinds)).to_dict()


def alone(options: argparse.Namespace) -> int:
    """One case, with all its answers; a crash is a crash."""
    limit_memory()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        if options.only_arguments is not None:
            answer = arguments.Caller(folder).run(options.seed, options.only_arguments)
        else:
            case, _ = cases.plan(options.seed, options.only, tuple(options.kinds))
            print(case, flush=True)
            outcome = cases.run(
                options.seed, options.only, cases.Files(folder), tuple(options.kinds), options.keep
            )
            answer = outcome.to_dict()
    print(json.dumps(answer, indent=2, ensure_ascii=False))
    return int(answer["verdict"] in _FAILURES)


class Report:
    """Counts by kind and mutation, and the failures as they come."""

    def __init__(self, options: argparse.Namespace, n_jobs: int) -> None:
        self._options = options
        self._n_jobs = n_jobs
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self.failures: Counter[tuple[str, str]] = Counter()  # by "file" or "arguments" and verdict
        self._start = self._shown = time.monotonic()
        self._n_done = 0

    def add(self, job: str, answer: dict[str, Any]) -> None:
        what, index = job.split()
        verdict = answer["verdict"]
        if what == "arguments":
            groups = [("arguments", arguments.method_of(self._options.seed, int(index)))]
        else:
            case, _ = cases.plan(self._options.seed, int(index), tuple(self._options.kinds))
            groups = [(case.kind, name) for name in sorted(set(case.drawn))]
        for group in groups:
            self._counts.setdefault(group, Counter())[verdict] += 1
        if verdict in _FAILURES:
            self.failures[what, verdict] += 1
            self._explain(what, int(index), groups, answer)
        self._n_done += 1
        if time.monotonic() - self._shown > 10:
            self._shown = time.monotonic()
            print(f"{self._n_done} of {self._n_jobs}, {self._shown - self._start:.0f} s, failures: "
                  f"{sum(self.failures.values())}", file=sys.stderr, flush=True)  # fmt: skip

    def _explain(self, what: str, index: int, groups: list[tuple[str, str]], answer: dict[str, Any]) -> None:
        options = self._options
        flag = "--only" if what == "file" else "--only-arguments"
        kinds = (
            ""
            if options.kinds == list(cases.KINDS)
            else " --kinds " + " ".join(f'"{k}"' for k in options.kinds)
        )
        names = ", ".join(name for _, name in groups)
        print(f"{answer['verdict']}: {groups[0][0]} ({names}): {answer['detail']}")
        print(
            f"    again: python scripts/fuzz_files.py --seed {options.seed}{kinds} {flag} {index}", flush=True
        )
        if options.keep is not None and what == "file":
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                case, dice = cases.plan(options.seed, index, tuple(options.kinds))
                options.keep.mkdir(parents=True, exist_ok=True)
                path = cases.Files(Path(folder)).write(case, dice)
                (options.keep / path.name).write_bytes(path.read_bytes())

    def table(self) -> None:
        columns = ("works", "refused", *_FAILURES)
        print(f"{'kind':<15}{'mutation':<24}{'files':>8}" + "".join(f"{column:>11}" for column in columns))
        for (kind, name), counts in sorted(self._counts.items()):
            print(f"{kind:<15}{name:<24}{counts.total():>8}" + "".join(f"{counts[c]:>11}" for c in columns))

    def summary(self, what: str, title: str, count: int) -> None:
        crashes, hangs, unhelpful = (self.failures[what, verdict] for verdict in _FAILURES)
        print(f"{title} {count}, crashes {crashes}, hangs {hangs}, unhelpful {unhelpful}")


def jobs(options: argparse.Namespace) -> Iterable[str]:
    for index in range(options.first, options.first + options.arguments):
        yield f"arguments {index}"
    for index in range(options.first, options.first + options.count):
        yield f"file {index}"


def main() -> int:
    options = parse()
    if options.worker is not None:
        serve(options)
        return 0
    if options.only is not None or options.only_arguments is not None:
        return alone(options)

    def command(folder: Path) -> list[str]:
        return [sys.executable, __file__, "--worker", str(folder), "--seed", str(options.seed),
                "--kinds", *options.kinds]  # fmt: skip

    report = Report(options, options.count + options.arguments)
    for job, answer in workers.run_all(jobs(options), command, options.jobs, options.timeout):
        report.add(job, answer)
    report.table()
    report.summary("arguments", "argument sets", options.arguments)
    report.summary("file", "files", options.count)
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
