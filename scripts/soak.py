#!/usr/bin/env python3
"""Answer thousands of requests of mixed settings on one engine, and see that it keeps nothing.

    python scripts/soak.py                                       # 10,000 requests on the demo pair
    python scripts/soak.py -m TARGET.gguf -d HEAD.gguf --requests 500 --warm-up 100

Requests differ in prompt, length, samplers, seed, width, stop strings, grammar and log-probabilities; some
are streams that are left early, some ask for several samples, some go step by step, some are refused.
Resident memory is read after --warm-up requests and at the end, each time after Python's garbage collection
and glibc's malloc_trim, so that what is counted is what is held. Exits with 1 where it grew by more than 1 %,
or a file descriptor stayed open.

Reads /proc, so it runs on Linux.
"""

import argparse
import collections
import ctypes
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pydflash2
from pydflash2.settings import LOOKUPS, Settings

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "def",
    "return",
    "import",
    "class",
    "self",
    "=",
    "(",
    ")",
    ":",
    "\n",
]
GRAMMARS = [
    "root ::= [a-z ]+",
    'root ::= ("yes" | "no") ", " [a-z]+',
    'root ::= "[" [0-9]+ ("," [0-9]+)* "]"',
]
MOST_GROWTH = 0.01
_MOST_UNREAD = 32  # tokens whose features wait for a draft: csrc/drafter/drafter.cpp has no more


class Requests:
    """Requests drawn from one seed. Each kind is a method, named for what is counted."""

    def __init__(self, engine: pydflash2.Engine, seed: int) -> None:
        self.engine, self.rng = engine, random.Random(seed)
        self.kinds: list[Callable[[], None]] = [
            *10 * [self.generate], *3 * [self.left_stream], self.whole_stream, self.samples, self.steps,
            self.overflow, self.bad_argument, self.interrupted,
        ]  # fmt: skip
        self.counts: collections.Counter[str] = collections.Counter()
        self.tokens = self.accepted = 0

    def every_graph(self) -> None:
        """Drafts of every width after every number of tokens that the head hasn't read. The engine keeps a
        graph for each of these, made when first needed; by chance the last would come late.
        """
        text = self.engine.generate("the", max_tokens=40, speculate=False).tokens
        block = self.engine.block_size or 1
        for unread in range(1, _MOST_UNREAD + 1):
            for width in range(1, block if unread <= block else 2):
                self.engine.prefill("the")
                self.engine.draft(1)
                self.engine.verify(text[1:unread])
                self.engine.draft(width)
        for lookup in ("map-k4v", "mod"):
            self.engine.generate("the", max_tokens=300, max_draft_tokens=0, lookup=lookup)

    def one(self) -> None:
        kind = self.rng.choice(self.kinds)
        kind()
        self.counts[kind.__name__] += 1

    def prompt(self) -> str:
        length = self.rng.choice([1, 3, 10, 30, 60])
        return " ".join(self.rng.choice(WORDS) for _ in range(length)) or "the"

    def settings(self) -> Settings:
        """Each setting is left alone in most requests."""
        rng = self.rng
        settings: Settings = {"max_tokens": rng.randint(1, 10), "seed": rng.getrandbits(32)}
        if rng.random() < 0.6:
            settings["temperature"] = rng.choice([0.3, 0.7, 1.0, 1.5])
        if rng.random() < 0.2:
            settings["top_k"] = rng.choice([1, 5, 40])
        if rng.random() < 0.2:
            settings["top_p"] = rng.choice([0.5, 0.95])
        if rng.random() < 0.2:
            settings["min_p"] = 0.05
        if rng.random() < 0.1:
            settings["typical_p"] = 0.9
        if rng.random() < 0.2:
            settings["repeat_penalty"] = 1.2
            settings["penalty_last_n"] = rng.choice([-1, 0, 16, 64])
        if rng.random() < 0.1:
            settings["presence_penalty"], settings["frequency_penalty"] = 0.5, 0.2
        if rng.random() < 0.1:
            settings["logit_bias"] = {rng.randrange(200): rng.choice([-float("inf"), -2.0, 3.0])}
        if rng.random() < 0.1:
            settings["grammar"] = rng.choice(GRAMMARS)
        if rng.random() < 0.2:
            settings["logprobs"] = rng.randint(0, 5)
        if rng.random() < 0.2:
            settings["stop"] = rng.choice(["e", ["\n", "return"], ["zzz"]])
        if rng.random() < 0.2:
            settings["speculate"] = False
        if rng.random() < 0.4:
            settings["max_draft_tokens"] = rng.randint(0, (self.engine.block_size or 1) - 1)
        if rng.random() < 0.3:
            settings["lookup"] = rng.choice(LOOKUPS)
        if rng.random() < 0.1:
            settings["min_draft_probability"] = 0.2
        return settings

    def generate(self) -> None:
        result = self.engine.generate(self.prompt(), **self.settings())
        self.tokens += len(result.tokens)
        self.accepted += result.stats.accepted

    def left_stream(self) -> None:
        stream = self.engine.stream(self.prompt(), **self.settings())
        for _ in range(self.rng.randrange(3)):
            if next(stream, None) is None:
                break
        if self.rng.random() < 0.5:
            stream.close()  # else it is dropped

    def whole_stream(self) -> None:
        for piece in self.engine.stream(self.prompt(), **self.settings()):
            self.tokens += len(piece.tokens)

    def samples(self) -> None:
        self.tokens += sum(
            len(one.tokens) for one in self.engine.samples(self.prompt(), 3, **self.settings())
        )

    def steps(self) -> None:
        self.engine.prefill(
            self.prompt(), temperature=self.rng.choice([0.0, 1.0]), seed=self.rng.getrandbits(32)
        )
        for _ in range(2):
            self.accepted += self.engine.verify(self.engine.draft(self.rng.randint(1, 7))).n_accepted

    def overflow(self) -> None:
        try:
            self.engine.generate(self.prompt(), max_tokens=10**6)
        except pydflash2.ContextOverflowError:
            return
        raise AssertionError("a million tokens fitted the context")

    def bad_argument(self) -> None:
        wrong: list[Settings] = [
            {"grammar": "root ::= ("},
            {"temperature": -1.0},
            {"top_p": 2.0},
            {"stop": ""},
        ]
        try:
            self.engine.generate(self.prompt(), **self.rng.choice(wrong))
        except ValueError:
            return
        raise AssertionError("a wrong argument was taken")

    def interrupted(self) -> None:
        """As Ctrl-C ends a request: with an exception out of the loop that reads it."""
        try:
            for _ in self.engine.stream(self.prompt(), **self.settings()):
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass


def resident() -> int:
    """Bytes that the process holds in memory, once what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, metavar="FILE", help="the target; default: the demo pair")
    parser.add_argument(
        "-d", "--head", type=Path, metavar="FILE", help="its head; default: the one beside it"
    )
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument(
        "--warm-up", type=int, default=500, metavar="N", help="requests before the first reading"
    )
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the settings that are drawn")
    args = parser.parse_args()
    if not 0 < args.warm_up < args.requests:
        parser.error("--warm-up must lie between 1 and --requests")

    with pydflash2.load(args.model, args.head or "auto", n_threads=args.threads, context_size=512) as engine:
        requests = Requests(engine, args.seed)
        memory = files = 0
        requests.every_graph()
        start = time.perf_counter()
        for number in range(1, args.requests + 1):
            requests.one()
            if number == args.warm_up:
                memory, files = resident(), open_files()
            if number % 1000 == 0:
                print(
                    f"{number} requests, {resident() / 1e6:.1f} MB, {open_files()} descriptors",
                    file=sys.stderr,
                )
        grown, more_files = resident() / memory - 1, open_files() - files
        seconds = time.perf_counter() - start

    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in requests.counts.most_common())
    print(
        f"{args.requests} requests in {seconds:.0f} s: {kinds}; {requests.tokens} tokens, "
        f"{requests.accepted} of them accepted drafts"
    )
    print(
        f"after {args.warm_up} requests {memory / 1e6:.1f} MB: resident memory {grown:+.1%}, "
        f"file descriptors {more_files:+d}"
    )
    return int(grown > MOST_GROWTH or more_files > 0)


if __name__ == "__main__":
    sys.exit(main())
