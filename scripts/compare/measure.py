"""Each figure's measurement. Contenders take turns, so that a machine's moods hit all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from compare.build import Programs
from compare.contenders import Ours, XLlamaCpp
from compare.figures import Figure, Run, acceptance_length, prompt_rate, rate, round_ms, settled
from compare.server import Pair, Server, round_cost


@dataclass
class Bench:
    """Where to measure, and how long."""

    work: Path
    programs: Programs
    xllamacpp: Path | str  # an interpreter, or why there is none
    repetitions: int
    raw: dict[str, Any]  # every measurement, for --json
    say: Callable[[str], None]

    def turns(self, what: str) -> Iterator[int]:
        """0, 1, ... repetitions - 1; says after each how long the others will take."""
        start = time.monotonic()
        for turn in range(self.repetitions):
            yield turn
            if left := self.repetitions - turn - 1:
                seconds = (time.monotonic() - start) / (turn + 1) * left
                self.say(f"{what}: {left} of {self.repetitions} left, about {seconds / 60:.1f} minutes")


def random_ids(seed: int, n: int) -> list[int]:
    """A prompt for weights that know no language: ids that every step-cost vocabulary has."""
    draw = random.Random(seed)
    return [draw.randrange(300, 100_000) for _ in range(n)]


def decode(
    bench: Bench, pair: Pair, prompts: list[list[int]], width: int, n: int, bar: float
) -> Iterator[Figure]:
    """Tokens per second, ours over each rival's, all prompts of a repetition taken together."""
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Ours(bench.work, pair.name)))
        ours.load("pair", pair)
        rivals: dict[str, Server | XLlamaCpp] = {}
        rivals["llama-server"] = stack.enter_context(
            closing(Server(bench.programs.server, pair, width, bench.work))
        )
        if isinstance(bench.xllamacpp, Path):
            rivals["xllamacpp"] = stack.enter_context(
                closing(XLlamaCpp(bench.xllamacpp, pair, width, bench.work))
            )
        names = ["pydflash2", *rivals]
        turns: dict[str, list[list[Run]]] = {name: [] for name in names}

        def run(name: str, prompt: list[int]) -> Run:
            if name in rivals:
                return rivals[name].generate(prompt, n)
            return Run.of_ours(ours.generate("pair", prompt, n, width))

        for name in names:
            run(name, prompts[0])  # warms up
        for _ in bench.turns(f"decode, {pair.name} pair, w={width}"):
            for turn in turns.values():
                turn.append([])
            for index, prompt in enumerate(prompts):
                first = index % len(names)
                for name in names[first:] + names[:first]:
                    turns[name][-1].append(run(name, prompt))
            bench.say(", ".join(f"{name} {rate(turn[-1]):.1f} tok/s" for name, turn in turns.items()))
    bench.raw[f"decode {pair.name} {width}"] = {
        name: [[vars(run) for run in texts] for texts in turn] for name, turn in turns.items()
    }
    for rival in ("llama-server", "xllamacpp"):
        name = f"decode, {pair.name} pair, w={width}: pydflash2 / {rival}"
        if rival not in turns:
            yield Figure(name, [], at_least=bar, note=str(bench.xllamacpp), skipped=True)
            continue
        pairs = list(zip(turns["pydflash2"], turns[rival], strict=True))
        mine, theirs = pairs[-1]
        same = sum(a.text == b.text for a, b in zip(mine, theirs, strict=True))
        note = (
            f"{median(rate(a) for a, _ in pairs):.1f} and {median(rate(b) for _, b in pairs):.1f} tok/s, "
            f"acceptance {acceptance_length(mine):.2f} and {acceptance_length(theirs):.2f}, "
            f"round {round_ms(mine):.2f} and {round_ms(theirs):.2f} ms, "
            f"{same} of {len(mine)} texts equal"
        )
        yield Figure(name, [rate(a) / rate(b) for a, b in pairs], at_least=bar, note=note)


def drafter(bench: Bench, pair: Pair, width: int, n_prompt: int, rounds: int) -> Iterator[Figure]:
    """Injection and draft of a round, ours over llama.cpp's: with the full vocabulary, and a shortlist."""
    ours_ms: dict[str, list[float]] = {"full": [], "auto": []}
    theirs_ms: list[float] = []
    missing: dict[str, str] = {}
    with closing(Ours(bench.work, f"{pair.name}-drafter")) as ours:
        for vocabulary in ours_ms:
            try:
                ours.load(vocabulary, pair, draft_vocabulary=vocabulary)
            except RuntimeError as error:
                missing[vocabulary] = str(error).splitlines()[-1]
        loaded = [vocabulary for vocabulary in ours_ms if vocabulary not in missing]
        for turn in bench.turns(f"drafter, {pair.name}, w={width}"):
            prompt = random_ids(turn, n_prompt)
            record: dict[str, Any] = {}
            for name in ["llama.cpp", *loaded] if turn % 2 else [*loaded, "llama.cpp"]:
                if name == "llama.cpp":
                    cost = round_cost(bench.programs.round_cost, pair, width, prompt, rounds, bench.work)
                    parts = zip(cost["inject_ms"], cost["draft_ms"], strict=True)
                    theirs_ms.append(settled([inject + draft for inject, draft in parts]))
                else:
                    cost = ours.rounds(name, prompt, width, rounds)
                    ours_ms[name].append(settled(cost["draft_ms"]))
                record[name] = cost
            bench.raw.setdefault(f"drafter {pair.name} {width}", []).append(record)
            shown = [f"ours, {name}, {ours_ms[name][-1]:.2f} ms" for name in loaded]
            bench.say(", ".join([f"llama.cpp {theirs_ms[-1]:.2f} ms", *shown]))
    for vocabulary, bar in (("full", 0.85), ("auto", 0.50)):
        values = ours_ms[vocabulary]
        note = missing.get(vocabulary) or f"{median(values):.2f} and {median(theirs_ms):.2f} ms a round"
        yield Figure(
            f"drafter, {pair.name}, w={width}, {vocabulary} vocabulary: pydflash2 / llama.cpp",
            [a / b for a, b in zip(values, theirs_ms, strict=not missing.get(vocabulary))],
            at_most=bar,
            note=note,
        )


def prefill(bench: Bench, pair: Pair, n_prompt: int) -> Iterator[Figure]:
    """Prompt tokens per second, with the head over without it: ours, which has a bar, and llama.cpp's."""
    pair = replace(pair, context_size=n_prompt + 256)
    rates: dict[str, list[float]] = {
        name: [] for name in ("ours with", "ours without", "theirs with", "theirs without")
    }
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Ours(bench.work, f"{pair.name}-prefill")))
        ours.load("ours with", pair)
        ours.load("ours without", pair, head=False)
        servers = {
            name: stack.enter_context(closing(Server(bench.programs.server, pair, width, bench.work)))
            for name, width in (("theirs with", 7), ("theirs without", 0))
        }

        def run(name: str, prompt: list[int]) -> Run:
            if name in servers:
                return servers[name].generate(prompt, 2)
            return Run.of_ours(ours.generate(name, prompt, 2, 7))

        warm = [run(name, random_ids(999, 256)) for name in rates]
        seconds = sum(n_prompt / prompt_rate([one]) for one in warm) * bench.repetitions
        what = f"prefill, {pair.name}, {n_prompt} tokens"
        bench.say(f"{what}: {seconds / 60:.0f} minutes, and what attention to the longer prompt takes")
        for turn in bench.turns(what):
            prompt = random_ids(1000 + turn, n_prompt)
            for name in list(rates) if turn % 2 else list(reversed(rates)):
                rates[name].append(prompt_rate([run(name, prompt)]))
            bench.say(", ".join(f"{name} {values[-1]:.1f} tok/s" for name, values in rates.items()))
    bench.raw[f"prefill {pair.name} {n_prompt}"] = rates
    for who, name, bar in (("ours", "pydflash2", 0.98), ("theirs", "llama.cpp", None)):
        with_head, without = rates[f"{who} with"], rates[f"{who} without"]
        yield Figure(
            f"prefill, {pair.name}, {n_prompt} tokens: {name} with / without head",
            [a / b for a, b in zip(with_head, without, strict=True)],
            at_least=bar,
            note=f"{median(with_head):.1f} and {median(without):.1f} tok/s",
        )


def nodes(bench: Bench, pair: Pair, width: int) -> Iterator[Figure]:
    """Nodes that compute something in the drafter's graphs of a round: our one over llama.cpp's two."""
    counted = round_cost(bench.programs.round_cost, pair, width, random_ids(0, 64), 3, bench.work, count=True)
    theirs = counted["inject_nodes"] + counted["draft_nodes"]
    with closing(Ours(bench.work, "nodes")) as ours:
        count = ours.load("pair", pair)["round_nodes"]
    bench.raw["nodes"] = {"llama.cpp": counted, "pydflash2": count}
    note = f"llama.cpp {counted['inject_nodes']} + {counted['draft_nodes']}"
    yield Figure(
        "nodes of the drafter's round: pydflash2 / llama.cpp",
        [count / theirs] if count else [],
        at_most=0.60,
        note=f"{count or 'no count of ours: this build does not tell'}; {note}",
    )


def glue(bench: Bench, pair: Pair, width: int, n_prompt: int, n: int) -> Iterator[Figure]:
    """Time of a text that neither the drafter nor the target had, over all of it."""
    shares = []
    with closing(Ours(bench.work, "glue")) as ours:
        ours.load("pair", pair)
        ours.generate(
            "pair", random_ids(-1, n_prompt), 8, width
        )  # the row check, too, where it was never made
        for turn in bench.turns(f"glue, {pair.name}"):
            answer = ours.generate("pair", random_ids(turn, n_prompt), n, width)
            shares.append(1 - (answer["draft_seconds"] + answer["verify_seconds"]) / answer["seconds"])
    bench.raw["glue"] = shares
    yield Figure(f"Python and glue, {pair.name}, w={width}: share of a round", shares, at_most=0.01)
