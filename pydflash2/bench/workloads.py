"""What is generated: the packaged prompts, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

TEXT_ENDINGS = (".txt", ".md", ".py", ".jsonl")  # what is read of a folder


@dataclass(frozen=True)
class Conversation:
    """What a user says, turn by turn. Before each later turn comes the reply to the one before it."""

    name: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    name: str
    description: str
    conversations: tuple[Conversation, ...]
    inflated: bool = False  # repetitive by design: says nothing about a user's texts


_PACKAGED = {
    "code": "one-shot code: a Python file is begun, the target goes on",
    "editing": "iterative editing: a file is written and, turn by turn, written again with a change; the "
    "context grows, and much of each reply was said before",
    "prose": "prose: stories and descriptions are begun, the target goes on",
    "qa": "question answering: short questions in plain words",
    "synthetic": "forced length: lists that go on for ever. Inflated: it loops, so any drafter foresees it",
}
NAMES = tuple(_PACKAGED)
_INFLATED = ("synthetic",)


def packaged(names: Iterable[str] = NAMES) -> list[Workload]:
    """The workloads of the package, in the order asked for. ValueError for a name it doesn't have."""
    folder = Path(str(resources.files("pydflash2"))) / "bench" / "prompts"
    found = []
    for name in names:
        if name not in _PACKAGED:
            raise ValueError(f"there is no workload {name!r}: choose from {', '.join(NAMES)}")
        found.append(Workload(name, _PACKAGED[name], tuple(_conversations(folder / name)), name in _INFLATED))
    return found


def own(path: str | Path) -> Workload:
    """A workload of the user's prompts: a text file (one prompt), a JSONL file (one a line, under "prompt":
    a text, or a list of them for the turns of a conversation), or a folder of such files.

    Raises ValueError for what can't be used, OSError for what can't be read.
    """
    file = Path(path).expanduser()
    conversations = tuple(_conversations(file))
    if not conversations:
        raise ValueError(f"{file} has no prompts: no files that end in {', '.join(TEXT_ENDINGS)}")
    return Workload(file.stem or str(file), f"prompts of {file.name}", conversations)


def _conversations(path: Path) -> Iterator[Conversation]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_file() and file.suffix in TEXT_ENDINGS:
                yield from _conversations(file)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} isn't UTF-8 text (byte {error.start}): convert it first") from None
    if path.suffix == ".jsonl":
        yield from _lines(path, text)
        return
    prompt = text.removesuffix("\n")  # an editor's
    if not prompt:
        raise ValueError(f"{path} is empty: give it a prompt")
    yield Conversation(path.stem, (prompt,))


def _lines(path: Path, text: str) -> Iterator[Conversation]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    for number, line in lines:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
        prompt = record.get("prompt") if isinstance(record, dict) else None
        turns: list[object] = prompt if isinstance(prompt, list) else [prompt]
        texts = tuple(turn for turn in turns if isinstance(turn, str) and turn)
        if not texts or len(texts) < len(turns):
            raise ValueError(f'{path}, line {number}: "prompt" must be a text, or a list of texts')
        yield Conversation(path.stem if len(lines) == 1 else f"{path.stem}:{number}", texts)
