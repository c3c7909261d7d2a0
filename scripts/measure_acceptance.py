#!/usr/bin/env python3
"""Mean acceptance length by how drafts are chosen: what pydflash2's defaults rest on.

    python scripts/measure_acceptance.py --prompts 200 --tokens 128
    python scripts/measure_acceptance.py -m TARGET.gguf -d HEAD.gguf --temperatures 0.7,1.0

At temperature 0: the selector's argmax path against the path with the largest expected accepted length.
Above 0, first what other engines do, the argmax path verified by exact match: tokens that the target draws
alone, counted until they leave the path. Then our verification, of that path and of drafts drawn at several
shares of the text's temperature. Prompts are windows of files the demo pair never saw. The figures don't
depend on the machine's speed. An error of the mean is given: rounds of one text aren't independent, so texts
are what is resampled.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from heldout import windows
from tqdm import tqdm

import pydflash2
from pydflash2.settings import Request

SHARES = (0.7, 0.85, 1.0, 1.2, 1.5)


class Way(NamedTuple):
    """How a draft is chosen."""

    name: str
    temperature: float  # of the text
    draft_temperature: float
    walk: str
    exact_match: bool = False


def ways(temperatures: list[float]) -> Iterator[Way]:
    for temperature in temperatures:
        if temperature == 0:
            yield Way("argmax path", 0, 0, "argmax")
            yield Way("largest expected length", 0, 0, "expected")
            continue
        yield Way("argmax path, exact match", temperature, 0, "argmax", True)
        yield Way("argmax path", temperature, 0, "argmax")
        for share in SHARES:
            yield Way(f"drawn at {share:g} T", temperature, share * temperature, "argmax")


def accepted(
    engine: pydflash2.Engine, prompt: list[int], way: Way, width: int, n: int, seed: int
) -> tuple[int, int]:
    """Rounds and accepted drafts of one text of n tokens."""
    native = engine._native
    native.begin(
        prompt, True, native.sampling(Request.of({"temperature": way.temperature}).sampling, seed, None)
    )
    while native.prefill():
        pass
    rounds = total = count = 0
    finished = False
    while count < n and not finished:
        draft = native.draft(width, way.draft_temperature, 0.0, way.walk)
        if way.exact_match:
            n_accepted = -1
            for token in [*native.draft_arrays(draft).tokens, None]:
                committed, verdict = native.verify_tokens([])
                n_accepted, finished = n_accepted + 1, bool(verdict.finished)
                if committed != [token] or finished:
                    break
            count += n_accepted + 1
        else:
            committed, verdict = native.verify(draft.proposal)
            n_accepted, finished = int(verdict.n_accepted), bool(verdict.finished)
            count += len(committed)
        rounds, total = rounds + 1, total + n_accepted
    return rounds, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", help="target (default: the demo pair's)")
    parser.add_argument("-d", "--head", default="auto")
    parser.add_argument("--prompts", type=int, default=200, metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=96, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="a text's length (default 128)")
    parser.add_argument("--temperatures", default="0,0.7,1.0")
    parser.add_argument("--width", type=int, metavar="N", help="drafted tokens (default: block_size - 1)")
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()

    with pydflash2.load(
        args.model, args.head, context_size=args.prompt_tokens + args.tokens + 32, n_threads=args.threads
    ) as engine:
        width = args.width or (engine.block_size or 1) - 1
        size = args.prompt_tokens
        prompts = windows(engine, args.prompts, range(size, size + 1))
        print(f"{engine}\n{len(prompts)} prompts of {size} tokens, {args.tokens} tokens each, width {width}")
        print(f"{'T':>4}  {'drafts':26} {'mean acceptance length':>22}  {'to the first':>12}")
        first: tuple[float, float] | None = None
        for way in ways([float(text) for text in args.temperatures.split(",")]):
            counts = np.array(
                [
                    accepted(engine, prompt, way, width, args.tokens, seed)
                    for seed, prompt in enumerate(tqdm(prompts, desc=way.name, leave=False, disable=None))
                ]
            )
            length = 1 + counts[:, 1].sum() / counts[:, 0].sum()
            picks = np.random.default_rng(0).integers(0, len(counts), (1000, len(counts)))
            error = np.std(1 + counts[picks, 1].sum(1) / counts[picks, 0].sum(1))
            if first is None or first[0] != way.temperature:
                first = (way.temperature, length)
            figures = f"{length:13.3f} +- {error:.3f}  {length / first[1]:12.3f}"
            print(f"{way.temperature:4g}  {way.name:26} {figures}", flush=True)


if __name__ == "__main__":
    main()
