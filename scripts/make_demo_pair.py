#!/usr/bin/env python3
"""Make the demo pair inside the package: a small code model and the DFlash 2 head that drafts for it.

One command reproduces everything from the running interpreter's own standard library, on a CPU:

    python scripts/make_demo_pair.py --minutes 57 --head-minutes 25 --output pydflash2/demo

The head is made by `pydflash2 train`. The schedules follow the clock, so a slower or busier machine gives a
weaker pair, not a later one; the same seed gives the same start, data order and prompts, but not the same
bits. Needs pydflash2[train] and tokenizers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Threads that spin while they wait slow torch tenfold beside a busy neighbour. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from demo_pair import corpus, evaluate, export, train_target
from demo_pair.model import Geometry
from python_documents import lay_down

STEPS = ("target", "head", "evaluate", "export")

HEAD = [  # a small head for a small target
    *("--layers", "1", "--taps", "1,4,7,10", "--window", "512", "--rank", "32", "--candidates", "8"),
    *("--mask-token", str(corpus.MASK_ID), "--license", "PSF-2.0", "--name", "pydflash2 demo head"),
    *("--temp", "0.3", "0.9", "--new-tokens", "112"),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("pydflash2/demo"), help="folder of the two GGUF files"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/demo_pair"), help="checkpoints, folders and data"
    )
    parser.add_argument(
        "--target", type=Path, help="a target made before: only the head is trained (default: train one)"
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        choices=STEPS,
        default=STEPS,
        help="run only these; the rest is read from --work",
    )
    parser.add_argument("--seed", type=int, default=1, help="of weights, data order, prompts and sampling")
    parser.add_argument("--minutes", type=float, default=57.0, help="training of the target")
    parser.add_argument("--tokens", type=int, default=800_000, help="that the target writes for the head")
    parser.add_argument("--head-minutes", type=float, default=25.0, help="training of the head")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the target checkpoint that an interrupted run left"
    )
    return parser.parse_args()


def make_target(options: argparse.Namespace) -> Path:
    work, geometry = options.work, Geometry()
    library = corpus.prepare(work, geometry.vocabulary)
    if "target" in options.steps:
        path = work / "target.pt"
        train_target.train(
            library, geometry, options.minutes, options.seed, path, options.threads, options.resume
        )
    model = train_target.load(work / "target.pt")
    export.write_target_folder(model, library.tokenizer, work / "target")
    export.write_target_gguf(model, library.tokenizer, work / "target.gguf")
    return work / "target.gguf"


def train_head(options: argparse.Namespace, target: Path) -> None:
    """`pydflash2 train` on the files that the target was trained on; measured on those it never saw."""
    documents = options.work / "documents"
    command = [sys.executable, "-m", "pydflash2", "train", "--target", target, "--out", options.work / "head"]
    command += ["--prompts", documents / "training", "--held-out", documents / "held-out", "--suffix", ".py"]
    command += ["--tokens", options.tokens, "--minutes", options.head_minutes, "--seed", options.seed]
    command += ["--threads", options.threads, *HEAD]
    subprocess.run([str(part) for part in command], check=True)


def main() -> None:
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    documents = options.work / "documents"
    lay_down(documents)
    target = options.target or make_target(options)
    head = options.work / "head" / "head.gguf"
    if "head" in options.steps:
        train_head(options, target)
    if "evaluate" in options.steps:
        evaluate.evaluate(target, head, documents / "held-out", options.seed)
    if "export" in options.steps:
        options.output.mkdir(parents=True, exist_ok=True)
        for source, name in ((target, "target.gguf"), (head, "head.gguf")):
            path = options.output / name
            if not (path.exists() and path.samefile(source)):
                shutil.copyfile(source, path)
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
