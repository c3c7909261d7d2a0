#!/usr/bin/env python3
"""Tokens a second by threads, on the machine as it is and beside a process that keeps a core busy.

    python scripts/measure_waiting.py
    python scripts/measure_waiting.py -m TARGET.gguf -d none --threads 1 4 8 --busy 2

A graph's threads wait for one another some hundred times a token; what that costs shows where one of them has
no core. How they wait is csrc/target/openmp_barrier.cpp's; OMP_WAIT_POLICY and GOMP_SPINCOUNT say how they do
between graphs. Engines take turns; medians.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from statistics import median

import pydflash2

PROMPT = "def binary_search("

# Not longer than the process that started it: else it would go on for ever if that is killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def speeds(
    engines: dict[int, pydflash2.Engine], n_tokens: int, n_turns: int
) -> dict[tuple[int, bool], float]:
    """Tokens a second by threads, and whether drafts were allowed."""
    found: dict[tuple[int, bool], list[float]] = {}
    for turn in range(1 + n_turns):
        for threads, engine in engines.items():
            for speculate in (False, True):
                stats = engine.generate(PROMPT, max_tokens=n_tokens, speculate=speculate).stats
                if turn > 0:
                    found.setdefault((threads, speculate), []).append(stats.tokens_per_second)
    return {key: median(values) for key, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", help="target (default: the demo pair's)")
    parser.add_argument("-d", "--head", default="auto", help='"none": plain decoding and lookups')
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--busy", type=int, default=1, metavar="N", help="processes beside (default 1)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="a text's length (default 128)")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="texts of each kind (default 5)")
    args = parser.parse_args()

    head = None if args.head == "none" else args.head
    with ExitStack() as stack:
        engines = {
            n: stack.enter_context(pydflash2.load(args.model, head, n_threads=n, context_size=1024))
            for n in args.threads
        }
        print(f"{'':24}" + "".join(f"{n:>4} threads: plain, drafting" for n in engines))
        for n_busy in (0, args.busy):
            with ExitStack() as others:
                for _ in range(n_busy):
                    other = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
                    others.callback(other.wait)
                    others.callback(other.kill)
                found = speeds(engines, args.tokens, args.turns)
            row = "".join(f"{found[n, False]:20.1f} {found[n, True]:9.1f}" for n in engines)
            print(f"{f'beside {n_busy} busy processes':24}{row}", flush=True)


if __name__ == "__main__":
    main()
