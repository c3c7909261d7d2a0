#!/usr/bin/env python3
"""Time one verified row's sampling, ours and llama.cpp's own chain beside it.

    python scripts/measure_sampling.py [--build build/tests]

A row is sampled as a round does it: from its logits to a distribution, judged, a token drawn. llama.cpp's
chain (penalties where asked for, top_k, top_p, min_p, temp, dist; or greedy) starts from the same logits by
listing every token, as its own programs do. Rows are synthetic: normally distributed logits under a peaked
head, eight rows one behind the other. One thread, medians, both in turns on the same rows. The program
sampling_times of tests/native is built for it: CMake, a C++ compiler and Python's headers are needed.
Exit status 0: the bars hold.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from tiny.sampling_oracle import write_vocabulary  # noqa: E402

BARS = {"greedy": 0.15, "top-k 40, top-p 0.95, min-p 0.05, T 0.8": 0.5}  # ms


def build(folder: Path) -> Path:
    configure = ["cmake", "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (
        [*configure, "-DPYDFLASH2_BUILD_TESTS=ON"],
        ["cmake", "--build", folder, "--target", "sampling_times"],
    ):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{done.stdout}\nsampling_times did not build")
    return folder / "sampling_times"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "tests", metavar="FOLDER")
    parser.add_argument(
        "--vocabulary", type=int, default=248_320, metavar="N", help="tokens (default 248320)"
    )
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="of eight rows (default 25)")
    args = parser.parse_args()

    program = build(args.build)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder, "vocabulary.gguf")
        write_vocabulary(vocabulary, args.vocabulary)
        command = [program, vocabulary, str(args.rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        table = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout

    print(f"one row of {args.vocabulary:,} logits, ms (median of {8 * args.rounds})")
    print(f"{'':42} {'ours':>8} {'llama.cpp':>10} {'ratio':>7}   bar")
    holds = True
    for line in table.splitlines():
        name, *numbers = line.split("\t")
        ours, theirs = map(float, numbers)
        bar = BARS.get(name)
        verdict = "" if bar is None else f"<= {bar:g}: {'holds' if ours <= bar else 'MISSED'}"
        holds = holds and (bar is None or ours <= bar)
        print(f"{name:42} {ours:8.3f} {theirs:10.3f} {ours / theirs:7.2f}   {verdict}".rstrip())
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
