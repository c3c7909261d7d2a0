"""What was measured, and on what: enough to judge a figure, and to have it again."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone

import pydflash2
from pydflash2 import native


@dataclass(frozen=True)
class File:
    role: str
    name: str
    n_bytes: int
    description: str


@dataclass(frozen=True)
class Environment:
    date: str  # ISO 8601, with the zone's offset
    version: str  # of pydflash2
    llama_cpp: str
    python: str
    system: str
    cpu: str
    cores: int  # that this process may use
    threads: int  # that the engine uses
    devices: str  # where the target's weights lie
    load_average: float | None  # of the minute before: other programs' work
    context_size: int
    files: list[File]

    @classmethod
    def of(cls, engine: pydflash2.Engine) -> Environment:
        cpu = [device["description"] for device in native.devices() if device["name"] == "CPU"]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(
            date=datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
            version=pydflash2.__version__,
            llama_cpp=native.llama_cpp_pin(),
            python=platform.python_version(),
            system=platform.platform(),
            cpu=cpu[0] if cpu else platform.processor() or platform.machine(),
            cores=cores,
            threads=int(engine._native.target.n_threads),
            devices=native.string(engine._native.target.devices),
            load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            context_size=engine.context_size,
            files=_files(engine),
        )


def memory(engine: pydflash2.Engine) -> dict[str, int | None]:
    """Bytes, by what holds them. None: not known on this system, or there is no head."""
    head = None
    if engine._native.head is not None:
        head = native.ffi.new("pd2_head_info *")  # anew: graphs have been reserved since the load
        native.check(native.lib.pd2_engine_head_info(engine._native._engine, head))
    return {
        "target_weights": int(engine._native.target.weight_bytes),
        "head_weights": None if head is None else int(head.weight_bytes),
        "head_cache": None if head is None else int(head.cache_bytes),
        "head_compute": None if head is None else int(head.compute_bytes),
        "process_peak": _peak(),
    }


def _peak() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _files(engine: pydflash2.Engine) -> list[File]:
    target, head = engine._native.target, engine._native.head
    files = [
        File("target", engine._target.name, engine._target.stat().st_size, native.string(target.description))
    ]
    if engine._head is not None and head is not None:
        layers = f"{head.n_layer} layer{'s' if head.n_layer != 1 else ''}"
        kind = f"DFlash {head.version}, {layers}, block {head.block_size}"
        files.append(File("head", engine._head.name, engine._head.stat().st_size, kind))
    return files
