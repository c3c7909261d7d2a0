"""Text for the demo pair: Python's own standard library and its tokenizer."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .heldout import heldout_names
from .library import library_files, read_documents

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
END_OF_TEXT_ID = 0
MASK_ID = 1

# llama.cpp's pre-tokenizer "qwen2"; training with the same pattern makes both tokenise alike.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
