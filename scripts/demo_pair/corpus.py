"""Text for the demo pair: Python's own standard library, its tokenizer, and the held-out files.

The standard library lies on every machine that can run this script, its licence (PSF-2.0) allows derived
works, and code is where speculative decoding shows what it can do. Files in `heldout.txt` are kept out of
everything that is learned: tokenizer, target and head.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .heldout import heldout_names

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
END_OF_TEXT_ID = 0
MASK_ID = 1

# llama.cpp's pre-tokenizer "qwen2"; training with the same pattern makes both tokenise alike.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

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


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with the two special tokens first: end of text (0) and DFlash's mask (1)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(END_OF_TEXT, special=True), AddedToken(MASK, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    """One array of ids a text, each closed by the end-of-text token."""
    return [
        np.array([*encoding.ids, END_OF_TEXT_ID], dtype=np.uint16)
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]


class Corpus:
    """The tokenised library: `modules` and `tests` to learn from, `heldout` to measure on."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        modules: list[np.ndarray],
        tests: list[np.ndarray],
        heldout: list[np.ndarray],
    ):
        self.tokenizer = tokenizer
        self.modules = modules
        self.tests = tests
        self.heldout = heldout

    def epoch(self, generator: np.random.Generator, test_share: float) -> np.ndarray:
        """All modules and a share of the tests, in a new order, as one run of ids."""
        tests = [document for document in self.tests if generator.random() < test_share]
        documents = self.modules + tests
        return np.concatenate([documents[index] for index in generator.permutation(len(documents))])


def prepare(work: Path, vocabulary: int) -> Corpus:
    """Read, split and tokenise the running interpreter's library; the tokenizer is kept in `work`."""
    root = Path(sysconfig.get_path("stdlib"))
    heldout = set(heldout_names())
    modules = dict(read_documents(root, library_files(root, tests=False)))
    tests = dict(read_documents(root, library_files(root, tests=True)))
    kept = {name: modules.pop(name) for name in sorted(heldout) if name in modules}
    path = work / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        tokenizer = train_tokenizer(list(modules.values()), vocabulary)
        tokenizer.save(str(path))
    return Corpus(
        tokenizer,
        encode(tokenizer, list(modules.values())),
        encode(tokenizer, list(tests.values())),
        encode(tokenizer, list(kept.values())),
    )
