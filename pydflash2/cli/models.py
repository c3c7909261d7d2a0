"""Arguments that name a pair, and the engine they stand for."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Literal

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
    add_devices(models)
    models.add_argument(
        "--draft-vocabulary",
        type=_vocabulary,
        default="auto",
        metavar="auto|full|N",
        help="tokens that drafts are made of, the most frequent ones and those of the text: fewer are faster "
        "to draft from, and the text stays the same (default auto: a quarter, 1,024 to 32,768, or full)",
    )


def add_devices(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "-dev",
        "--device",
        default="auto",
        metavar="NAME,...",
        help="where the target runs: cpu, cuda:0, cuda (all), metal, vulkan:0, rpc:HOST:PORT, or several of "
        "them (default auto: every GPU, else the CPU)",
    )
    parser.add_argument(
        "-devd",
        "--draft-device",
        metavar="NAME",
        help="where the head runs (default: beside the target)",
    )
    parser.add_argument(
        "-sm",
        "--split-mode",
        choices=("layer", "none", "row", "tensor"),
        default="layer",
        help="how several devices share the target (default: layer)",
    )
    parser.add_argument(
        "-ts",
        "--tensor-split",
        type=_shares,
        metavar="N,N,...",
        help="what share of the target each device gets (default: by free memory)",
    )
    parser.add_argument(
        "-ngl",
        "--n-gpu-layers",
        type=_gpu_layers,
        default=-1,
        metavar="N",
        help="layers on the GPU (default: all, where there is one)",
    )


def load(args: argparse.Namespace) -> pydflash2.Engine:
    """The engine that `add_models`' arguments name, and `args.exact`."""
    return pydflash2.load(
        args.model,
        args.head,
        context_size=args.ctx_size,
        n_threads=args.threads,
        **device_options(args),
        draft_vocabulary=args.draft_vocabulary,
        exact=args.exact,
    )


def say_where(engine: pydflash2.Engine) -> None:
    """One line on stderr: the devices that are really used."""
    print(f"pydflash2: {engine.placement}", file=sys.stderr)


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `pydflash2.load` takes for the arguments that choose devices."""
    return {
        "n_gpu_layers": args.n_gpu_layers,
        "device": args.device.split(",") if "," in args.device else args.device,
        "draft_device": args.draft_device,
        "split_mode": args.split_mode,
        "tensor_split": args.tensor_split,
    }


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 3,1") from None


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
