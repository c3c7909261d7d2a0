#!/usr/bin/env python3
"""Make the demo pair inside the package: a small code model and the DFlash 2 head that drafts for it.

One command reproduces everything from the running interpreter's own standard library, on a CPU:

    python scripts/make_demo_pair.py --minutes 57 --data-minutes 7 --head-minutes 25 --output pydflash2/demo

The schedules follow the clock, so a slower or busier machine gives a weaker pair, not a later one; the same
seed gives the same start, data order and prompts, but not the same bits. Needs torch, tokenizers,
safetensors and gguf.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

# Waiting threads that spin slow training tenfold beside a busy neighbour. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from demo_pair import corpus, evaluate, export, generate, train_head, train_target
from demo_pair.head import HeadGeometry
from demo_pair.model import Geometry

STEPS = ("target", "data", "head", "evaluate", "export")


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
        "--steps",
        nargs="+",
        choices=STEPS,
        default=STEPS,
        help="run only these; the rest is read from --work",
    )
    parser.add_argument("--seed", type=int, default=1, help="of weights, data order, prompts and sampling")
    parser.add_argument("--minutes", type=float, default=57.0, help="training of the target")
    parser.add_argument("--data-minutes", type=float, default=7.0, help="generation of the head's data")
    parser.add_argument("--head-minutes", type=float, default=25.0, help="training of the head")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the target checkpoint that an interrupted run left"
    )
    return parser.parse_args()


def export_pair(work: Path, output: Path) -> None:
    """Convert the head with the package's own converter and print what was written."""
    output.mkdir(parents=True, exist_ok=True)
    target, head = output / "target.gguf", output / "head.gguf"
    target.write_bytes((work / "target.gguf").read_bytes())
    command = [sys.executable, "-m", "pydflash2", "convert", work / "head", "--target", target, "-o", head]
    subprocess.run([str(part) for part in command], check=True)
    for path in (target, head):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    options = arguments()
    work, seed = options.work, options.seed
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)
    geometry, shape = Geometry(), HeadGeometry()
    library = corpus.prepare(work, geometry.vocabulary)
    if "target" in options.steps:
        path = work / "target.pt"
        train_target.train(library, geometry, options.minutes, seed, path, options.threads, options.resume)
    model = train_target.load(work / "target.pt")
    export.write_target_folder(model, library.tokenizer, work / "target")
    export.write_target_gguf(model, library.tokenizer, work / "target.gguf")
    served = export.rounded(model)
    if "data" in options.steps:
        writer = generate.Writer(served, library, shape.taps, seed, generate.Plan())
        texts = generate.generate(writer, options.data_minutes, options.threads)
        generate.save(texts, work / "texts.pt")
    if "head" in options.steps:
        texts = generate.load(work / "texts.pt")
        recipe = train_head.Recipe()
        head = train_head.train(served, shape, texts, options.head_minutes, seed, options.threads, recipe)
        train_head.save(head, work / "head.pt")
        export.write_head_folder(head, work / "head")
    if "evaluate" in options.steps:
        evaluate.evaluate(served, train_head.load(work / "head.pt", served), library, seed)
    if "export" in options.steps:
        export_pair(work, options.output)


if __name__ == "__main__":
    main()
