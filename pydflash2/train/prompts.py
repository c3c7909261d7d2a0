"""What the target is asked to continue: the user's prompts, or places in the user's documents.

    prompts.txt     one prompt a line
    prompts.jsonl   one a line: {"prompt": text}, {"text": text}, {"messages": [{"role", "content"}, ...]} or
                    ShareGPT's {"conversations": [{"from", "value"}, ...]}
    other files     a document, cut into prompts: each begins with a line, at a random place
    a folder        its documents, hidden and binary ones left out, and its .jsonl files

What is held out shares no source with what is trained on: no line of a list, no file of a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from pydflash2 import arguments
from pydflash2.chat_template import ChatTemplate
from pydflash2.train.sources import Document, Line, halves, read_sources

Integers = npt.NDArray[np.int32]
Tokenize = Callable[[bytes, bool, bool], list[int]]  # text, add_special, parse_special

PROMPT_SIZES = (8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens, of prompts cut from documents
N_FROM_DOCUMENTS = 4096  # prompts, where nobody says how many
_FEW = 4  # prompts held out at least, where there are five times as many
_PASSES = 8  # over the documents, until all prompts asked for are found
_CHARACTERS = 8  # that a token has at most, mostly


@dataclass(frozen=True)
class Prompt:
    """Tokens to be continued, with those that the target puts around a text."""

    tokens: Integers  # [n]
    source: str  # "prompts.jsonl:12", or a document's path in its folder
    held_out: bool = False


@dataclass(frozen=True)
class Prompts(Sequence[Prompt]):
    """All prompts, in the order in which they are continued: held-out ones at even distances."""

    prompts: list[Prompt]
    n_duplicates: int = 0  # left out
    n_too_long: int = 0  # left out
    n_missing: int = 0  # asked for, but there are no more
    n_sources: int = 0  # lines and documents that they came from, or might have
    n_unread: int = 0  # files of the folders that are no UTF-8 text, or hold next to none

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: Any) -> Any:
        return self.prompts[index]

    @property
    def n_held_out(self) -> int:
        return sum(prompt.held_out for prompt in self.prompts)

    def digest(self) -> str:
        """Of all tokens, in order: two lists with one digest are alike."""
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(f"{len(prompt.tokens)} {prompt.held_out:d} ".encode())
            digest.update(prompt.tokens.astype("<i4").tobytes())
        return digest.hexdigest()

    def summary(self) -> str:
        left_out = [
            f"{count:,} {what}"
            for count, what in (
                (self.n_duplicates, "duplicates"),
                (self.n_too_long, "that are too long"),
                (self.n_unread, "files without text"),
            )
            if count
        ]
        without = f"; left out: {', '.join(left_out)}" if left_out else ""
        asked = f" of {len(self) + self.n_missing:,} asked for" if self.n_missing else ""
        return (
            f"{len(self):,} prompts{asked} from {self.n_sources:,} sources, "
            f"{self.n_held_out:,} of them held out{without}"
        )


def read_prompts(
    paths: Iterable[str | os.PathLike[str]],
    tokenize: Tokenize,
    template: ChatTemplate | None = None,
    *,
    seed: int = 0,
    n_prompts: int | None = None,
    n_from_documents: int = N_FROM_DOCUMENTS,
    held_out: float = 0.05,
    held_out_paths: Iterable[str | os.PathLike[str]] = (),
    longest: int = 1024,
    sizes: Sequence[int] = PROMPT_SIZES,
    size_weights: Sequence[float] | None = None,
    suffixes: Iterable[str] | None = None,
    as_chat: bool = False,
) -> Prompts:
    """Reads prompts; the same for the same files and arguments.

    tokenize: NativeEngine.tokenize. template: the target's, for messages.
    n_prompts: at most so many, held-out ones among them, lines of lists first; None: every line, and
        `n_from_documents` cut from documents.
    held_out: share of the lines and documents, and of the prompts, that are only measured with.
    held_out_paths: held out is what these hold instead, as many prompts as `held_out` says.
    longest: prompts of a list that have more tokens are left out.
    sizes, size_weights: tokens of prompts cut from documents, and how often each size is drawn.
    suffixes: of the files in a folder that are read, such as ".py"; None: all that are text.
    as_chat: prompts that are plain text become a user's message.

    Raises ValueError, with file and line, for what can't be used, and OSError for what can't be read.
    """
    held_out = arguments.number("held_out", held_out, 0, 0.5)
    longest = arguments.integer("longest", longest, 1)
    n_prompts = None if n_prompts is None else arguments.integer("n_prompts", n_prompts, 1)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes is {list(sizes)}: give numbers of tokens")
    endings = None if suffixes is None else tuple(suffixes)
    if held_out == 0 and held_out_paths:
        raise ValueError("held_out is 0, but there are held_out_paths: give a share of the prompts above 0")
    given, apart = read_sources(paths, endings, min(sizes)), read_sources(held_out_paths, endings, min(sizes))
    generator = np.random.default_rng((seed, 0))

    seen: set[Any] = set()
    apart = apart.once(seen)  # first, so that what is in both is held out
    given = given.once(seen)
    if not len(given):
        raise ValueError("there are no prompts: the files named have no lines and no text; name others")
    lines = _shuffled(given.lines, generator)[:n_prompts]
    documents = _shuffled(given.documents, generator)
    n_cut = 0  # prompts from documents
    if documents:
        n_cut = n_from_documents if n_prompts is None else n_prompts - len(lines)

    if len(apart):
        n_apart = n_held_out(len(lines) + n_cut, held_out)
        held_lines, held_documents = _shuffled(apart.lines, generator)[:n_apart], apart.documents
        n_held_cut = n_apart - len(held_lines)
    else:
        if len(documents) == 1:
            documents = halves(documents[0], held_out)
        n_lines, n_documents = n_held_out(len(lines), held_out), n_held_out(len(documents), held_out)
        held_lines, lines = lines[:n_lines], lines[n_lines:]
        held_documents, documents = documents[:n_documents], documents[n_documents:]
        n_held_cut = n_held_out(n_cut, held_out) if held_documents else 0
        n_cut -= n_held_cut

    reader = _Reader(tokenize, template, as_chat, longest, seed)
    cutter = _Cutter(tokenize, sizes, size_weights, np.random.default_rng((seed, 1)))
    tokens_seen: set[bytes] = set()
    held = [*reader.prompts(held_lines, True), *cutter.prompts(held_documents, n_held_cut, True)]
    held = _distinct(held, tokens_seen)
    training = [*reader.prompts(lines, False), *cutter.prompts(documents, n_cut, False)]
    n_read = len(training)
    training = _distinct(training, tokens_seen)
    order = np.random.default_rng((seed, 2))
    found = _spread(_shuffled(training, order), _shuffled(held, order))
    if not training:
        raise ValueError(
            "there are no prompts to train with: all are too long, too short or held out; give more of them"
        )
    return Prompts(
        found,
        given.n_duplicates + n_read - len(training),
        reader.n_too_long,
        0 if n_prompts is None else n_prompts - len(found),
        len(given) + len(apart),
        given.n_unread + apart.n_unread,
    )


def n_held_out(n: int, share: float) -> int:
    """Of n things: the share, but four at least where there are twenty or more, and one of two."""
    if share <= 0 or n < 2:
        return 0
    return min(max(round(share * n), min(_FEW, n // 5), 1), n // 2)


# ---- tokens ---------------------------------------------------------------------------------------------


class _Reader:
    """Makes prompts of lines."""

    def __init__(
        self, tokenize: Tokenize, template: ChatTemplate | None, as_chat: bool, longest: int, seed: int
    ) -> None:
        self.n_too_long = 0
        self._tokenize = tokenize
        self._template = template
        self._as_chat = as_chat
        self._longest = longest
        self._seed = seed

    def prompts(self, lines: Iterable[Line], held_out: bool) -> Iterator[Prompt]:
        for line in lines:
            try:
                tokens = self._tokens(line)
            except ValueError as error:
                raise ValueError(f"{line.source}: {error}") from error
            if len(tokens) > self._longest:
                self.n_too_long += 1
            elif tokens:
                yield Prompt(np.array(tokens, np.int32), line.source, held_out)

    def _tokens(self, line: Line) -> list[int]:
        messages = line.messages
        if self._as_chat and line.text is not None:
            messages = ({"role": "user", "content": line.text},)
        if not messages:
            return self._tokenize(_bytes(line.text or ""), True, True)
        if self._template is None:
            raise ValueError("it holds messages, but the target has no chat template: give plain text")
        text = self._template.render(messages, self._day(line))
        bos = self._template.bos
        return self._tokenize(_bytes(text), not (bos and text.startswith(bos)), True)

    def _day(self, line: Line) -> datetime:
        """For templates that say the date: one of many, and the same each time the prompts are read."""
        digest = hashlib.sha256(f"{self._seed} {line.key()}".encode("utf-8", "replace")).digest()
        return datetime(2026, 1, 1, 12) + timedelta(days=int.from_bytes(digest[:2], "little") % 730)


class _Cutter:
    """Cuts prompts out of documents, which are drawn in proportion to their length."""

    def __init__(
        self,
        tokenize: Tokenize,
        sizes: Sequence[int],
        weights: Sequence[float] | None,
        generator: np.random.Generator,
    ) -> None:
        self._tokenize = tokenize
        self._sizes = np.array(sizes)
        self._generator = generator
        shares = np.ones(len(sizes)) if weights is None else np.array(weights, float)
        if shares.shape != self._sizes.shape or shares.min() < 0 or not shares.sum() > 0:
            raise ValueError(f"size_weights is {weights}: give {len(sizes)} numbers, 0 or more")
        self._shares = shares / shares.sum()

    def prompts(self, documents: Sequence[Document], number: int, held_out: bool) -> list[Prompt]:
        """So many different ones, or as many as are found."""
        found: list[Prompt] = []
        seen: set[bytes] = set()
        if not documents:
            return found
        lengths = np.array([document.n_characters for document in documents], float)
        for _ in range(_PASSES):
            missing = number - len(found)
            if missing < 1:
                break
            counts = self._generator.multinomial(missing, lengths / lengths.sum())
            for document, count in zip(documents, counts, strict=True):
                if count:
                    found += _distinct(self._cut(document, int(count), held_out), seen)
        return found

    def _cut(self, document: Document, number: int, held_out: bool) -> Iterator[Prompt]:
        text = document.text()
        starts = _line_starts(text)
        for _ in range(number if len(starts) else 0):
            size = int(self._generator.choice(self._sizes, p=self._shares))
            start = int(self._generator.choice(starts))
            tokens = self._first_tokens(text, start, size)
            if len(tokens) == size:
                yield Prompt(np.array(tokens, np.int32), document.source, held_out)

    def _first_tokens(self, text: str, start: int, size: int) -> list[int]:
        """Of the text from `start` on; more is tokenised, as a cut changes the tokens before it."""
        length = _CHARACTERS * (size + 1)
        while True:
            end = min(start + length, len(text))
            tokens = self._tokenize(_bytes(text[start:end]), True, False)
            if len(tokens) > size or end == len(text):
                return tokens[:size]
            length *= 2


def _line_starts(text: str) -> npt.NDArray[np.int64]:
    """Characters with which a line begins that isn't blank."""
    starts, position = [], 0
    for line in text.split("\n"):
        if line.strip():
            starts.append(position)
        position += len(line) + 1
    return np.array(starts)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"it has half a surrogate pair at character {error.start}, which no model can read: write it anew"
        ) from None


# ---- order ----------------------------------------------------------------------------------------------


def _distinct(prompts: Iterable[Prompt], seen: set[bytes]) -> list[Prompt]:
    found = []
    for prompt in prompts:
        if (key := prompt.tokens.tobytes()) not in seen:
            seen.add(key)
            found.append(prompt)
    return found


def _shuffled(items: Sequence[Any], generator: np.random.Generator) -> list[Any]:
    return [items[index] for index in generator.permutation(len(items))]


def _spread(training: list[Prompt], held_out: list[Prompt]) -> list[Prompt]:
    """One list, in which the shorter is laid among the longer at even distances."""
    places = [
        ((index + 0.5) / len(group), prompt)
        for group in (held_out, training)
        for index, prompt in enumerate(group)
    ]
    return [prompt for _, prompt in sorted(places, key=lambda place: place[0])]
