#!/usr/bin/env python3
"""Show that exact=True keeps its promise: speculated texts are plain ones, byte for byte; and its price.

    python scripts/check_exact.py --prompts 1000 --tokens 128
    python scripts/check_exact.py --prompts 100 --types as-is -m TARGET.gguf -d HEAD.gguf

The target (default: the demo pair's) is rewritten in each type of --types. Prompts are windows of files that
the demo pair never saw. For each prompt the same engine, loaded with exact=True, writes the text with and
without drafts; some are written by an engine without exact as well, for the price. Exit status 1 if any text
differs.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from heldout import windows
from requantize import requantize

import pydflash2
from pydflash2 import model_files

N_TIMED = 20  # prompts that the engine without exact writes as well


def speed(results: list[pydflash2.Result]) -> float:
    return statistics.median(result.stats.tokens_per_second for result in results)


def check(target: Path, head: Path, args: argparse.Namespace) -> tuple[int, str]:
    """How many texts differ, and a line of the table."""
    options = {"context_size": args.longest + args.tokens, "n_threads": args.threads}
    differ, plain, drafted, default = 0, [], [], []
    with (
        pydflash2.load(target, head, exact=True, **options) as exact,
        pydflash2.load(target, head, **options) as usual,
    ):
        rows = exact.check_rows()
        for index, prompt in enumerate(windows(exact, args.prompts, range(16, args.longest + 1))):
            plain.append(exact.generate(prompt, max_tokens=args.tokens, speculate=False))
            drafted.append(exact.generate(prompt, max_tokens=args.tokens))
            if index < N_TIMED:
                default.append(usual.generate(prompt, max_tokens=args.tokens))
            if (plain[-1].tokens, plain[-1].text.encode()) != (drafted[-1].tokens, drafted[-1].text.encode()):
                differ += 1
                print(f"{target.stem}: the text after prompt {index} differs: {prompt}", file=sys.stderr)
    timed = len(default)
    same = sum(a.tokens == b.tokens for a, b in zip(plain, default, strict=False))
    widths = ",".join(map(str, rows.exact_widths)) if rows else ""
    accepted = sum(r.stats.accepted for r in drafted)
    rounds = sum(r.stats.rounds for r in drafted)
    return differ, (
        f"{len(plain):7} {len(plain) - differ:9} {speed(plain[:timed]):7.1f} {speed(drafted[:timed]):7.1f} "
        f"{speed(default):7.1f} {1 + accepted / max(rounds, 1):8.2f} {same:6}/{timed:<3} {widths or 'none'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, help="target (default: the demo pair's)")
    parser.add_argument("-d", "--head", type=Path)
    parser.add_argument(
        "--types", default="f32,f16,q8_0,q4_k_m", help="see requantize.py; as-is: the file itself"
    )
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--longest", type=int, default=200, help="tokens of the longest prompt")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if (args.model is None) != (args.head is None):
        parser.error("-m and -d belong together")
    target, head = (args.model, args.head) if args.model else model_files.demo_pair()

    print(
        f"{'type':8} {'prompts':>7} {'identical':>9} {'plain':>7} {'exact':>7} {'default':>7} "
        f"{'accept':>8} {'default same':>10} exact widths   (tok/s: medians of {min(N_TIMED, args.prompts)})"
    )
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for file_type in args.types.split(","):
            file = target
            if file_type != "as-is":
                file = requantize(target, Path(folder, f"{file_type}.gguf"), file_type)
            wrong, line = check(file, head, args)
            differ += wrong
            print(f"{file_type:8} {line}", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
