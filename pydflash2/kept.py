"""What is measured once for a pair, its devices and this build, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydflash2 import native

log = logging.getLogger("pydflash2")

Key = dict[str, Any]

_PIECE = 1 << 16
_SAMPLES = 16


def extended(key: Key | None, **more: Any) -> Key | None:
    """A key with what one kind of measurement depends on besides."""
    return None if key is None else {**key, **more}


def key_of(engine: native.NativeEngine, target: Path) -> Key | None:
    """What every measurement depends on. None where a file can't be read: nothing is kept then."""
    from pydflash2 import __version__, _native

    names = native.string(engine.target.devices).split(", ")
    here = [device for device in native.devices() if device["name"] in names]
    elsewhere = sorted({*names} - {device["name"] for device in here})  # behind RPC, or several as one
    try:
        return {
            "target": file_identity(target),
            "devices": [
                *([device[key] for key in ("name", "description", "backend")] for device in here),
                *elsewhere,
            ],
            "build": [
                __version__,
                native.llama_cpp_pin(),
                native.system_info(),
                file_identity(Path(_native.__file__)),
            ],
            "environment": sorted(
                f"{k}={v}"
                for k, v in os.environ.items()
                if k.startswith(("GGML_", "LLAMA_", "PYDFLASH2_CPU_"))
            ),
            "n_threads": int(engine.target.n_threads),
        }
    except OSError as error:
        log.info("nothing measured will be kept: %s", error)
        return None


def file_identity(path: Path) -> list[Any]:
    """Size, time, and a digest of the first MiB and of samples: weights are too many to read each time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        digest.update(file.read(16 * _PIECE))
        for sample in range(1, _SAMPLES + 1):
            file.seek(max(0, stat.st_size * sample // _SAMPLES - _PIECE))
            digest.update(file.read(_PIECE))
    return [stat.st_size, stat.st_mtime_ns, digest.hexdigest()]


def content_identity(path: Path) -> list[Any]:
    """Of a file that may be moved and touched: `file_identity` without the time."""
    size, _, digest = file_identity(path)
    return [size, digest]


def folder(kind: str) -> Path:
    """kind: what is kept there, "rows" or "costs". RuntimeError without a home folder."""
    if os.environ.get("XDG_CACHE_HOME"):
        root = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        root = Path(os.environ["LOCALAPPDATA"])
    elif sys.platform == "darwin":
        root = Path("~/Library/Caches").expanduser()
    else:
        root = Path("~/.cache").expanduser()
    return root / "pydflash2" / kind


def file_of(kind: str, key: Key) -> Path:
    text = json.dumps(key, sort_keys=True)
    return folder(kind) / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def read(kind: str, key: Key | None) -> dict[str, Any] | None:
    """What is kept for a key, or None. Whether it makes sense is for the caller to say."""
    if key is None:
        return None
    try:
        record = json.loads(file_of(kind, key).read_bytes())
        return record if isinstance(record, dict) and record.get("key") == key else None
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no home folder
        return None


def write(kind: str, key: Key | None, record: dict[str, Any]) -> bool:
    """Keeps a record; False, and a line in the log, where that can't be done."""
    if key is None:
        return False
    part = None
    try:
        path = file_of(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps({"key": key, **record}), encoding="utf-8")
        os.replace(part, path)
        return True
    except (OSError, RuntimeError) as error:
        log.info("what was measured can't be kept: %s", error)
        if part is not None:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return False
