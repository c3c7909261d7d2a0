"""Every arm on every text, interleaved: what slows the machine down for a while slows all arms alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import pydflash2
from pydflash2.bench.arms import PLAIN, Arm
from pydflash2.bench.workloads import Conversation, Workload
from pydflash2.loops import loop_start
from pydflash2.results import Stats

_LEAST_TEXT = 16  # tokens of a text that loops from its beginning
_WARM_UP = 24  # tokens an arm writes before anything is timed


@dataclass(frozen=True)
class Options:
    """How each text is written."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 1
    repeats: int = 5
    keep_loops: bool = False


@dataclass(frozen=True)
class Text:
    """A prompt as every arm gets it, the replies before it included, and how far it is continued."""

    prompt: str
    max_tokens: int
    cut: bool = False  # shorter than asked for: here plain decoding began to loop
    forbidden: tuple[int, ...] = ()  # end tokens, where the length is forced and the text would end before


@dataclass(frozen=True)
class Plan:
    """A workload with the replies that plain decoding gave."""

    workload: Workload
    conversations: list[tuple[str, list[Text]]]  # by name, turn by turn
    left_out: int  # turns that the context has no room for

    @property
    def texts(self) -> list[Text]:
        return [text for _, texts in self.conversations for text in texts]


@dataclass(frozen=True)
class Run:
    """One text of one arm."""

    workload: str
    conversation: str
    turn: int
    arm: str
    repeat: int
    generated: int  # tokens
    decode_seconds: float  # from the first token on, by the clock: all that a caller waits for
    looped: bool
    finish_reason: str
    stats: Stats


def plan(engine: pydflash2.Engine, workload: Workload, options: Options) -> Plan:
    """Writes each conversation once with plain decoding: its replies are part of later turns, for all arms.

    Greedy texts are cut where they begin to loop, unless `options.keep_loops`, or the workload is inflated;
    then their length is forced instead. Raises ContextOverflowError where the context has room for no text.
    """
    conversations = [
        (c.name, list(_texts(engine, c, workload.inflated, options))) for c in workload.conversations
    ]
    conversations = [(name, texts) for name, texts in conversations if texts]
    if not conversations:
        raise pydflash2.ContextOverflowError(
            f"no prompt of the workload {workload.name} fits a context of {engine.context_size} tokens with "
            f"{options.max_tokens} after it: give a larger -c or a smaller -n"
        )
    n_turns = sum(len(c.turns) for c in workload.conversations)
    return Plan(workload, conversations, n_turns - sum(len(texts) for _, texts in conversations))


def _texts(
    engine: pydflash2.Engine, conversation: Conversation, inflated: bool, options: Options
) -> Iterator[Text]:
    context = ""
    for turn in conversation.turns:
        context += turn
        if len(engine.tokenize(context)) + options.max_tokens > engine.context_size:
            return
        text = Text(context, options.max_tokens)
        reply, _ = _generate(engine, text, PLAIN, options, options.seed)
        start = loop_start(reply.tokens)
        if inflated:
            if reply.finish_reason == "stop":
                text = replace(text, forbidden=_end_tokens(engine))
        elif start < len(reply.tokens) and options.temperature == 0 and not options.keep_loops:
            text = replace(text, max_tokens=max(start, _LEAST_TEXT), cut=True)
        yield text
        context += engine.detokenize(reply.tokens[: text.max_tokens])


def _end_tokens(engine: pydflash2.Engine) -> tuple[int, ...]:
    native = engine._native
    return tuple(token for token in range(native.target.n_vocab) if native.is_end(token))


def measure(
    engine: pydflash2.Engine,
    plans: Sequence[Plan],
    arms: Sequence[Arm],
    options: Options,
    progress: Callable[[str], None],
) -> list[Run]:
    """All runs, `options.repeats` of each arm on each text. `progress` is told before each one."""
    for plan in plans:
        for arm in arms:  # loads what is loaded lazily, checks rows, reserves graphs
            progress(f"warm-up, {arm.name}")
            _generate(engine, replace(plan.texts[0], max_tokens=_WARM_UP), arm, options, 0)
    runs, turn_of_arm = [], 0
    for repeat in range(options.repeats):
        for plan in plans:
            for conversation, texts in plan.conversations:
                turn_of_arm += 1
                for place in range(len(arms)):
                    arm = arms[(place + turn_of_arm) % len(arms)]
                    progress(f"{plan.workload.name}, {arm.name}")
                    for turn, result, seconds in _converse(engine, texts, arm, repeat, options):
                        runs.append(
                            _run(plan.workload.name, conversation, turn, arm, repeat, result, seconds)
                        )
    return runs


def n_steps(plans: Sequence[Plan], arms: Sequence[Arm], options: Options) -> int:
    """How often `measure` reports progress."""
    return len(arms) * sum(1 + options.repeats * len(plan.conversations) for plan in plans)


def _converse(
    engine: pydflash2.Engine, texts: Sequence[Text], arm: Arm, repeat: int, options: Options
) -> Iterator[tuple[int, pydflash2.Result, float]]:
    forget(engine)  # a prompt that another arm has computed would be free
    for turn, text in enumerate(texts):
        seed = options.seed + 1000 * repeat + turn
        yield turn, *_generate(engine, text, arm, options, seed)


def _run(
    workload: str,
    conversation: str,
    turn: int,
    arm: Arm,
    repeat: int,
    result: pydflash2.Result,
    decode_seconds: float,
) -> Run:
    looped = loop_start(result.tokens) < len(result.tokens)
    return Run(
        workload,
        conversation,
        turn,
        arm.name,
        repeat,
        len(result.tokens),
        decode_seconds,
        looped,
        result.finish_reason,
        result.stats,
    )


def _generate(
    engine: pydflash2.Engine, text: Text, arm: Arm, options: Options, seed: int
) -> tuple[pydflash2.Result, float]:
    """The text, and the seconds after its first token."""
    settings: dict[str, Any] = arm.settings | {
        "max_tokens": text.max_tokens,
        "temperature": options.temperature,
        "seed": seed,
        "logit_bias": dict.fromkeys(text.forbidden, -math.inf) or None,
    }
    stream = engine.stream(text.prompt, **settings)
    start = None
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value, perf_counter() - (start or perf_counter())
        if start is None:
            start = perf_counter()


def forget(engine: pydflash2.Engine) -> None:
    """The next prompt is computed from its beginning."""
    engine._native.forget()


@dataclass(frozen=True)
class Prefill:
    """Seconds that prompts of one length took, a repeat each."""

    prompt_tokens: int
    seconds: dict[str, list[float]]  # by arm: plain decoding, and one that drafts


def prefill(
    engine: pydflash2.Engine,
    text: str,
    n_tokens: int,
    arms: Sequence[Arm],
    repeats: int,
    progress: Callable[[str], None],
) -> Prefill:
    """Times a prompt of `n_tokens`, made of `text` said again and again, for each of `arms` in turn."""
    piece = engine.tokenize(text)
    prompt = (piece * (n_tokens // len(piece) + 1))[:n_tokens]
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for repeat in range(repeats + 1):
        for place in range(len(arms)):
            arm = arms[(place + repeat) % len(arms)]
            progress(f"prefill, {arm.name}")
            forget(engine)
            stats = engine.generate(prompt, max_tokens=1, **arm.settings).stats
            if repeat:  # the first one warms up
                seconds[arm.name].append(stats.prefill_seconds)
    return Prefill(n_tokens, seconds)
