"""`pydflash2 inspect`: what a model file is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "inspect",
        help="say what a model file is",
        description="Say what a GGUF file or a checkpoint's folder is: DFlash 1 or 2 head, target, or "
        "something else; with its geometry, its weight types and its size, and what a head's K/V will take.",
    )
    parser.add_argument("file", metavar="FILE", help="a GGUF file, or a checkpoint's folder")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    from pydflash2.inspection import inspect  # loads gguf, which generate doesn't need

    found = inspect(args.file).to_dict()
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for key, value in found.items():
        if isinstance(value, dict) and key in ("head", "target"):
            yield f"{key}:"
            for inner, what in value.items():
                yield f"  {inner.replace('_', ' '):18} {_shown(what)}"
        elif key == "cache" and value is not None:
            yield "drafter's K/V (F16):"
            yield f"  {'sliding layers':18} {value['sliding']:,} bytes, whatever the context"
            yield f"  {'full layers':18} {value['per_token']:,} bytes a token of context"
        elif key == "warnings":
            for warning in value:
                yield f"warning: {warning}"
        elif value is not None:
            yield f"{key.replace('_', ' '):20} {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)
