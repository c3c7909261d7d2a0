#!/usr/bin/env python3
"""Which of two compiled modules is faster: CPU time of prompts, steps, verifications, drafts, taking turns.

    python scripts/compare_modules.py one/_native.abi3.so other/_native.abi3.so --target t.gguf --head h.gguf

Each module lies beside the _native.json of its build, as a build folder or an unpacked wheel has them. Two
processes with one thread each wait for each other, so both meet the same machine, and CPU time doesn't count
what others take. Printed are medians of the first module's times, and of first / second within each turn,
with quartiles: above 1, the second is faster.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pydflash2

CONTEXT = 1024
PROMPT = 200


def serve(args: argparse.Namespace) -> None:
    """Does the steps that stdin names, a line each, and says what CPU time they took."""
    chance = random.Random(1)
    with pydflash2.load(args.target, head=args.head, context_size=CONTEXT, n_threads=1) as engine:
        n_vocab = engine._native.target.n_vocab

        def tokens(n: int) -> list[int]:
            return [chance.randrange(n_vocab) for _ in range(n)]

        for line in sys.stdin:
            kind, n = json.loads(line)
            if kind == "prompt" or len(engine.tokens) + n + 2 > CONTEXT or not engine.tokens:
                prompt = tokens(n if kind == "prompt" else PROMPT)
                start = time.process_time()
                engine.prefill(prompt)
            given: Any = tokens(n - 1) if kind == "verify" else None
            if kind == "verify":
                start = time.process_time()
                engine.verify(given)
            elif kind == "draft":
                start = time.process_time()
                engine.draft(n)
            print(json.dumps(time.process_time() - start), flush=True)


class Module:
    """A process with one of the modules, as a plug-in of pydflash2's."""

    def __init__(self, name: str, path: Path, folder: Path, arguments: list[str]) -> None:
        package = folder / f"pydflash2_{name}"
        package.mkdir()
        (package / "__init__.py").touch()
        for file in (path, path.with_name("_native.json")):
            shutil.copy(file, package)
        about = folder / f"pydflash2_{name}-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pydflash2-{name}\nVersion: 0\n")
        (about / "entry_points.txt").write_text(f"[pydflash2.backends]\n{name} = pydflash2_{name}\n")
        search = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": search, "PYDFLASH2_BACKEND": name},
        )

    def seconds(self, kind: str, n: int) -> float:
        assert self._process.stdin and self._process.stdout
        print(json.dumps([kind, n]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a module's process ended: see its message above")
        return float(json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", type=Path, metavar="MODULE", help="the two compiled modules")
    parser.add_argument("--target", help="GGUF (default: the demo pair's)")
    parser.add_argument("--head", help="GGUF; without one, nothing is drafted")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.target is None:
        demo = Path(pydflash2.__file__).parent / "demo"
        args.target, args.head = str(demo / "target.gguf"), str(demo / "head.gguf")
    if args.serve:
        return serve(args)
    if len(args.modules) != 2:
        parser.error("two modules are compared")
    arguments = ["--target", args.target, *(["--head", args.head] if args.head else [])]
    steps = [("prompt", 256), ("verify", 1), ("verify", 2), ("verify", 4), ("verify", 6), ("verify", 8)]
    steps += [("draft", 3), ("draft", 7)] if args.head else []
    times: dict[tuple[str, int], list[tuple[float, float]]] = {step: [] for step in steps}
    with tempfile.TemporaryDirectory() as folder:
        names = ("one", "other")
        one, other = (
            Module(name, path, Path(folder), arguments)
            for name, path in zip(names, args.modules, strict=True)
        )
        for turn in range(args.turns + 1):
            for step in steps:
                if turn % 2:
                    first, second = one.seconds(*step), other.seconds(*step)
                else:
                    second, first = other.seconds(*step), one.seconds(*step)
                if turn:  # the first is for what is made once
                    times[step].append((first, second))
    print(f"{'step':12} {'first, ms':>10} {'first / second (quartiles)':>28}")
    for (kind, n), pairs in times.items():
        low, middle, high = statistics.quantiles([first / second for first, second in pairs], n=4)
        milliseconds = 1e3 * statistics.median(first for first, _ in pairs)
        print(f"{f'{kind} {n}':12} {milliseconds:10.2f} {middle:12.3f} ({low:.3f} - {high:.3f})")


if __name__ == "__main__":
    main()
