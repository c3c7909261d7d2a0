#!/usr/bin/env python3
"""Lay down Python's standard library as prompts for `pydflash2 train`: FOLDER/training and FOLDER/held-out.

    python scripts/python_documents.py build/documents
    pydflash2 train --target T.gguf --prompts build/documents/training --held-out build/documents/held-out
    --out head

Held out are the files of scripts/demo_pair/heldout.txt, which the demo pair's target never saw either.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from demo_pair.heldout import heldout_names
from demo_pair.library import library_files, read_documents


def lay_down(folder: Path) -> tuple[int, int]:
    """Numbers of files to train with and held out. Tabs become the blanks they stand for."""
    root = Path(sysconfig.get_path("stdlib"))
    held_out = set(heldout_names())
    counts = {"training": 0, "held-out": 0}
    for name, text in read_documents(root, library_files(root, tests=False)):
        part = "held-out" if name in held_out else "training"
        path = folder / part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        counts[part] += 1
    return counts["training"], counts["held-out"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to put them")
    training, held_out = lay_down(parser.parse_args().folder)
    print(f"{training} files to train with, {held_out} held out")


if __name__ == "__main__":
    main()
