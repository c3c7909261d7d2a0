"""Texts that the target wrote, and their shards on disk.

A folder holds manifest.json, which says what the texts depend on, and shards of some hundred texts each. A
shard is written beside and renamed: whatever happens, it is whole or not there.
"""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pydflash2.kept import content_identity
from pydflash2.train.files import remove_parts, write_beside

log = logging.getLogger("pydflash2")

Integers = npt.NDArray[np.int32]
Halves = npt.NDArray[np.float16]

FORMAT = 1  # of the shards; grows when older ones can't be read


@dataclass(frozen=True)
class Text:
    """A prompt and what the target wrote after it, an end token included."""

    tokens: Integers  # [n]
    n_prompt: int
    temperature: float  # it was written with; 0: greedy
    top_tokens: Integers  # [n - n_prompt, n_top] likeliest for each token written, likeliest first
    top_logprobs: Halves  # [n - n_prompt, n_top] before any sampler
    held_out: bool
    source: str

    @property
    def n_written(self) -> int:
        return len(self.tokens) - self.n_prompt


@dataclass(frozen=True)
class Outcome:
    """What became of one prompt."""

    index: int  # of the prompt
    text: Text  # without tokens where it was dropped
    looped: bool  # it was cut where it began to repeat itself

    @property
    def dropped(self) -> bool:
        return not len(self.text.tokens)


@dataclass(frozen=True)
class Texts:
    """All texts that are kept, in the order of their prompts, and what became of the others."""

    training: list[Text] = field(default_factory=list)
    held_out: list[Text] = field(default_factory=list)
    n_greedy: int = 0  # prompts continued
    n_sampled: int = 0
    n_greedy_loops: int = 0
    n_sampled_loops: int = 0
    n_dropped: int = 0  # useful continuations that are too short

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Texts:
        ordered = sorted(outcomes, key=lambda outcome: outcome.index)
        kept = [outcome.text for outcome in ordered if not outcome.dropped]
        greedy = [outcome for outcome in ordered if outcome.text.temperature == 0]
        sampled = [outcome for outcome in ordered if outcome.text.temperature > 0]
        return cls(
            [text for text in kept if not text.held_out],
            [text for text in kept if text.held_out],
            len(greedy),
            len(sampled),
            sum(outcome.looped for outcome in greedy),
            sum(outcome.looped for outcome in sampled),
            len(ordered) - len(kept),
        )

    @property
    def n_tokens(self) -> int:
        """Tokens to train with: written, in training texts."""
        return sum(text.n_written for text in self.training)

    def summary(self) -> str:
        def share(count: int, of: int) -> str:
            return f"{count:,} of {of:,} {'' if not of else f'({count / of:.0%}) '}"

        return (
            f"{len(self.training):,} texts with {self.n_tokens:,} generated tokens to train with, "
            f"{len(self.held_out):,} held out; looped and cut there: "
            f"{share(self.n_greedy_loops, self.n_greedy)}greedy, "
            f"{share(self.n_sampled_loops, self.n_sampled)}sampled; dropped as too short: {self.n_dropped:,}"
        )


def manifest_of(target: Path, prompts_digest: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What texts depend on. The target's file may be moved: its size and a digest of samples tell it."""
    return {"format": FORMAT, "target": content_identity(target), "prompts": prompts_digest, **settings}


class TextStore:
    """The outcomes in a folder. One process writes at a time."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Reads what the folder has, or begins it.

        Raises ValueError where it holds texts of other prompts, another target or other settings.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        wanted = json.loads(json.dumps(manifest))
        file = folder / "manifest.json"
        if file.exists():
            _check_manifest(folder, _read_manifest(file), wanted)
        else:
            data = json.dumps(wanted, indent=1, sort_keys=True).encode()
            write_beside(file, lambda out: out.write(data))
        self._outcomes: dict[int, Outcome] = {}
        self.n_tokens = 0  # to train with
        self.n_loops = 0
        self._waiting: list[Outcome] = []
        self._next = 0
        for shard in sorted(folder.glob("texts-*.npz")):
            self._next = int(shard.stem.removeprefix("texts-")) + 1
            try:
                outcomes = _read_shard(shard)
            except _DAMAGED as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                log.warning("%s is damaged (%s): its texts are written again", shard, error)
                os.replace(shard, shard.with_suffix(".damaged"))
                continue
            for outcome in outcomes:
                self._take(outcome)

    def __contains__(self, index: int) -> bool:
        return index in self._outcomes

    def __len__(self) -> int:
        return len(self._outcomes)

    def __getitem__(self, index: int) -> Outcome:
        return self._outcomes[index]

    @property
    def n_waiting(self) -> int:
        """Outcomes that aren't on disk yet."""
        return len(self._waiting)

    def add(self, outcome: Outcome) -> None:
        self._take(outcome)
        self._waiting.append(outcome)

    def _take(self, outcome: Outcome) -> None:
        if outcome.index not in self._outcomes:
            self._outcomes[outcome.index] = outcome
            self.n_tokens += n_to_train(outcome)
            self.n_loops += outcome.looped

    def flush(self) -> None:
        """Writes what waits as a shard. OSError where that fails: it still waits then."""
        if not self._waiting:
            return
        arrays = _arrays(sorted(self._waiting, key=lambda outcome: outcome.index))
        write_beside(
            self.folder / f"texts-{self._next:05d}.npz",
            lambda file: np.savez(file, **arrays),  # type: ignore[arg-type]  # numpy's stub: a bool for each
        )
        self._next += 1
        self._waiting.clear()

    def texts(self, n_tokens: int | None = None, n_held_out: int = 0) -> Texts:
        """All texts; with `n_tokens`, those of the first prompts that have as many tokens to train with, and
        the first `n_held_out` that are held out, wherever they are.
        """
        chosen, total, held_out = [], 0, 0
        for index in sorted(self._outcomes):
            outcome = self._outcomes[index]
            enough = n_tokens is not None and total >= n_tokens
            if enough and not (outcome.text.held_out and held_out < n_held_out):
                continue
            chosen.append(outcome)
            total += n_to_train(outcome)
            held_out += outcome.text.held_out
        return Texts.of(chosen)


def n_to_train(outcome: Outcome) -> int:
    """Tokens that count towards what was asked for."""
    return 0 if outcome.text.held_out else outcome.text.n_written


# ---- manifest -------------------------------------------------------------------------------------------


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_bytes())
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise ValueError(f"{file} is damaged: name another folder, or remove this one")
    return manifest


_NAMES = {"target": "the target", "prompts": "the prompts"}  # their digests tell nobody anything


def _check_manifest(folder: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    differs = [
        _NAMES.get(key, f"{key} ({there.get(key)} there, {wanted.get(key)} now)")
        for key in sorted(there.keys() | wanted.keys())
        if there.get(key) != wanted.get(key)
    ]
    if differs:
        raise ValueError(
            f"{folder} holds texts that were written otherwise; what differs: {', '.join(differs)}. Name "
            "another folder, or ask for the same as before"
        )


# ---- shards ---------------------------------------------------------------------------------------------

_DAMAGED = (zipfile.BadZipFile, ValueError, KeyError, EOFError, IndexError, OSError)


def _arrays(outcomes: list[Outcome]) -> dict[str, npt.NDArray[Any]]:
    texts = [outcome.text for outcome in outcomes]
    return {
        "index": np.array([outcome.index for outcome in outcomes], np.int64),
        "looped": np.array([outcome.looped for outcome in outcomes], bool),
        "n_tokens": np.array([len(text.tokens) for text in texts], np.int64),
        "n_prompt": np.array([text.n_prompt for text in texts], np.int64),
        "temperature": np.array([text.temperature for text in texts], np.float64),
        "held_out": np.array([text.held_out for text in texts], bool),
        "source": np.array([text.source.encode() for text in texts], bytes),
        "tokens": np.concatenate([text.tokens for text in texts]),
        "top_tokens": np.concatenate([text.top_tokens for text in texts]),
        "top_logprobs": np.concatenate([text.top_logprobs for text in texts]),
    }


def _read_shard(path: Path) -> list[Outcome]:
    """Raises one of _DAMAGED for what isn't whole: each array in the file has a checksum."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["n_tokens"])
    rows = np.cumsum(arrays["n_tokens"] - arrays["n_prompt"])
    if not len(ends) or ends[-1] != len(arrays["tokens"]) or rows[-1] != len(arrays["top_tokens"]):
        raise ValueError("its lengths don't fit its tokens")
    outcomes = []
    for place, index in enumerate(arrays["index"]):
        end, n, n_prompt = (int(x[place]) for x in (ends, arrays["n_tokens"], arrays["n_prompt"]))
        top = slice(int(rows[place]) - (n - n_prompt), int(rows[place]))
        text = Text(
            arrays["tokens"][end - n : end],
            n_prompt,
            float(arrays["temperature"][place]),
            arrays["top_tokens"][top],
            arrays["top_logprobs"][top],
            bool(arrays["held_out"][place]),
            bytes(arrays["source"][place]).decode(),
        )
        outcomes.append(Outcome(int(index), text, bool(arrays["looped"][place])))
    return outcomes
