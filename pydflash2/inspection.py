"""What a model file is, and whether a head fits a target. Only metadata is read: both answer in moments."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydflash2.convert import keys
from pydflash2.convert.checkpoint import read_checkpoint
from pydflash2.convert.config import HeadConfig
from pydflash2.convert.fit import Line, check_fit
from pydflash2.convert.head import Head
from pydflash2.convert.target import Target, Vocabulary
from pydflash2.convert.tensors import HeadTensors
from pydflash2.errors import ModelFileError
from pydflash2.gguf_file import GGUFFile

__all__ = ["DrafterCache", "Head", "Inspection", "Line", "TargetSummary", "check_pair", "inspect"]

# As csrc/drafter/cache.cpp has them.
_CELL_STEP = 64
_CELL_BYTES = 2  # F16

# Tokenizers that only targets with M-RoPE have: a head with one, but without rope sections, is an old file.
_MROPE_TOKENIZERS = ("qwen35",)


@dataclass(frozen=True)
class TargetSummary:
    """A target's geometry."""

    n_layer: int
    n_embd: int
    n_vocab: int  # padding included
    n_true_vocab: int
    uses_mrope: bool


@dataclass(frozen=True)
class DrafterCache:
    """Bytes of a head's K and V as F16, on a CPU; a GPU rounds the positions of a window up further."""

    sliding: int  # of all layers with a window: window + block positions, whatever the context
    per_token: int  # of context, by all layers without a window

    @classmethod
    def of(cls, head: Head) -> DrafterCache:
        layer = 2 * _CELL_BYTES * head.n_head_kv * head.head_dim  # of one position
        n_sliding, positions = len(head.sliding_layers), (head.window or 0) + (head.block_size or 0)
        cells = -(-positions // _CELL_STEP) * _CELL_STEP + 1
        return cls(n_sliding * layer * cells, (head.n_layer - n_sliding) * layer)


@dataclass(frozen=True)
class Inspection:
    """What a file or a checkpoint's folder is.

    kind: "DFlash 1 head", "DFlash 2 head", "DSpark head", "fork's head", "target" or "other".
    types: how many tensors each weight type has.
    cache: what a head's K and V will take.
    """

    path: str
    format: str  # "GGUF" or "checkpoint"
    kind: str
    architecture: str | None
    name: str | None
    n_bytes: int
    n_params: int
    n_tensors: int
    types: dict[str, int]
    head: Head | None = None
    cache: DrafterCache | None = None
    target: TargetSummary | None = None
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return asdict(self)


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Says what a GGUF or a checkpoint's folder is.

    Raises `ModelFileError` for what is missing or damaged, `HeadFormatError` for a head without its basics.
    """
    file = Path(path).expanduser()
    return _inspect_checkpoint(file) if file.is_dir() else _inspect_gguf(GGUFFile.open(file))


def check_pair(target: str | os.PathLike[str], head: str | os.PathLike[str]) -> list[Line]:
    """Whether a head, GGUF or checkpoint's folder, fits a target's GGUF: name, ok, detail with both numbers.

    Raises `ModelFileError` for files that can't be read, or are not what they are given for.
    """
    path = Path(head).expanduser()
    read_target = Target.open(Path(target).expanduser())
    if path.is_dir():
        config = HeadConfig.read(path)
        return check_fit(
            read_target, Head.of_checkpoint(config, HeadTensors.claim(config, read_checkpoint(path)))
        )
    file = GGUFFile.open(path)
    return check_fit(read_target, Head.of_gguf(file), Vocabulary.of(file))


def _inspect_gguf(file: GGUFFile) -> Inspection:
    architecture = file.text(keys.GENERAL_ARCHITECTURE)
    kind, head, target = "other", None, None
    warnings = []
    if architecture in keys.FORK_ARCHITECTURES:
        kind = "fork's head"
        warnings.append(
            "a format from before llama.cpp had one: convert the checkpoint again with pydflash2 convert"
        )
    elif architecture == keys.ARCHITECTURE:
        head = Head.of_gguf(file)
        kind = f"DFlash {head.version} head"
        if "markov_w1.weight" in file.tensors:
            kind = "DSpark head"
            warnings.append("its Markov head is beyond this build: it drafts with DFlash 1 and 2 heads")
        warnings += _head_warnings(file, head)
    else:
        try:
            target = _summarise(Target.from_gguf(file))
            kind = "target"
        except ModelFileError:
            warnings.append("no language model: it has no geometry or no vocabulary")
    if (parts := file.integer(keys.SPLIT_COUNT) or 1) > 1:
        warnings.append(f"one of {parts} parts: sizes and tensors are this part's")
    return Inspection(
        path=str(file.path),
        format="GGUF",
        kind=kind,
        architecture=architecture,
        name=file.text(keys.GENERAL_NAME),
        n_bytes=file.n_bytes,
        n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
        n_tensors=len(file.tensors),
        types=dict(Counter(tensor.type_name for tensor in file.tensors.values())),
        head=head,
        cache=None if head is None else DrafterCache.of(head),
        target=target,
        warnings=warnings,
    )


def _head_warnings(file: GGUFFile, head: Head) -> list[str]:
    warnings = []
    if head.block_size is None:
        warnings.append(
            f"{keys.BLOCK_SIZE} is missing: llama.cpp would take 16. Convert the checkpoint again"
        )
    if head.mask_token is None:
        warnings.append(
            f"{keys.MASK_TOKEN_ID} is missing: no block can be drafted. Convert the checkpoint again"
        )
    if head.rope_sections is None and file.text(keys.TOKENIZER_PRE) in _MROPE_TOKENIZERS:
        warnings.append(
            "an old file, from before 2026-08-27, without rope sections: right for text; for images mend it"
            " with pydflash2 convert HEAD --target TARGET"
        )
    return warnings


def _summarise(target: Target) -> TargetSummary:
    vocabulary = target.vocabulary
    return TargetSummary(
        target.n_layer, target.n_embd, vocabulary.size, vocabulary.true_size, target.uses_mrope
    )


def _inspect_checkpoint(folder: Path) -> Inspection:
    config = HeadConfig.read(folder)
    stored = read_checkpoint(folder)
    head = Head.of_checkpoint(config, HeadTensors.claim(config, stored))
    return Inspection(
        path=str(folder),
        format="checkpoint",
        kind=f"DFlash {config.version} head",
        architecture=next(
            name for name, version in keys.ARCHITECTURE_VERSIONS.items() if version == config.version
        ),
        name=folder.name,
        n_bytes=sum(path.stat().st_size for path in {tensor.path for tensor in stored}),
        n_params=sum(tensor.n_elements for tensor in stored),
        n_tensors=len(stored),
        types=dict(Counter(tensor.dtype for tensor in stored)),
        head=head,
        cache=DrafterCache.of(head),
    )
