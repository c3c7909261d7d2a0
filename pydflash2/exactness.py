"""Whether drafts can change a text: a target's logits, bit for bit, at every width that is drafted.

Verification decodes several rows at once, plain decoding one. Kernels switch by that number, and a sum in
another order is another number. `Exactness` measures it once for a target, its devices and this build, keeps
the result in the user's cache folder, and with exact=True allows only widths that make no difference.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydflash2 import native
from pydflash2.drafts import Drafts

log = logging.getLogger("pydflash2")

# (tokens before, probe): kernels also switch by the length of the cache, which grows in steps of 256.
SHALLOW = ((24, 1), (24, 2))
DEEP = (*SHALLOW, (255, 3), (600, 4))

_FORMAT = 1  # of the kept files; a change of the probes is one too
_PIECE = 1 << 16
_SAMPLES = 16


@dataclass(frozen=True)
class RowCheck:
    """Largest differences of a logit from plain decoding's; 0.0: all bits are equal."""

    differences: dict[int, float]  # by width: drafted tokens, so rows - 1
    prompt_difference: float  # where a prompt is decoded in other pieces, as a reused prefix makes them

    @property
    def exact_widths(self) -> list[int]:
        return [width for width, difference in self.differences.items() if difference == 0.0]

    def allowed(self, width: int) -> int:
        """The largest exact width up to `width`; 0: plain decoding."""
        return max((exact for exact in self.exact_widths if exact <= width), default=0)


class Exactness:
    """What an engine asks: `allowed` before it verifies, `measure` where a check may be run."""

    def __init__(
        self, engine: native.NativeEngine, target: Path, full_width: int, options: dict[str, Any]
    ) -> None:
        """options: what `load` was called with, as far as kernels can depend on it, and `exact`."""
        self.exact: bool = options["exact"]
        self._engine = engine
        self._full_width = full_width
        self._check: RowCheck | None = None
        self._limited = False
        # Now, not when it is needed: the file may be another by then.
        self._key = _key(engine, target, full_width, options) if full_width > 0 else None

    def measure(self) -> RowCheck | None:
        """Runs the check, or reads what it said before. Empties the sequence: no text may be going on.
        None without a head.
        """
        if self._check is None and self._full_width > 0:
            self._check = read(self._key) or self._run()
        return self._check

    def allowed(self, width: int) -> int:
        """Tokens that may be verified at once where `width` are at hand."""
        if not self.exact:
            return width
        return 0 if self._check is None else self._check.allowed(width)

    @property
    def keeps_prefixes(self) -> bool:
        """Whether a prompt's reused part is, bit for bit, what computing it would give."""
        return not self.exact or self._check is None or self._check.prompt_difference == 0.0

    def limited(self, drafts: Drafts) -> Drafts:
        """Runs the check where it is needed, and leaves what is allowed."""
        check = self.measure() if drafts.width > 0 or self.exact else None
        if not self.exact or check is None:
            return drafts
        if not self._limited:
            self._limited = True
            self._engine.allow_widths(check.exact_widths)
        widest = drafts.width or self._full_width
        allowed = check.allowed(widest)
        if allowed == widest:
            return drafts
        least = min(value for at, value in check.differences.items() if allowed < at <= widest)
        devices = native.string(self._engine.target.devices)
        why = f"would move logits by {least:.2g} on {devices}"
        if allowed == 0:
            return Drafts(0, False, "off", f"off: exact=True, and drafting {why}")
        return replace(
            drafts,
            width=min(allowed, drafts.width),
            why=f"on, {allowed} a round: exact=True, and drafting more {why}",
        )

    def difference(self, rounds_by_width: list[int]) -> float | None:
        """Stats.logit_difference of a request: the largest at the widths it used."""
        if self._check is None:
            return None
        known = self._check.differences
        used = [known[width] for width, n in enumerate(rounds_by_width) if n and width in known]
        return max(used, default=None)

    def _run(self) -> RowCheck:
        context_size = int(self._engine.target.context_size)
        rows = min(self._full_width + 1, context_size - 1)
        unmeasured = self._full_width + 1 - rows  # widths that have no room in the context
        largest = [0.0] * rows + [math.inf] * unmeasured
        for depth, probe in (DEEP if self.exact else SHALLOW) if rows > 1 else ():
            if depth <= context_size - rows or (depth, probe) in SHALLOW:
                found = self._engine.check_rows(rows, min(depth, context_size - rows), probe)
                largest[:rows] = map(max, largest, found)
        check = RowCheck(dict(enumerate(largest[1:], start=1)), largest[0])
        write(self._key, check)
        return check


# ---- what it depends on --------------------------------------------------------------------------


def _key(
    engine: native.NativeEngine, target: Path, full_width: int, options: dict[str, Any]
) -> dict[str, Any] | None:
    """None where a file can't be read: nothing is kept then."""
    from pydflash2 import __version__, _native

    names = native.string(engine.target.devices).split(", ")
    try:
        return {
            "format": _FORMAT,
            "target": file_identity(target),
            "devices": [
                [device[key] for key in ("name", "description", "backend")]
                for device in native.devices()
                if device["name"] in names
            ],
            "build": [
                __version__,
                native.llama_cpp_pin(),
                native.system_info(),
                file_identity(Path(_native.__file__)),
            ],
            "environment": sorted(
                f"{k}={v}" for k, v in os.environ.items() if k.startswith(("GGML_", "LLAMA_"))
            ),
            "n_threads": int(engine.target.n_threads),
            "context_size": int(engine.target.context_size),
            "taps": [int(tap) for tap in engine.head.taps[0 : engine.head.n_taps]],
            "width": full_width,
            "options": options,
        }
    except OSError as error:
        log.info("the row check will not be kept: %s", error)
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


# ---- kept results --------------------------------------------------------------------------------


def cache_folder() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        root = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        root = Path(os.environ["LOCALAPPDATA"])
    elif sys.platform == "darwin":
        root = Path("~/Library/Caches").expanduser()
    else:
        root = Path("~/.cache").expanduser()
    return root / "pydflash2" / "rows"


def cache_file(key: dict[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def read(key: dict[str, Any] | None) -> RowCheck | None:
    """What is kept for a key. None where there is nothing, or nothing that makes sense."""
    if key is None:
        return None
    try:
        kept = json.loads(cache_file(key).read_bytes())
        if kept["key"] != key:
            return None
        values = [float(kept["prompt_difference"]), *map(float, kept["differences"])]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # RuntimeError: no home folder
        return None
    if len(values) != 1 + key["width"] or any(math.isnan(value) or value < 0 for value in values):
        return None
    return RowCheck(dict(enumerate(values[1:], start=1)), values[0])


def write(key: dict[str, Any] | None, check: RowCheck) -> None:
    """Keeps a result; where that can't be done, the check will run again."""
    if key is None:
        return
    record = {
        "key": key,
        "differences": list(check.differences.values()),  # at widths 1, 2, ...
        "prompt_difference": check.prompt_difference,
    }
    part = None
    try:
        path = cache_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(record), encoding="utf-8")
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        log.info("the row check can't be kept: %s", error)
        if part is not None:
            with suppress(OSError):
                part.unlink(missing_ok=True)
