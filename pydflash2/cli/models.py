"""Arguments that name a pair, and the engine they stand for."""

from __future__ import annotations

import argparse
from typing import Literal

import pydflash2


def add_models(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("models")
    models.add_argument("-m", "--model", metavar="FILE", help="target, a GGUF file (default: the demo pair)")
    models.add_argument(
        "-d",
        "--head",
        metavar="FILE",
        default="auto",
        help="head, a GGUF file (default: the dflash-<Model>-*.gguf beside the target, if there is one)",
    )
    models.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        default=0,
        metavar="N",
        help="tokens a text can have, prompt included (default: the length trained on, 8192 at most)",
    )
    models.add_argument("-t", "--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    models.add_argument(
        "-ngl",
        "--n-gpu-layers",
        type=_gpu_layers,
        default=-1,
        metavar="N",
        help="layers on the GPU (default: all, where there is one)",
    )
    models.add_argument(
        "--draft-vocabulary",
        type=_vocabulary,
        default="auto",
        metavar="auto|full|N",
        help="tokens that drafts are made of, the most frequent ones and those of the text: fewer are faster "
        "to draft from, and the text stays the same (default auto: a quarter, 1,024 to 32,768, or full)",
    )


def load(args: argparse.Namespace) -> pydflash2.Engine:
    """The engine that `add_models`' arguments name, and `args.exact`."""
    return pydflash2.load(
        args.model,
        args.head,
        context_size=args.ctx_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_vocabulary=args.draft_vocabulary,
        exact=args.exact,
    )


def _vocabulary(text: str) -> int | Literal["auto", "full"]:
    if text == "auto":
        return "auto"
    if text == "full":
        return "full"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number, auto nor full") from None


def _gpu_layers(text: str) -> int:
    if text in ("all", "auto"):
        return -1
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all") from None
