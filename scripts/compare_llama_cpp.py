#!/usr/bin/env python3
"""Measure pydflash2 against llama.cpp's own DFlash 2: its server from the same pin, and xllamacpp's wheel.

    python scripts/compare_llama_cpp.py            # all but the longest prompts; exit 0 if every bar holds
    python scripts/compare_llama_cpp.py --quick    # a smoke run: the paths work, the numbers say little
    python scripts/compare_llama_cpp.py --only decode --widths 5 --json out.json

The first run builds llama-server in the scratch folder --work, with the settings our extension's own
llama.cpp was built with, and writes the step-cost pair: some ten minutes, 2 GB. Contenders have the same
files, prompts, widths and numbers of threads, decode greedily, reuse no prompt, and take turns; those whose
turn it is not are stopped. Keep other work off the machine too.

Needs cmake, a C++ compiler and the test extra. Ratios are those of whole repetitions; the table has their
median, smallest and largest. A figure without a number fails, unless no wheel of xllamacpp fits the platform.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare import measure
from compare.build import build
from compare.contenders import xllamacpp_python
from compare.figures import Figure, table
from compare.measure import Bench
from compare.server import Pair
from heldout import windows

import pydflash2
from pydflash2 import model_files, native

KINDS = ("decode", "drafter", "prefill", "nodes", "glue")
DECODE_BAR = 1.5
DRAFTER_WIDTHS = (5, 7)
STEP_COST_PROMPT = 1000  # the window is 2048: the drafter has looked at half of it


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU"
    )


def machine(args: argparse.Namespace, pairs: list[Pair]) -> dict[str, Any]:
    files = {path.name: path.stat().st_size for pair in pairs for path in (pair.target, pair.head)}
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "platform": platform.platform(),
        "pydflash2": pydflash2.__version__,
        "llama_cpp": native.llama_cpp_pin(),
        "files": files,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "OMP": {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_"))},
    }


def step_cost_pairs(args: argparse.Namespace) -> list[Pair]:
    folder = args.step_cost or args.work / "step-cost"
    pairs = []
    for file_type in args.types:
        target, head = folder / f"target-{file_type}.gguf", folder / f"head-{file_type}.gguf"
        if not (target.exists() and head.exists()):
            script = Path(__file__).with_name("make_step_cost_pair.py")
            print(f"writing {target} and {head}", file=sys.stderr, flush=True)
            subprocess.run(
                [sys.executable, script, folder, "--types", file_type], check=True, stdout=sys.stderr
            )
        context = STEP_COST_PROMPT + 512
        pairs.append(Pair(f"step-cost {file_type}", target, head, context, args.threads))
    return pairs


def demo_pair(args: argparse.Namespace) -> tuple[Pair, list[list[int]]]:
    target, head = model_files.demo_pair()
    n_prompts, n_tokens = (2, 64) if args.quick else (args.prompts, args.prompt_tokens)
    with pydflash2.load(target, None, context_size=512) as engine:
        prompts = windows(engine, n_prompts, range(n_tokens, n_tokens + 1))
    return Pair("demo", target, head, n_tokens + args.tokens + 64, args.threads), prompts


def figures(
    args: argparse.Namespace, bench: Bench, pairs: list[Pair], demo: tuple[Pair, list[list[int]]] | None
) -> Iterator[Figure]:
    first = pairs[0] if pairs else None
    if demo is not None:
        n = 32 if args.quick else args.tokens
        for width in args.widths:
            yield from measure.decode(bench, *demo, width, n, DECODE_BAR)
    if "drafter" in args.only:
        n_prompt, rounds = (100, 6) if args.quick else (STEP_COST_PROMPT, args.rounds)
        for pair in pairs:
            for width in DRAFTER_WIDTHS:
                yield from measure.drafter(bench, pair, width, n_prompt, rounds)
    if "prefill" in args.only and first is not None:
        for n_prompt in [512] if args.quick else [4096, *([16384] if args.long else [])]:
            yield from measure.prefill(bench, first, n_prompt)
    if "nodes" in args.only and first is not None:
        yield from measure.nodes(bench, first, max(DRAFTER_WIDTHS))
    if "glue" in args.only:
        for pair in pairs:
            n_prompt, n = (64, 10) if args.quick else (256, 40)
            yield from measure.glue(bench, pair, max(DRAFTER_WIDTHS), n_prompt, n)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: [word for word in text.lower().split(",") if word]  # noqa: E731
    numbers = lambda text: [int(word) for word in text.split(",")]  # noqa: E731
    parser.add_argument(
        "--work", type=Path, default=Path("build/compare"), help="scratch folder (default build/compare)"
    )
    parser.add_argument("--step-cost", type=Path, metavar="FOLDER", help="where make_step_cost_pair.py wrote")
    parser.add_argument("--only", type=words, default=KINDS, metavar="KINDS", help=f"of {','.join(KINDS)}")
    parser.add_argument(
        "--widths", type=numbers, default=[3, 5, 7], help="drafted tokens, for decode (3,5,7)"
    )
    parser.add_argument("--types", type=words, default=["q4_k_m", "q8_0"], help="of the step-cost pair")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8, help="for decode")
    parser.add_argument("--prompt-tokens", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=192, help="of each text, for decode")
    parser.add_argument("--rounds", type=int, default=16, help="for drafter, each repetition")
    parser.add_argument(
        "--long", action="store_true", help="prefill of 16,384 tokens too: most of an hour on 2 cores"
    )
    parser.add_argument(
        "-t", "--threads", type=int, default=os.cpu_count(), help="of every contender (all cores)"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="compilers at a time (1)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures and every measurement")
    args = parser.parse_args()
    if unknown := set(args.only) - set(KINDS):
        parser.error(f"--only has {', '.join(sorted(unknown))}: use {', '.join(KINDS)}")
    args.work = args.work.absolute()
    if args.quick:
        args.repetitions = 1
    return args


def main() -> int:
    args = arguments()
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)

    programs = build(args.work, args.jobs)
    xllamacpp = xllamacpp_python(args.work) if "decode" in args.only else "not asked for"
    pairs = step_cost_pairs(args) if set(args.only) - {"decode"} else []
    demo = demo_pair(args) if "decode" in args.only else None
    raw: dict[str, Any] = {}
    bench = Bench(args.work, programs, xllamacpp, args.repetitions, raw, say)
    here = machine(args, [*pairs, *([demo[0]] if demo else [])])
    if (here["load_average"] or 0) > 0.5:
        say(f"the load is {here['load_average']:.1f}: other work on this machine blurs the figures")
    measured = []
    for figure in figures(args, bench, pairs, demo):
        measured.append(figure)
        say(table([figure]).splitlines()[1])

    for key, value in here.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {shown}" for name, shown in value.items()) or "-"
        print(f"{key:13} {value}")
    print()
    print(table(measured))
    if args.json is not None:
        record = {"machine": here, "settings": programs.settings, "raw": raw}
        record["figures"] = [figure.as_dict() for figure in measured]
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(figure.holds for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
