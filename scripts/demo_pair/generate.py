"""The head's training data: the target's own continuations, with the features it had while it wrote them.

A head learns to foresee one target, so the texts must be that target's. Prompts are cut from the files the
target was trained on (never from held-out ones), short ones from the start of a line as a user would type
them. Greedy texts of a small model often end in a loop; what follows the loop's start is dropped, because a
head fed with loops learns little else.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .corpus import END_OF_TEXT_ID, MASK_ID, Corpus
from .model import KeyValueCache, Target

PROMPT_SIZES = (8, 12, 16, 24, 32, 48, 64, 96, 128)
LONGEST_PERIOD = 80
SHORTEST_LOOP = 32


@dataclass
class Text:
    """Ids of a prompt and its continuation; features of every position but the last."""

    ids: Tensor
    features: Tensor
    prompt: int


def loop_start(ids: np.ndarray) -> int:
    """Index at which a text starts to repeat itself until its end; len(ids) if it does not.

    A loop has run at least twice and repeats at least SHORTEST_LOOP tokens. Its first pass counts as text.
    """
    longest, begin = 0, len(ids)
    for period in range(1, min(LONGEST_PERIOD, len(ids) // 2) + 1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        first = int(differs[-1]) + 1 if len(differs) else 0
        repeated = len(ids) - period - first
        if repeated >= max(period, SHORTEST_LOOP) and repeated > longest:
            longest, begin = repeated, first + period
    return begin


def line_starts(ids: np.ndarray, newline: np.ndarray) -> np.ndarray:
    """Positions after a token that ends a line."""
    return np.flatnonzero(newline[ids[:-1]]) + 1


def ends_line(corpus: Corpus) -> np.ndarray:
    """For every id, whether its text ends with a line break."""
    vocabulary = corpus.tokenizer.get_vocab_size()
    return np.array([corpus.tokenizer.decode([index]).endswith("\n") for index in range(vocabulary)])


def draw_prompts(
    corpus: Corpus, newline: np.ndarray, number: int, size: int, generator: np.random.Generator
) -> Tensor:
    """[number, size] ids that start at a line of a module, files drawn in proportion to their length."""
    lengths = np.array([len(document) for document in corpus.modules], dtype=float)
    lengths[lengths < 2 * size] = 0
    picked = []
    for index in generator.choice(len(lengths), size=number, p=lengths / lengths.sum()):
        document = corpus.modules[index]
        starts = line_starts(document, newline)
        starts = starts[starts < len(document) - size - 1]
        start = int(generator.choice(starts)) if len(starts) else 0
        picked.append(document[start : start + size])
    return torch.from_numpy(np.stack(picked).astype(np.int64))


def draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Next ids: the best where the temperature is 0, else drawn. The mask token is never produced."""
    logits[:, MASK_ID] = -torch.inf
    uniform = torch.rand(logits.shape, generator=generator).clamp_min_(1e-9)
    noise = -torch.log(-torch.log(uniform))
    return (logits + temperatures[:, None] * noise).argmax(-1)


@torch.inference_mode()
def continue_batch(
    target: Target,
    prompts: Tensor,
    new_tokens: int,
    temperatures: Tensor,
    taps: tuple[int, ...],
    generator: torch.Generator,
    precision: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor]:
    """Ids [batch, prompt + new] and features [batch, prompt + new - 1, taps * hidden] of the whole texts."""
    cache = KeyValueCache(target.geometry, len(prompts), prompts.shape[1] + new_tokens, precision)
    ids, tapped = [prompts], []
    step = prompts
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        for _ in range(new_tokens):
            hidden, features = target(step, cache, taps)
            step = draw(target.logits(hidden[:, -1]).float(), temperatures, generator)[:, None]
            ids.append(step)
            if features is not None:
                tapped.append(features.to(precision))
    return torch.cat(ids, dim=1), torch.cat(tapped, dim=1) if tapped else torch.empty(0)


def cut(ids: np.ndarray, prompt: int) -> tuple[int, bool]:
    """Where a text's useful part ends (its end token included), and whether it looped."""
    ends = np.flatnonzero(ids[prompt:] == END_OF_TEXT_ID)
    end = prompt + int(ends[0]) + 1 if len(ends) else len(ids)
    begin = prompt + loop_start(ids[prompt:end])
    return begin, begin < end


@dataclass(frozen=True)
class Plan:
    """How much to generate, and how."""

    batch: int = 128
    new_tokens: int = 112
    greedy_share: float = 0.5
    temperatures: tuple[float, float] = (0.3, 0.9)
    shortest: int = 16


@dataclass
class Harvest:
    """Texts worth keeping, and for each that was written whether it looped."""

    texts: list[Text] = field(default_factory=list)
    greedy_loops: list[bool] = field(default_factory=list)
    sampled_loops: list[bool] = field(default_factory=list)

    def report(self) -> str:
        kept = sum(len(text.ids) - text.prompt for text in self.texts)
        return (
            f"data: {len(self.texts)} texts, {kept / 1e6:.3f} M tokens kept; looped: "
            f"{np.mean(self.greedy_loops):.1%} of {len(self.greedy_loops)} greedy, "
            f"{np.mean(self.sampled_loops):.1%} of {len(self.sampled_loops)} sampled"
        )


class Writer:
    """Writes numbered batches; a batch depends on the seed and its number alone."""

    def __init__(self, target: Target, corpus: Corpus, taps: tuple[int, ...], seed: int, plan: Plan):
        self.target = target
        self.corpus = corpus
        self.taps = taps
        self.seed = seed
        self.plan = plan
        self.newline = ends_line(corpus)

    def write(self, number: int, harvest: Harvest) -> None:
        """Write one batch and add it to the harvest."""
        plan = self.plan
        generator = np.random.default_rng((self.seed, number))
        noise = torch.Generator().manual_seed(int(generator.integers(2**62)))
        size = int(generator.choice(PROMPT_SIZES))
        prompts = draw_prompts(self.corpus, self.newline, plan.batch, size, generator)
        greedy = torch.rand(plan.batch, generator=noise) < plan.greedy_share
        low, high = plan.temperatures
        drawn = low + (high - low) * torch.rand(plan.batch, generator=noise)
        temperatures = torch.where(greedy, 0.0, drawn)
        ids, features = continue_batch(self.target, prompts, plan.new_tokens, temperatures, self.taps, noise)
        for row in range(plan.batch):
            end, loops = cut(ids[row].numpy(), size)
            (harvest.greedy_loops if greedy[row] else harvest.sampled_loops).append(loops)
            if end - size >= plan.shortest:
                harvest.texts.append(Text(ids[row, :end].clone(), features[row, : end - 1].clone(), size))


def generate(writer: Writer, minutes: float, threads: int) -> list[Text]:
    """Continuations for about `minutes`, one batch a thread; prints how many texts looped."""
    harvest = Harvest()
    numbers = count()
    deadline = time.monotonic() + 60.0 * minutes

    def work(_: int) -> None:
        spent = 0.0
        while (now := time.monotonic()) + spent / 2 < deadline:
            writer.write(next(numbers), harvest)
            spent = time.monotonic() - now

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, range(threads)))
    print(harvest.report(), flush=True)
    return harvest.texts


def save(texts: list[Text], path: Path) -> None:
    """Write the texts with their features."""
    torch.save([(text.ids, text.features, text.prompt) for text in texts], path)


def load(path: Path) -> list[Text]:
    """Texts that `save` wrote."""
    return [Text(*fields) for fields in torch.load(path, weights_only=True)]
