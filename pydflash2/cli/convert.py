"""`pydflash2 convert`: a head's checkpoint in, a GGUF head out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_TYPES = ("auto", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q6_k", "q2_k")


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "convert",
        help="make a GGUF head from a checkpoint",
        description="Make a GGUF head from a checkpoint (safetensors), or mend an old GGUF head. Prints the "
        "path of the file written.",
    )
    parser.add_argument(
        "head",
        metavar="HEAD",
        help="a checkpoint's folder, a Hugging Face repository (owner/name), or a GGUF head",
    )
    parser.add_argument(
        "--target", required=True, metavar="FILE", help="the target's GGUF; the tokenizer is taken from it"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write (default: dflash-<Model>-<TYPE>.gguf beside the target, where it is found)",
    )
    parser.add_argument(
        "--outtype",
        choices=_TYPES,
        default="auto",
        help="weight type (default auto: the checkpoint's own 16-bit type, else f16)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    from pydflash2.convert import convert  # loads gguf and huggingface_hub, which no other command needs

    print(convert(args.head, args.target, args.output, args.outtype))
    return 0
