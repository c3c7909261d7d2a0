"""Measure a pair on held-out files: how much of the target's own greedy text the head foresees.

The target's text is written once; then every position of it is used as an anchor and drafted from, by the
reference's rules, and the rounds are read off: a round that starts at position p and has its first `a`
drafts right ends at p + a + 1. That is what speculative decoding would have done, since its output is the
target's own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from .corpus import END_OF_TEXT_ID, Corpus
from .generate import continue_batch, ends_line, line_starts, loop_start
from .head import Head
from .model import Target


@dataclass
class Greedy:
    """A prompt's ids with the target's greedy continuation, its features, and whether it ends in a loop."""

    ids: Tensor
    features: Tensor
    prompt: int
    loops: bool


def definition_prompts(corpus: Corpus, count: int, context: int, seed: int) -> list[Tensor]:
    """Prompts cut from held-out files right after a line that opens a function or a class."""
    newline = ends_line(corpus)
    generator = np.random.default_rng(seed)
    found: list[Tensor] = []
    for document in corpus.heldout:
        starts = line_starts(document, newline)
        for begin, end in pairwise(starts):
            line = corpus.tokenizer.decode(document[begin:end].tolist()).strip()
            if line.startswith(("def ", "class ", "async def ")) and line.endswith(":") and end >= context:
                found.append(torch.from_numpy(document[end - context : end].astype(np.int64)))
    chosen = generator.choice(len(found), size=min(count, len(found)), replace=False)
    return [found[index] for index in sorted(chosen)]


def greedy_texts(
    target: Target, prompts: Sequence[Tensor], new_tokens: int, taps: tuple[int, ...], extra: int
) -> list[Greedy]:
    """The target's greedy texts, `extra` tokens longer than measured so that the last block is a full one."""
    size = len(prompts[0])
    stacked = torch.stack(list(prompts))
    ids, features = continue_batch(
        target, stacked, new_tokens + extra, torch.zeros(len(prompts)), taps, torch.Generator(), torch.float32
    )
    texts = []
    for row in range(len(prompts)):
        ends = (ids[row, size : size + new_tokens] == END_OF_TEXT_ID).nonzero()
        end = size + (int(ends[0]) + 1 if len(ends) else new_tokens)
        loops = loop_start(ids[row, size:end].numpy()) < end - size
        texts.append(Greedy(ids[row, : end + extra], features[row, : end + extra - 1], size, loops))
    return texts


@torch.inference_mode()
def right_drafts(target: Target, head: Head, text: Greedy, extra: int) -> tuple[Tensor, Tensor]:
    """For every anchor of the continuation: how many leading drafts are right, by selector and by argmax."""
    end = len(text.ids) - extra
    anchors = torch.arange(text.prompt, end)[None]
    rows = head.head.block
    tokens = text.ids[anchors]
    blocks = target.embed_tokens(head.block_ids(tokens, rows))
    hidden = head(text.features[None], blocks, anchors)
    logits = target.logits(hidden)
    truth = text.ids[anchors[..., None] + torch.arange(1, rows)]
    path, _ = head.choose(hidden, logits, tokens)
    return tuple((drafts == truth).cumprod(-1).sum(-1)[0] for drafts in (path, logits.argmax(-1)))


def rounds(right: Tensor) -> list[int]:
    """Accepted drafts of each round when drafting starts at the first anchor."""
    accepted, place = [], 0
    while place < len(right) - 1:
        accepted.append(min(int(right[place]), len(right) - 1 - place))
        place += accepted[-1] + 1
    return accepted


def summary(accepted: list[int], width: int) -> str:
    """Mean acceptance length (1 + accepted / rounds) and acceptance by position."""
    if not accepted:
        return "no rounds"
    counts = np.array(accepted)
    places = " ".join(f"{np.mean(counts >= place):.2f}" for place in range(1, width + 1))
    return f"mean acceptance length {1 + counts.mean():.2f} in {len(counts)} rounds; by position {places}"


def evaluate(
    target: Target, head: Head, corpus: Corpus, seed: int, count: int = 160, new_tokens: int = 128
) -> float:
    """Print the figures for prompts with much and with little context; returns the main one."""
    width = head.head.block - 1
    main = 0.0
    for context in (96, 24):
        prompts = definition_prompts(corpus, count, context, seed)
        texts = greedy_texts(target, prompts, new_tokens, head.head.taps, width)
        looping = sum(text.loops for text in texts)
        print(f"held-out, {len(texts)} prompts of {context} tokens, greedy, {looping} texts loop", flush=True)
        results = [(text.loops, *right_drafts(target, head, text, width)) for text in texts]
        for label, keep_loops in (("without loops", False), ("with loops", True)):
            kept = [result for result in results if keep_loops or not result[0]]
            chosen = [a for _, right, _ in kept for a in rounds(right)]
            unary = [a for _, _, right in kept for a in rounds(right)]
            print(f"  {label}: {summary(chosen, width)}")
            print(f"    unary argmax only: {summary(unary, width)}", flush=True)
            if context == 96 and not keep_loops and chosen:
                main = 1 + float(np.mean(chosen))
    return main
