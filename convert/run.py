"""From what a user names to a written file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from pydflash2.errors import HeadFormatError, HeadMismatchError, ModelFileError
from pydflash2.gguf_file import MAGIC, GGUFFile
from pydflash2.model_files import model_name

from . import keys, mend
from .checkpoint import MASK_EMBEDDING, read_checkpoint
from .config import HeadConfig
from .encode import FILE_TYPES, automatic_outtype, choose_types, encode, n_bytes
from .fit import check_fit
from .head import Head
from .metadata import add_drafting, add_geometry, add_model_card, add_tokenizer
from .target import Target, Vocabulary
from .tensors import HeadTensors
from .writer import OutTensor, new_writer, write_file

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "README.md",
    MASK_EMBEDDING,
)


def convert(
    head: str | os.PathLike[str],
    target: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    outtype: str = "auto",
    progress: bool | None = None,
) -> Path:
    """Converts a head's checkpoint to GGUF, or mends an old GGUF head. Returns the file written.

    head: a checkpoint's folder, a Hugging Face repository ("owner/name"), or an old GGUF head to mend.
    target: the target's GGUF, which gives the tokenizer, M-RoPE's sections and Gemma's embedding scale.
    output: the file to write; by default dflash-<target's name>-<TYPE>.gguf beside the target, where `load`
        finds it.
    outtype: f32, f16, bf16, q8_0, q4_0, q4_k_m, q6_k or q2_k; "auto": the checkpoint's own 16-bit type, else
        f16.
    progress: show a bar on stderr; None: where stderr is a terminal.

    Raises `HeadFormatError` for a head that can't be converted as it is, `HeadMismatchError` for one made for
    another target, `ModelFileError` for what can't be read or written, `ValueError` for an unknown outtype.
    """
    if outtype != "auto" and outtype not in FILE_TYPES:
        raise ValueError(f"outtype must be auto, {', '.join(FILE_TYPES)}; got {outtype!r}")
    target_path = Path(target).expanduser()
    read_target = Target.open(target_path)
    path = Path(head).expanduser()
    destination = None if output is None else Path(output).expanduser()
    for source in (path, target_path):
        if (
            destination is not None
            and destination.exists()
            and source.exists()
            and destination.samefile(source)
        ):
            raise ValueError(f"{destination} would overwrite what is converted: name another output")

    if path.is_file():
        return _mend(path, read_target, destination, outtype, progress)
    folder, repository = (path, None) if path.is_dir() else _download(head)
    return _convert(folder, repository, read_target, destination, outtype, progress)


def _convert(
    folder: Path,
    repository: str | None,
    target: Target,
    output: Path | None,
    outtype: str,
    progress: bool | None,
) -> Path:
    config = HeadConfig.read(folder)
    claimed = HeadTensors.claim(config, read_checkpoint(folder))
    _refuse_mismatch(target, Head.of_checkpoint(config, claimed), None, folder)

    if outtype == "auto":
        outtype = automatic_outtype(claimed.tensors)
    types = choose_types(outtype, config, claimed.head_dim, claimed.tensors)
    tensors = [
        OutTensor(t.name, t.shape, kind, n_bytes(t, kind), partial(encode, t, kind, claimed.head_dim))
        for t, kind in zip(claimed.tensors, types, strict=True)
    ]
    if (table := claimed.draft_to_target) is not None:
        tensors.append(
            OutTensor("d2t", table.shape, GGMLQuantizationType.I64, table.nbytes, partial(_once, table))
        )

    writer = new_writer(tensors, keys.ARCHITECTURE)
    add_model_card(writer, folder, repository)
    add_geometry(writer, config, claimed.head_dim, FILE_TYPES[outtype])
    add_drafting(writer, config, claimed.head_dim, target)
    add_tokenizer(writer, target, config.mask_token, claimed.n_vocab or 0)
    output = output or _default_output(target, outtype.upper())
    write_file(writer, tensors, output, progress)
    return output


def _once(table: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    yield table


def _mend(path: Path, target: Target, output: Path | None, outtype: str, progress: bool | None) -> Path:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise HeadFormatError(f"{path} is no GGUF head. Give a checkpoint's folder, not a file in it")
    if outtype != "auto":
        raise ValueError(
            f"a GGUF head keeps its types: leave outtype out, or convert the checkpoint to {outtype}"
        )
    gguf_file = GGUFFile.open(path)
    head = Head.of_gguf(gguf_file)
    _refuse_mismatch(target, head, Vocabulary.of(gguf_file), path)
    output = output or path.with_name(f"{path.stem}-mended.gguf")
    mend.mend(gguf_file, head, target, output, progress)
    return output


def _refuse_mismatch(target: Target, head: Head, vocabulary: Vocabulary | None, path: Path) -> None:
    if wrong := [line for line in check_fit(target, head, vocabulary) if not line.ok]:
        reasons = "; ".join(f"{line.name}: {line.detail}" for line in wrong)
        raise HeadMismatchError(
            f"{path} does not fit {target.path.name}: {reasons}. Give the target it was made for"
        )


def _default_output(target: Target, outtype: str) -> Path:
    return target.path.with_name(f"dflash-{model_name(target.path)}-{outtype}.gguf")


def _download(head: str | os.PathLike[str]) -> tuple[Path, str]:
    repository = os.fspath(head)
    if not _REPOSITORY.fullmatch(repository):
        raise ModelFileError(
            f"there is no folder or file {repository}. Give a checkpoint's folder, or owner/name on the Hub"
        )
    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=list(_WANTED_FILES))
    except Exception as error:  # the library lets those of its HTTP client through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelFileError(
            f"{repository} is no folder here and could not be fetched from the Hub: {reason}. Check the name"
            " and the network"
        ) from error
    return Path(folder), repository
