"""Measure a pair on held-out files: prompts that end after a line opening a function or a class."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import pydflash2
from pydflash2.train.measure import rounds

NEW_TOKENS = 128
CHARACTERS = 12  # that a token has at most, on average


def definition_prompts(
    engine: pydflash2.Engine, documents: list[str], count: int, context: int, seed: int
) -> list[list[int]]:
    """Prompts of `context` tokens cut right after a line that opens a definition."""
    places = [
        (text, line.end())
        for text in documents
        for line in re.finditer(r"^[ ]*(?:def|class|async def) .*:\n", text, re.MULTILINE)
    ]
    found = []
    for index in np.random.default_rng(seed).permutation(len(places)):
        text, end = places[index]
        begin = text.rfind("\n", 0, max(0, end - CHARACTERS * context)) + 1
        tokens = engine.tokenize(text[begin:end])
        if len(tokens) >= context:
            found.append((index, tokens[-context:]))
        if len(found) == count:
            break
    return [tokens for _, tokens in sorted(found)]


def summary(accepted: list[int], width: int) -> str:
    """Mean acceptance length (1 + accepted / rounds) and acceptance by position."""
    if not accepted:
        return "no rounds"
    counts = np.array(accepted)
    places = " ".join(f"{np.mean(counts >= place):.2f}" for place in range(1, width + 1))
    return f"mean acceptance length {1 + counts.mean():.2f} in {len(counts)} rounds; by position {places}"


def evaluate(target: Path, head: Path, folder: Path, seed: int, count: int = 160) -> None:
    """Print the figures of greedy texts after prompts, with much and with little context, from a folder."""
    documents = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    with pydflash2.load(target, head, context_size=1024, n_threads=1) as engine:
        width = (engine.block_size or 1) - 1
        for context in (96, 24):
            texts = []
            for prompt in definition_prompts(engine, documents, count, context, seed):
                accepted, n_before_loop = rounds(engine, prompt, NEW_TOKENS, width)
                texts.append((n_before_loop < len(accepted), accepted))
            looping = sum(loops for loops, _ in texts)
            print(f"held-out, {len(texts)} prompts of {context} tokens, greedy, {looping} texts loop")
            for label, keep in (("without loops", False), ("with loops", True)):
                kept = [n for loops, accepted in texts if keep or not loops for n in accepted]
                print(f"  {label}: {summary(kept, width)}", flush=True)
