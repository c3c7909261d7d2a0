"""Files to what prompts are made of: lines of lists, and documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydflash2 import arguments


@dataclass(frozen=True)
class Line:
    """One prompt of a list."""

    source: str
    text: str | None
    messages: tuple[dict[str, str], ...] = ()

    def key(self) -> str:
        return json.dumps([self.text, self.messages])


@dataclass(frozen=True)
class Document:
    """A text file; what it says is read when prompts are cut from it."""

    source: str
    path: Path
    n_characters: int
    digest: bytes
    begin: int = 0  # of its characters, what prompts are cut from
    end: int | None = None

    def key(self) -> tuple[bytes, int]:
        return self.digest, self.begin

    def text(self) -> str:
        return self.path.read_bytes().decode("utf-8-sig", "replace")[self.begin : self.end]


@dataclass
class Sources:
    lines: list[Line] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    n_duplicates: int = 0
    n_unread: int = 0

    def __len__(self) -> int:
        return len(self.lines) + len(self.documents)

    def once(self, seen: set[Any]) -> Sources:
        """Each line and each document the first time it comes; what is in `seen` has come before."""
        lines, documents = _new(self.lines, seen), _new(self.documents, seen)
        n_left_out = len(self) - len(lines) - len(documents)
        return Sources(lines, documents, self.n_duplicates + n_left_out, self.n_unread)


def _new(items: list[Any], seen: set[Any]) -> list[Any]:
    found = []
    for item in items:
        if (key := item.key()) not in seen:
            seen.add(key)
            found.append(item)
    return found


def read_sources(
    paths: Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...] | None, shortest: int
) -> Sources:
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found = Sources()
    for given in paths:
        path = Path(given).expanduser()
        if not path.is_dir():
            if not _add(found, path, path.name, path.suffix == ".txt", shortest):
                raise ValueError(f"{path} has no prompts: it is binary, or holds next to no text")
            continue
        before = len(found)
        for file in _files(path, suffixes):
            if not _add(found, file, file.relative_to(path).as_posix(), False, shortest):
                found.n_unread += 1
        if len(found) == before:
            wanted = f" that end in {', '.join(suffixes)}" if suffixes else " of text"
            raise ValueError(f"{path} has no files{wanted}: name another folder")
    return found


def _files(folder: Path, suffixes: tuple[str, ...] | None) -> Iterator[Path]:
    """Files in it and its folders, in one order everywhere; hidden ones are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (suffixes is None or name.endswith(suffixes)):
                yield Path(parent) / name


def _add(found: Sources, path: Path, source: str, is_list: bool, shortest: int) -> bool:
    """Adds what a file has; False: nothing."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if is_list or path.suffix == ".jsonl":
            raise ValueError(f"{path} isn't UTF-8 text (byte {error.start}): convert it first") from None
        return False
    if path.suffix == ".jsonl":
        lines = list(_json_lines(path, source, text))
        found.lines += lines
        return bool(lines)
    if is_list:
        lines = [
            Line(f"{source}:{number}", line.removesuffix("\r"))
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip()
        ]
        found.lines += lines
        return bool(lines)
    if "\0" in text or len(text.split()) < shortest:
        return False
    found.documents.append(Document(source, path, len(text), hashlib.sha256(data).digest()))
    return True


def _json_lines(path: Path, source: str, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _line(f"{source}:{number}", json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


def _line(source: str, record: Any) -> Line:
    if not isinstance(record, dict):
        raise ValueError(f'it is {arguments.brief(record)}: give an object, such as {{"prompt": "..."}}')
    for name in ("messages", "conversations", "prompt", "text"):
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return Line(source, value)
        if isinstance(value, list) and name != "text":
            return Line(source, None, _messages(name, value))
    raise ValueError(
        'it has no text under "prompt" or "text", and no list under "messages" or "conversations": give one'
    )


def _messages(name: str, given: list[Any]) -> tuple[dict[str, str], ...]:
    """What was said before the last reply: that one is the target's to write."""
    messages = []
    for index, message in enumerate(given):
        known = message if isinstance(message, dict) else {}
        role, content = known.get("role", known.get("from")), known.get("content", known.get("value"))
        if isinstance(content, list) and all(isinstance(part, dict) for part in content):
            content = "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(
                f'"{name}"[{index}] is {arguments.brief(message)}: give {{"role": "user", "content": "..."}}'
            )
        messages.append({"role": _ROLES.get(role, role), "content": content})
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ValueError(f'"{name}" has no message that asks for a reply: give one with the role "user"')
    return tuple(messages)


def halves(document: Document, share: float) -> list[Document]:
    """One document alone lends its end to be held out."""
    if share <= 0:
        return [document]
    text = document.text()
    cut = text.find("\n", round((1 - share) * len(text))) + 1
    if not 0 < cut < len(text):
        return [document]
    end = Document(f"{document.source} (end)", document.path, len(text) - cut, document.digest, begin=cut)
    begin = Document(document.source, document.path, cut, document.digest, end=cut)
    return [end, begin]  # the first is held out
