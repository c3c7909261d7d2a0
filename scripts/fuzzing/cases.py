"""A mutated file, made from its seed and index alone, and what becomes of it in the public API."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pydflash2
from fuzzing import gguf_parts, mutations
from fuzzing.gguf_parts import Parts
from fuzzing.judge import complaint
from pydflash2 import inspection
from pydflash2.convert import convert
from tiny import heads
from tiny.files import TinyFiles

KINDS = ("DFlash 1 head", "DFlash 2 head", "target")
_SHARES = (0.12, 0.38, 0.5)
_HEADS = {
    "DFlash 1 head": ["dflash-1", "dflash-1-reduced"],
    "DFlash 2 head": [
        *("plain", "one-layer", "mixed", "yarn", "scaled", "own-embedding", "reduced-vocabulary", "last-tap"),
        *("gemma3", "qwen3moe", "phi3", "qwen35", "qwen35"),
    ],
}
_TARGETS = ["qwen3", "qwen3-tied", "llama", "qwen2", "gemma3", "qwen3moe", "phi3", "qwen35", "qwen3next"]
_HEAD_OF = {"qwen3": "plain", "qwen3-tied": "tied-target"}

# What a loaded pair's errors say instead of a file's name: one target, one head.
_MENTIONS = (
    "the target's vocabulary",
    "the target's logits",
    "the head computed",
    "the prompt",
    "context_size",
    "batch_size",
)

_PROMPT = [7 * i % 256 for i in range(20)]
_TEXT = "def f(x):\n    return <|im_end|> ünïcödé \U0001f600 \x00"


@dataclass(frozen=True)
class Case:
    """What is mutated, and how it is loaded."""

    index: int
    kind: str
    base: str
    file_type: str
    drawn: list[str]
    with_head: bool
    options: dict[str, Any]


@dataclass
class Outcome:
    """verdict: "works", "refused" or "unhelpful"; answers: what each call said."""

    index: int
    kind: str
    drawn: list[str]
    verdict: str = "works"
    answers: dict[str, str] = field(default_factory=dict)
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(seed: int, index: int, kinds: tuple[str, ...] = KINDS) -> tuple[Case, Random]:
    """The case, and the dice its mutations go on with."""
    dice = Random(f"{seed} {index}")
    kind = dice.choices(kinds, [_SHARES[KINDS.index(kind)] for kind in kinds])[0]
    is_head = kind != "target"
    base = dice.choice(_HEADS[kind] if is_head else _TARGETS)
    drawn = mutations.draw(dice, mutations.HEAD if is_head else mutations.TARGET)
    options: dict[str, Any] = {"context_size": 128, "use_mmap": dice.random() < 0.5}
    if dice.random() < 0.1:
        options["context_size"] = None
    if not is_head and dice.random() < 0.1:
        options["taps"] = "callback"
    file_type = dice.choice(["f32", "f32", "f16", "q8_0", "q4_0"])
    return Case(index, kind, base, file_type, drawn, is_head or dice.random() < 0.5, options), dice


class Files:
    """The sound files, read once, and the folder that mutated ones are written to."""

    def __init__(self, folder: Path) -> None:
        self._tiny = TinyFiles(folder)
        self._parts: dict[Path, Parts] = {}
        self._folder = folder

    def partner(self, case: Case) -> Path | None:
        """The sound target of a mutated head, the sound head of a mutated target."""
        if case.kind != "target":
            return self._tiny.target(heads.HEADS[case.base].target)
        return self._tiny.head(_HEAD_OF.get(case.base, case.base)) if case.with_head else None

    def write(self, case: Case, dice: Random) -> Path:
        """The mutated file. A new one each time: a file still mapped may not change."""
        source = (
            self._tiny.target(case.base, case.file_type)
            if case.kind == "target"
            else self._tiny.head(case.base, "f16" if case.file_type == "f16" else "f32")
        )
        if source not in self._parts:
            self._parts[source] = gguf_parts.read(source)
        parts = self._parts[source].copy()
        if (
            case.base == "qwen35" and case.kind != "target" and dice.random() < 0.5
        ):  # an old head, which can be mended
            parts.keys.remove(parts.key(b"dflash.rope.dimension_sections"))
        path = self._folder / f"mutated-{case.index}.gguf"
        path.write_bytes(mutations.mutate(dice, parts, case.drawn))
        return path


def run(
    seed: int, index: int, files: Files, kinds: tuple[str, ...] = KINDS, keep: Path | None = None
) -> Outcome:
    """Makes a case's file and hands it to everything that reads files."""
    case, dice = plan(seed, index, kinds)
    outcome = Outcome(index, case.kind, case.drawn)
    path = files.write(case, dice)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / path.name).write_bytes(path.read_bytes())
    partner = files.partner(case)
    target, head = (partner, path) if case.kind != "target" else (path, partner)
    assert target is not None

    calls: dict[str, Callable[[], object]] = {"inspect": lambda: inspection.inspect(path)}
    if head is not None:
        calls["check_pair"] = lambda: inspection.check_pair(target, head)
    if case.base == "qwen35" and head is not None:
        calls["mend"] = lambda: convert(head, target, path.with_suffix(".mended"), progress=False)
    calls["load"] = lambda: _use(target, head, case)
    try:
        for name, call in calls.items():
            _answer(name, call, [path.name, *([partner.name] if partner else []), *_MENTIONS], outcome)
    finally:
        path.unlink(missing_ok=True)
        path.with_suffix(".mended").unlink(missing_ok=True)
    return outcome


def _answer(name: str, call: Callable[[], object], mentions: list[str], outcome: Outcome) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
        outcome.answers[name] = "works"
    except Exception as error:
        outcome.answers[name] = f"{type(error).__name__}: {error}"
        why = complaint(error, mentions)
        if why is not None:
            outcome.verdict = "unhelpful"
            outcome.detail = f"{name}: {why}: {outcome.answers[name]}"
        elif name == "load" and outcome.verdict == "works":
            outcome.verdict = "refused"


def _use(target: Path, head: Path | None, case: Case) -> None:
    """Loads the pair and decodes a few tokens of it in each way."""
    with pydflash2.load(target, head, n_threads=1, n_gpu_layers=0, batch_size=64, **case.options) as engine:
        engine.generate(_PROMPT, max_tokens=6)
        if case.kind == "target":
            tokens = engine.tokenize(_TEXT)
            engine.detokenize(tokens)
            engine.detokenize(range(0, int(engine._native.target.n_vocab), 7))
            engine.generate("x", max_tokens=2)
        elif head is not None:
            engine.prefill(_PROMPT[:9])
            engine.verify(engine.draft(3))
            engine.generate(_PROMPT, max_tokens=20)
