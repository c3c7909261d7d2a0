"""Whether drafts can change a text: a target's logits, bit for bit, at every width that is drafted.

Verification decodes several rows at once, plain decoding one. Kernels switch by that number, and a sum in
another order is another number. `Exactness` measures it once for a target, its devices and this build, keeps
the result in the user's cache folder, and with exact=True allows only widths that make no difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pydflash2 import kept, native
from pydflash2.drafts import Drafts

# (tokens before, probe): kernels also switch by the length of the cache, which grows in steps of 256.
SHALLOW = ((24, 1), (24, 2))
DEEP = (*SHALLOW, (255, 3), (600, 4))

_FORMAT = 1  # of the kept files; a change of the probes is one too


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
        self, engine: native.NativeEngine, key: kept.Key | None, full_width: int, options: dict[str, Any]
    ) -> None:
        """key: kept.key_of the engine. options: what `load` was called with, as far as kernels can depend on
        it, and `exact`.
        """
        self.exact: bool = options["exact"]
        self._engine = engine
        self._full_width = full_width
        self._check: RowCheck | None = None
        self._limited = False
        self._key = None
        if full_width > 0:
            self._key = kept.extended(
                key,
                format=_FORMAT,
                context_size=int(engine.target.context_size),
                taps=[int(tap) for tap in engine.head.taps[0 : engine.head.n_taps]],
                width=full_width,
                options=options,
            )

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
        if not self.exact:
            return drafts
        if check is None:
            return Drafts(
                0, False, "off", "off: exact=True allows widths that were checked; there is no head"
            )
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


# ---- kept results --------------------------------------------------------------------------------


def read(key: kept.Key | None) -> RowCheck | None:
    """What is kept for a key. None where there is nothing, or nothing that makes sense."""
    record = kept.read("rows", key)
    if key is None or record is None:
        return None
    try:
        values = [float(record["prompt_difference"]), *map(float, record["differences"])]
    except (ValueError, KeyError, TypeError):
        return None
    if len(values) != 1 + key["width"] or any(math.isnan(value) or value < 0 for value in values):
        return None
    return RowCheck(dict(enumerate(values[1:], start=1)), values[0])


def write(key: kept.Key | None, check: RowCheck) -> None:
    """Keeps a result; where that can't be done, the check will run again."""
    record = {
        "differences": list(check.differences.values()),  # at widths 1, 2, ...
        "prompt_difference": check.prompt_difference,
    }
    kept.write("rows", key, record)
