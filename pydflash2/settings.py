"""What a request can set: names, types, defaults, and the checks of what a caller passes."""

from __future__ import annotations

import difflib
import inspect
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypedDict, TypeVar, cast

from pydflash2 import arguments
from pydflash2.structured import JsonSchema, grammar_of

Width = int | Literal["auto"]
Lookup = Literal["auto", "map-k4v", "mod", "off"]
LOOKUPS: tuple[Lookup, ...] = ("auto", "map-k4v", "mod", "off")


class SamplingSettings(TypedDict, total=False):
    """How the target chooses a token from its logits: llama.cpp's samplers, in this order."""

    logit_bias: (
        Mapping[SupportsIndex, SupportsFloat] | None
    )  # {token id: added to its logit}; -inf forbids a token
    repeat_penalty: float  # > 0; 1: none. Divides the logits of tokens seen
    presence_penalty: float  # taken from the logits of tokens seen
    frequency_penalty: float  # the same, for each time they were seen
    penalty_last_n: int  # tokens the three penalties look back at, prompt included; 0: none, -1: all
    grammar: str | None  # GBNF, with a rule named root
    json_schema: JsonSchema | None  # the text is a JSON document of it: a dict, JSON text, a pydantic model
    top_k: int  # the k likeliest; 0: all
    typical_p: float  # tokens of typical surprise, up to this probability; 1: all
    top_p: float  # the likeliest, up to this probability; 1: all
    min_p: float  # those with this share of the likeliest one's probability, at least; 0: all
    temperature: float  # 0: always the likeliest token (greedy)
    seed: int | None  # None: a fresh one


class Settings(SamplingSettings, total=False):
    """All that one request can set."""

    max_tokens: int | None  # generated at most; None: until the context is full
    stop: str | Iterable[str] | None  # the text ends before the one that is completed first
    logprobs: int | None  # N: the target's own log-probabilities, of the N likeliest tokens too
    speculate: bool  # False decodes without the head
    max_draft_tokens: Width  # by the head, a round; "auto": what is fastest
    lookup: Lookup  # drafts from the text itself; "auto": where they are faster
    min_draft_probability: float  # a draft ends before its probability falls below this
    draft_temperature: float | Literal["auto"]  # "auto": what is accepted most


DEFAULTS: Settings = {
    "max_tokens": None,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "penalty_last_n": 64,
    "logit_bias": None,
    "grammar": None,
    "json_schema": None,
    "seed": None,
    "stop": None,
    "logprobs": None,
    "speculate": True,
    "max_draft_tokens": "auto",
    "lookup": "auto",
    "min_draft_probability": 0.0,
    "draft_temperature": "auto",
}

SAMPLING_DEFAULTS = cast(
    Settings, {name: value for name, value in DEFAULTS.items() if name in SamplingSettings.__annotations__}
)

# Of the text's own temperature; see docs/architecture.md, "What is accepted most".
_DRAFT_TEMPERATURE = 0.85

_MOST_LOGPROBS = 1000


@dataclass(frozen=True)
class Sampling:
    """How the target's next token is chosen. Ranges are checked where it is used."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    logit_bias: dict[int, float]
    grammar: str | None

    @classmethod
    def of(cls, settings: Settings) -> Sampling:
        numbers: dict[str, Any] = {name: arguments.number(name, settings[name]) for name in _NUMBERS}  # type: ignore[literal-required]
        return cls(
            top_k=arguments.integer("top_k", settings["top_k"], 0),
            penalty_last_n=arguments.integer("penalty_last_n", settings["penalty_last_n"], -1),
            logit_bias=_logit_bias(settings["logit_bias"]),
            grammar=grammar_of(settings["grammar"], settings["json_schema"]),
            **numbers,
        )


_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True)
class Request:
    """The settings of one request, checked. What depends on the engine is left to it."""

    sampling: Sampling
    seed: int
    max_tokens: int | None
    stop: tuple[str, ...]
    logprobs: int | None
    speculate: bool
    max_draft_tokens: Width
    lookup: Lookup
    min_draft_probability: float
    draft_temperature: float

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """Raises TypeError and ValueError for unknown names and bad values."""
        settings = complete(given, DEFAULTS)
        sampling = Sampling.of(settings)
        limit, logprobs, drafting = (
            settings["max_tokens"],
            settings["logprobs"],
            settings["draft_temperature"],
        )
        if isinstance(drafting, str) and drafting != "auto":
            raise ValueError(f'draft_temperature is {arguments.brief(drafting)}: give a number or "auto"')
        return cls(
            sampling,
            seed_of(settings["seed"]),
            None if limit is None else arguments.integer("max_tokens", limit, 1),
            arguments.stop_strings(settings["stop"]),
            None if logprobs is None else arguments.integer("logprobs", logprobs, 0, _MOST_LOGPROBS),
            arguments.flag("speculate", settings["speculate"]),
            width_of(settings["max_draft_tokens"]),
            lookup_of(settings["lookup"]),
            arguments.number("min_draft_probability", settings["min_draft_probability"], 0, 1),
            _DRAFT_TEMPERATURE * sampling.temperature
            if isinstance(drafting, str)
            else arguments.number("draft_temperature", drafting, 0),
        )


def complete(given: Mapping[str, Any], defaults: Settings) -> Settings:
    """`given` with the defaults for what it leaves out. TypeError for a name that doesn't exist."""
    for name in given:
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, 1)
            hint = f"did you mean {close[0]}?" if close else "help(engine.generate) lists what there is"
            raise TypeError(f"there is no setting {name!r}: {hint}")
    return cast(Settings, {**defaults, **given})


def width_of(width: Width) -> Width:
    if isinstance(width, str):
        if width != "auto":
            raise ValueError(f'max_draft_tokens is {arguments.brief(width)}: give a number or "auto"')
        return width
    return arguments.integer("max_draft_tokens", width, 0)


def lookup_of(lookup: Lookup) -> Lookup:
    if not isinstance(lookup, str) or lookup not in LOOKUPS:
        raise ValueError(f"lookup is {arguments.brief(lookup)}: give one of {', '.join(LOOKUPS)}")
    return lookup


def seed_of(seed: SupportsIndex | None) -> int:
    """The seed given, or a fresh one: 32 bits, short enough to be typed again."""
    return secrets.randbits(32) if seed is None else arguments.integer("seed", seed, 0, 2**64 - 1)


def _logit_bias(bias: Mapping[SupportsIndex, SupportsFloat] | None) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias is {type(bias).__name__}: give a dict of token ids and numbers")
    checked = {}
    for token, value in bias.items():
        token = arguments.integer("a token of logit_bias", token, 0)
        checked[token] = arguments.number(f"logit_bias of token {token}", value, -math.inf)
    return checked


Function = TypeVar("Function", bound=Callable[..., Any])


def shown(defaults: Settings) -> Callable[[Function], Function]:
    """Lets help() and editors see settings by name and default, where the code has **settings."""

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        settings = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in defaults.items()
        ]
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*kept, *settings])  # type: ignore[attr-defined]
        return function

    return decorate
