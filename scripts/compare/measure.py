"""Each figure's measurement. Contenders take turns, so that a machine's moods hit all of them."""

from __future__ import annotations

import random
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


def random_ids(seed: int, n: int) -> list[int]:
    """A prompt for weights that know no language: ids that every step-cost vocabulary has."""
    draw = random.Random(seed)
    return [draw.randrange(300, 100_000) for _ in range(n)]


def decode(
    bench: Bench, pair: Pair, width: int, prompts: list[list[int]], n: int, bar: float
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
        runs: dict[str, list[list[Run]]] = {name: [] for name in ("pydflash2", *rivals)}
        for repetition in range(-1, bench.repetitions):  # -1 warms up
            for turn in runs.values():
                turn.append([])
            for index, prompt in enumerate(prompts[:1] if repetition < 0 else prompts):
                names = list(runs)
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    if name == "pydflash2":
                        run = Run.of_ours(ours.generate("pair", prompt, n, width))
                    else:
                        run = rivals[name].generate(prompt, n)
                    runs[name][-1].append(run)
            bench.say(
                f"{pair.name} w={width}: "
                + ", ".join(f"{name} {rate(turn[-1]):.1f}" for name, turn in runs.items())
            )
    turns = {name: turn[1:] for name, turn in runs.items()}
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
        for repetition in range(bench.repetitions):
            prompt = random_ids(repetition, n_prompt)
            cost = round_cost(bench.programs.round_cost, pair, width, prompt, rounds, bench.work)
            theirs_ms.append(
                settled([a + b for a, b in zip(cost["inject_ms"], cost["draft_ms"], strict=True)])
            )
            for vocabulary in ours_ms.keys() - missing.keys():
                measured = ours.rounds(vocabulary, prompt, width, rounds)
                ours_ms[vocabulary].append(settled(measured["draft_ms"]))
                bench.raw.setdefault(f"drafter {pair.name} {width}", []).append(
                    {"llama.cpp": cost, vocabulary: measured}
                )
            bench.say(
                f"{pair.name} w={width}: drafter, ms a round: llama.cpp {theirs_ms[-1]:.2f}, ours {ours_ms}"
            )
    for vocabulary, bar in (("full", 0.85), ("auto", 0.50)):
        values = ours_ms[vocabulary]
        note = missing.get(vocabulary) or f"{median(values):.2f} and {median(theirs_ms):.2f} ms a round"
        yield Figure(
            f"drafter, {pair.name}, w={width}, {vocabulary} vocabulary: pydflash2 / llama.cpp",
            [a / b for a, b in zip(values, theirs_ms, strict=False)],
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
        for repetition in range(-1, bench.repetitions):
            prompt = random_ids(1000 + repetition, 256 if repetition < 0 else n_prompt)
            order = list(rates) if repetition % 2 else list(reversed(rates))
            for name in order:
                if name in servers:
                    run = servers[name].generate(prompt, 2)
                else:
                    run = Run.of_ours(ours.generate(name, prompt, 2, 7))
                if repetition >= 0:
                    rates[name].append(prompt_rate([run]))
            if repetition >= 0:
                bench.say(
                    f"{pair.name}, {n_prompt} prompt tokens: "
                    + ", ".join(f"{n} {r[-1]:.1f}" for n, r in rates.items())
                )
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
        for repetition in range(bench.repetitions):
            answer = ours.generate("pair", random_ids(repetition, n_prompt), n, width)
            shares.append(1 - (answer["draft_seconds"] + answer["verify_seconds"]) / answer["seconds"])
    bench.raw["glue"] = shares
    yield Figure(f"Python and glue, {pair.name}, w={width}: share of a round", shares, at_most=0.01)
