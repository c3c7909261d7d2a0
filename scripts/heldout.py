"""Prompts from the files of the standard library that the demo pair never saw."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from demo_pair.heldout import HELDOUT_LIST, heldout_names

import pydflash2


def heldout_texts() -> list[str]:
    files = [Path(sysconfig.get_path("stdlib"), name) for name in heldout_names()]
    texts = [
        file.read_text(encoding="utf-8", errors="replace").expandtabs(8) for file in files if file.exists()
    ]
    if not texts:
        raise SystemExit(f"none of the files in {HELDOUT_LIST} are in this interpreter's standard library")
    return texts


def windows(engine: pydflash2.Engine, count: int, sizes: range) -> list[list[int]]:
    """`count` windows, evenly spread over the held-out files, their sizes taken from `sizes` in turn."""
    texts = [engine.tokenize(text) for text in heldout_texts()]
    places = [(text, end) for text in texts for end in range(sizes[-1], len(text))]
    if len(places) < count:
        raise SystemExit(f"the held-out files have room for {len(places)} prompts: ask for fewer")
    step = len(places) / count
    chosen = [places[int(index * step)] for index in range(count)]
    return [text[end - sizes[(37 * index) % len(sizes)] : end] for index, (text, end) in enumerate(chosen)]
