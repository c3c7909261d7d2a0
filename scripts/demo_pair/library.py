"""Python's own standard library as documents: what to read, and what to hold out.

It lies on every machine that can run this, its licence (PSF-2.0) allows derived works, and code is where
speculative decoding shows what it can do. Files in `heldout.txt` are kept out of everything that is learned.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

# Tables, fixtures and generated files: they cost training time and teach nothing a prompt would ask for.
EXCLUDED_FOLDERS = {
    *("site-packages", "encodings", "pydoc_data", "ensurepip", "turtledemo", "msilib", "__pycache__"),
    *("idle_test", "data", "cjkencodings", "xmltestdata", "tokenizedata"),
}
LARGEST_FILE = 250_000


def library_files(root: Path, tests: bool) -> list[str]:
    """Paths below `root` of the modules (or, with `tests`, of the test suite), sorted."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        parts = relative.parts
        if EXCLUDED_FOLDERS.intersection(parts) or any(
            part.startswith(("config-", "_sysconfigdata")) for part in parts
        ):
            continue
        if ("test" in parts or "tests" in parts) == tests and 400 < path.stat().st_size < LARGEST_FILE:
            found.append(relative.as_posix())
    return found


def readable(text: str) -> bool:
    """Whether a file is prose-like code rather than a table: few digits, few characters beyond ASCII."""
    digits = sum(character.isdigit() for character in text)
    foreign = sum(character > "\x7f" for character in text)
    return digits < 0.12 * len(text) and foreign < 0.02 * len(text)


def read_documents(root: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """(name, text) of each readable file, exact duplicates dropped."""
    seen: set[bytes] = set()
    for name in names:
        try:
            text = (root / name).read_text(encoding="utf-8").expandtabs(8)
        except UnicodeDecodeError:
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in seen and readable(text):
            seen.add(digest)
            yield name, text


def choose_heldout(root: Path, count: int, seed: int) -> list[str]:
    """Draw held-out files: middle-sized modules few of whose lines occur in any other module."""
    names = library_files(root, tests=False)
    texts = dict(read_documents(root, names))
    owners: dict[str, set[str]] = {}
    for name, text in texts.items():
        for line in long_lines(text):
            owners.setdefault(line, set()).add(name)
    candidates = [name for name, text in texts.items() if 6_000 < len(text) < 60_000]
    random.Random(seed).shuffle(candidates)
    chosen = []
    for name in candidates:
        lines = long_lines(texts[name])
        shared = sum(len(owners[line]) > 1 for line in lines)
        if lines and shared < 0.03 * len(lines):
            chosen.append(name)
        if len(chosen) == count:
            break
    return sorted(chosen)


def long_lines(text: str) -> list[str]:
    """Lines long enough to be recognised as copied when they turn up in another file."""
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 30]
