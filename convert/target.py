"""What a head needs to know of its target, from the target's own GGUF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gguf import TokenType

from pydflash2.errors import ModelFileError
from pydflash2.gguf_file import Field, GGUFFile

from . import keys


@dataclass(frozen=True)
class Vocabulary:
    """A GGUF's tokens and their types, [size] each, with the unused tokens that pad it at its end."""

    tokens: list[bytes]
    types: list[int]

    @classmethod
    def of(cls, file: GGUFFile) -> Vocabulary | None:
        tokens = file.array(keys.TOKENIZER_TOKENS)
        if not tokens or not isinstance(tokens[0], bytes):
            return None
        return cls(tokens, file.array(keys.TOKENIZER_TOKEN_TYPE) or [])

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def true_size(self) -> int:
        """Without the padding."""
        size = self.size
        while 0 < size <= len(self.types) and self.types[size - 1] == TokenType.UNUSED:
            size -= 1
        return size


@dataclass(frozen=True)
class Target:
    """A target's geometry and vocabulary."""

    path: Path
    architecture: str
    n_layer: int
    n_embd: int
    vocabulary: Vocabulary
    uses_mrope: bool
    tokenizer: dict[str, Field]  # every tokenizer.* key, in the file's order

    @property
    def embedding_scale(self) -> float | None:
        """What this target multiplies its embeddings by, None where it doesn't."""
        return math.sqrt(self.n_embd) if self.architecture in keys.SCALED_EMBEDDING_ARCHITECTURES else None

    @classmethod
    def open(cls, path: Path) -> Target:
        """Reads a target's GGUF. Raises `ModelFileError`; for a Hugging Face folder it names the GGUF way."""
        if path.is_dir():
            raise ModelFileError(
                f"{path} is a folder, and a target is read from its GGUF: no library tells from a Hugging"
                " Face folder how llama.cpp cuts text into its tokens. Give the target's .gguf file, or make"
                f" it with llama.cpp's convert_hf_to_gguf.py {path}"
            )
        return cls.from_gguf(GGUFFile.open(path))

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Target:
        architecture = file.text(keys.GENERAL_ARCHITECTURE)
        if architecture is None:
            raise ModelFileError(
                f"{file.path} has no {keys.GENERAL_ARCHITECTURE}: it is no model. Give the target's GGUF"
            )
        if architecture == keys.ARCHITECTURE or architecture in keys.FORK_ARCHITECTURES:
            raise ModelFileError(
                f"{file.path} is a head, not a target. Give the GGUF of the model it drafts for"
            )
        sizes: list[int] = []
        for name in (keys.TARGET_BLOCK_COUNT, keys.TARGET_EMBEDDING_LENGTH):
            size = file.integer(f"{architecture}.{name}")
            if size is None or size < 1:
                raise ModelFileError(
                    f"{file.path} has no {architecture}.{name}: it is no language model. Give the target's"
                    " GGUF"
                )
            sizes.append(size)
        vocabulary = Vocabulary.of(file)
        if vocabulary is None:
            raise ModelFileError(
                f"{file.path} has no vocabulary ({keys.TOKENIZER_TOKENS}). If the model is split, give its"
                " first part"
            )
        for key in (keys.TOKENIZER_TOKEN_TYPE, keys.TOKENIZER_SCORES):
            if key in file.fields and len(file.array(key) or []) != vocabulary.size:
                raise ModelFileError(
                    f"{file.path}: {key} does not have one entry for each of the {vocabulary.size} tokens. "
                    "Download or convert the target again"
                )
        return cls(
            path=file.path,
            architecture=architecture,
            n_layer=sizes[0] - (file.integer(f"{architecture}.{keys.TARGET_NEXTN_LAYERS}") or 0),
            n_embd=sizes[1],
            vocabulary=vocabulary,
            uses_mrope=any(file.array(f"{architecture}.{keys.TARGET_ROPE_SECTIONS}") or []),
            tokenizer={key: field for key, field in file.fields.items() if key.startswith(keys.TOKENIZER)},
        )
