"""`load`: from files and options to an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydflash2 import arguments, devices, model_files
from pydflash2.devices import SplitMode
from pydflash2.engine import Engine
from pydflash2.native import TAPS, NativeEngine, string

PathLike = str | os.PathLike[str]

log = logging.getLogger("pydflash2")

_MOST_THREADS = 512  # GGML_MAX_N_THREADS


def load(
    target: PathLike | None = None,
    head: PathLike | None = "auto",
    *,
    context_size: int | None = None,
    batch_size: int | None = None,
    n_threads: int | None = None,
    device: str | Sequence[str] = "auto",
    draft_device: str | None = None,
    n_gpu_layers: int = -1,
    split_mode: SplitMode = "layer",
    tensor_split: Iterable[float] | None = None,
    kv_type: str = "f16",
    drafter_kv_type: str = "f16",
    taps: Literal["auto", "wired", "callback"] = "auto",
    use_mmap: bool = True,
    draft_vocabulary: int | Literal["auto", "full"] = "auto",
    exact: bool = False,
) -> Engine:
    """Loads a target and its head from GGUF files.

    target: its path; without one, the demo pair inside the package.
    head: its path, "auto" (the file named dflash-<Model>-<type>.gguf beside the target, if there is one),
        or None for plain decoding.
    context_size: tokens a text can have, prompt included; None: what the target was trained on, 8192 at most.
    batch_size: tokens that one step of the prefill decodes, the head's block_size at least; None: 512. Ctrl-C
        waits for one step at most.
    n_threads: None: one a physical core. Where other processes keep cores busy, fewer are faster.
    device: where the target runs: "cpu", "cuda:0", "cuda" (all there are), "metal", "vulkan:1",
        "rpc:HOST:PORT" (llama.cpp's rpc-server on another machine), or a list of them, which share its
        layers. "auto": every GPU, else the CPU. What is asked for is used, or an error; `Engine.placement`
        says what is.
    draft_device: where the head runs, one device of this machine. None: beside the target's output table,
        whose rows it borrows; on another device it has a copy of them from the target's file.
    n_gpu_layers: layers of the target that are offloaded; -1: all where there is a device, 0: none.
    split_mode: how several devices share the target: "layer" (whole layers each), "none" (the first has all),
        "row" and "tensor" (each tensor is spread over them), as llama.cpp's --split-mode has them.
    tensor_split: what share of the target each device gets; None: by free memory.
    kv_type, drafter_kv_type: types of the two caches, "f16", "f32", "bf16"; the target's also "q8_0", ...
    taps: how the target's features are read. "auto" is right unless you compare the two ways.
    use_mmap: map the target's file rather than read it.
    draft_vocabulary: tokens that drafts are made of: the tokenizer's most frequent ones and those of the
        text. The target's output table over all of them is the largest thing a draft reads. A token that
        is left out is never drafted; the text stays the same. "auto": a quarter of the vocabulary, 1,024 to
        32,768 tokens; "full" where that isn't half of it at most. A head that brings its own table keeps it.
    exact: speculate only where that can't change a bit of the target's logits, so that a text is, byte for
        byte, the one that plain decoding on this engine gives. Takes kernels that treat a row alike however
        many are decoded with it, where the back end has them, and checks them: a few seconds, once for a
        target, its devices and this build. Where no width passes, decoding is plain, and stats.drafting says
        why.

    Raises ModelFileError (HeadFormatError, HeadMismatchError), BackendUnavailableError, OutOfMemoryError,
    NativeError; ValueError and TypeError for bad arguments.
    """
    if not isinstance(taps, str) or taps not in TAPS:
        raise ValueError(f'taps is {arguments.brief(taps)}: use "auto", "wired" or "callback"')
    batch = None if batch_size is None else arguments.integer("batch_size", batch_size, 1)
    target_file, head_file, no_head = _files(target, head)

    native = NativeEngine(
        target_file,
        head_file,
        context_size=0 if context_size is None else arguments.integer("context_size", context_size, 0),
        batch_size=0 if batch is None else batch,
        n_threads=0 if n_threads is None else arguments.integer("n_threads", n_threads, 1, _MOST_THREADS),
        n_gpu_layers=arguments.integer("n_gpu_layers", n_gpu_layers, -1),
        devices=devices.choice(device, draft_device, split_mode, tensor_split),
        kv_type=arguments.word("kv_type", kv_type),
        drafter_kv_type=arguments.word("drafter_kv_type", drafter_kv_type),
        taps=TAPS[taps],
        use_mmap=arguments.flag("use_mmap", use_mmap),
        draft_vocabulary=_draft_vocabulary(draft_vocabulary),
        batch_invariant=arguments.flag("exact", exact),
    )
    if batch is not None and native.head is not None and batch < native.head.block_size:
        native.close()
        raise ValueError(
            f"batch_size is {batch}, but a block of this head has {native.head.block_size} rows: "
            "give as many at least"
        )
    options = {
        "batch_size": batch,
        "n_gpu_layers": int(n_gpu_layers),
        "split_mode": split_mode,
        "draft_device": None if native.head is None else string(native.head.device),
        "kv_type": kv_type,
        "taps": taps,
        "draft_vocabulary": draft_vocabulary,
        "exact": exact,
    }
    engine = Engine(native, target_file, head_file, no_head, options)
    if log.isEnabledFor(logging.INFO):
        log.info("%s", engine.placement)
    if exact:
        try:
            engine.check_rows()
        except BaseException:  # Ctrl-C too: it takes a while
            engine.close()
            raise
    return engine


def _draft_vocabulary(tokens: int | str) -> int:
    """As in pd2_engine_params."""
    if isinstance(tokens, str):
        if tokens not in ("auto", "full"):
            raise ValueError(
                f'draft_vocabulary is {arguments.brief(tokens)}: give a number of tokens, "auto" or "full"'
            )
        return 0 if tokens == "auto" else -1
    return arguments.integer("draft_vocabulary", tokens, 1)


def _files(target: PathLike | None, head: PathLike | None) -> tuple[Path, Path | None, str]:
    """Target, head, and where there is no head the reason, as stats.drafting gives it."""
    no_head = "off: loaded with head=None"
    look_beside = isinstance(head, str) and head == "auto"
    if target is None:
        if not look_beside and head is not None:
            given = os.fspath(head) if isinstance(head, os.PathLike) else head
            raise ValueError(
                f"head is {arguments.brief(given)} without a target: name the one it was made for"
            )
        demo_target, demo_head = model_files.demo_pair()
        return demo_target, demo_head if look_beside else None, no_head
    target_file = model_files.model_file(target, "target")
    if look_beside:
        return (
            target_file,
            model_files.head_beside(target_file),
            f"off: no head lies beside {target_file.name}",
        )
    return target_file, None if head is None else model_files.model_file(head, "head"), no_head
