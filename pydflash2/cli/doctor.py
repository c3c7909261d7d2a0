"""`pydflash2 doctor`: what this installation can do, and whether a pair fits."""

from __future__ import annotations

import argparse
import json
import math
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydflash2
from pydflash2 import library, model_files, native
from pydflash2.cli.models import add_devices, device_options
from pydflash2.devices import Placement
from pydflash2.errors import ModelFileError
from pydflash2.results import Memory

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_BUILT_AS = {"MTL": "metal", "ROCm": "hip"}  # ggml's names for back ends whose switch has another


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "doctor",
        help="say whether a pair fits, or what this installation has",
        description="With TARGET and HEAD: say line by line whether the pair fits; exit status 1 where it "
        "doesn't. Then load both, say where they lie and run, where memory goes, and for each width whether "
        "drafting leaves the target's logits as plain decoding has them, with default kernels and with "
        "--exact's. Without: versions, the llama.cpp inside, back ends, devices, CPU features.",
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the target's GGUF")
    parser.add_argument(
        "head",
        nargs="?",
        metavar="HEAD",
        help="the head: a GGUF, or a checkpoint's folder (default: the one beside it)",
    )
    add_devices(parser.add_argument_group("devices"))
    parser.add_argument("--files-only", action="store_true", help="load nothing, look at the files alone")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.target is None:
        return _installation(args.json)
    return _pair(args.target, args.head, args.files_only, args.json, device_options(args))


def _pair(target: str, head: str | None, files_only: bool, as_json: bool, options: dict[str, Any]) -> int:
    from pydflash2.inspection import check_pair  # loads gguf, which generate doesn't need

    target_file = model_files.model_file(target, "target")
    head_file = Path(head) if head is not None else model_files.head_beside(target_file)
    if head_file is None:
        raise ModelFileError(f"head: none lies beside {target_file.name}; name one")
    if not head_file.is_dir():
        head_file = model_files.model_file(head_file, "head")
    lines = check_pair(target_file, head_file)
    fits = all(line.ok for line in lines)
    rows: dict[str, list[dict[str, Any]]] = {}
    memory, placement = None, None
    if fits and not files_only and not head_file.is_dir():
        with pydflash2.load(target_file, head_file, **options) as engine:
            rows["default"], memory, placement = _differences(engine), engine.memory, engine.placement
        with pydflash2.load(target_file, head_file, exact=True, **options) as engine:
            rows["exact"] = _differences(engine)
    if as_json:
        checks = [line._asdict() for line in lines]
        record = {"target": str(target_file), "head": str(head_file), "fits": fits, "checks": checks}
        record["placement"] = None if placement is None else asdict(placement)
        record["memory"] = None if memory is None else asdict(memory)
        record["logit_differences"] = rows or None
        print(json.dumps(record, ensure_ascii=False))
    else:
        for line in lines:
            print(f"{'ok' if line.ok else 'FAIL':4}  {line.name}: {line.detail}")
        print(
            "the pair fits" if fits else "the pair does not fit: use the head that was made for this target"
        )
        if placement is not None:
            _print_placement(placement)
        if memory is not None:
            _print_memory(memory)
        _print_rows(rows)
    return 0 if fits else 1


def _differences(engine: pydflash2.Engine) -> list[dict[str, Any]]:
    """What drafts of each width do to the target's logits (a difference of None: not finite)."""
    check = engine.check_rows()
    return [
        {
            "width": width,
            "bit_identical": difference == 0.0,
            "difference": difference if math.isfinite(difference) else None,
        }
        for width, difference in (check.differences.items() if check is not None else ())
    ]


def _print_placement(placement: Placement) -> None:
    print(f"\n{placement}")
    for device in dict.fromkeys(place.device for place in placement.tensors):
        here = [place for place in placement.tensors if place.device == device]
        own = [place.bytes for place in here if not place.borrowed]
        lent = [place.name for place in here if place.borrowed]
        lies = [f"{len(own)} tensors, {sum(own):,} bytes"] if own else []
        lies += [f"lent by the target: {', '.join(lent)}"] if lent else []
        print(f"  on {device}: {'; '.join(lies)}")
    ran = ", ".join(f"{place.count} {place.operation} on {place.device}" for place in placement.fallen_back)
    parts = "one part" if placement.splits == 1 else f"{placement.splits} parts"
    count = sum(place.count for place in placement.operations)
    print(f"  a round's graph: {count} operations in {parts}, {ran or f'all on {placement.head}'}")


def _print_memory(memory: Memory) -> None:
    per_token = memory.drafter_kv_per_token
    grows = f"{per_token:,} more for each token of context" if per_token else "the same at any context"
    of_target = f"{memory.draft_tokens:,} of {memory.target_tokens:,} tokens"
    rows = {
        "target's weights": f"{memory.target_weights:,}",
        "drafter's weights": f"{memory.drafter_weights:,}",
        "draft vocabulary": f"{memory.draft_vocabulary:,}, {of_target}",
        "drafter's K/V": f"{memory.drafter_kv:,} at a context of {memory.context_size:,}; {grows}",
        "drafter's compute": "held by ggml's schedulers"
        if memory.drafter_compute is None
        else f"{memory.drafter_compute:,}",
    }
    print("\nmemory in bytes, beside llama.cpp's for the target's context:")
    for name, what in rows.items():
        print(f"  {name:17}  {what}")


def _print_rows(rows: dict[str, list[dict[str, Any]]]) -> None:
    if not rows:
        return
    print("\nlogits of a drafted round, against plain decoding's:")
    print(f"{'width':>5}  {'default kernels':20}  --exact's")
    for default, exact in zip(rows["default"], rows["exact"], strict=True):
        print(f"{default['width']:5}  {_difference(default):20}  {_difference(exact)}")


def _difference(row: dict[str, Any]) -> str:
    if row["bit_identical"]:
        return "bit-identical"
    return "not finite" if row["difference"] is None else f"differ by {row['difference']:.2g}"


def _installation(as_json: bool) -> int:
    devices = native.devices()
    record: dict[str, Any] = {
        "pydflash2": pydflash2.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "llama_cpp": native.llama_cpp_pin(),
        "library": library.describe(),
        "backends": sorted({device["backend"] for device in devices}),
        "devices": devices,
        "cpu_features": _cpu_features(native.system_info()),
        "system_info": native.system_info().strip(),
    }
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
        return 0
    for key in ("pydflash2", "python", "platform", "llama_cpp"):
        print(f"{key.replace('_', '.'):12} {record[key]}")
    loaded = record["library"]
    print(f"{'module':12} {loaded['backend']}, of {loaded['package']}: {loaded['path']}")
    print(f"{'made for':12} {', '.join(loaded['cpu_features']) or 'any CPU of this kind'}")
    for name, obstacle in loaded["plug_ins"].items():
        print(f"{'plug-in':12} {name}{f': {obstacle}' if obstacle else ''}")
    print(f"{'back ends':12} {', '.join(loaded['backends'])}")
    found = {_BUILT_AS.get(name, name.lower()) for name in record["backends"]}
    idle = {*loaded["backends"]} - found - {"rpc", "blas"}
    for name in sorted(idle):
        print(f"{'device':12} none that {name} finds")
    for device in devices:
        free, total = (device[key] / 2**30 for key in ("memory_free", "memory_total"))
        print(f"{'device':12} {device['name']}: {device['description']}, {free:.1f} of {total:.1f} GiB free")
    print(f"{'CPU':12} {', '.join(record['cpu_features']) or '-'}")
    return 0


def _cpu_features(system_info: str) -> list[str]:
    """What is on in the CPU's part of llama.cpp's line: "CPU : SSE3 = 1 | AVX = 1 | ..."."""
    entries = [entry.partition("=") for entry in system_info.partition("CPU :")[2].split("|")]
    return [name.strip() for name, _, value in entries if value.strip() == "1"]
