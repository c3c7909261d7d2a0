"""What is compared: each arm is a way to draft, as settings of `Engine.generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydflash2

GROUPS = ("plain", "head", "lookup", "stack", "auto")
_LOOKUPS = ("map-k4v", "mod")


@dataclass(frozen=True)
class Arm:
    name: str
    group: str  # of GROUPS
    settings: dict[str, Any] = field(default_factory=dict)
    width: int | None = None  # drafted tokens of the head, where it is fixed


PLAIN = Arm("plain", "plain", {"speculate": False})


def possible(engine: pydflash2.Engine) -> list[Arm]:
    """All arms that this engine has, plain decoding first."""
    widths = range(1, engine.block_size or 1)
    arms = [PLAIN]
    arms += [Arm(f"head-{w}", "head", {"max_draft_tokens": w, "lookup": "off"}, w) for w in widths]
    arms += [Arm(name, "lookup", {"max_draft_tokens": 0, "lookup": name}, 0) for name in _LOOKUPS]
    arms += [
        Arm(f"{name}+head-{w}", "stack", {"max_draft_tokens": w, "lookup": name}, w)
        for name in _LOOKUPS
        for w in widths
    ]
    return [*arms, Arm("auto", "auto")]


def chosen(arms: Sequence[Arm], names: Iterable[str]) -> list[Arm]:
    """Arms by name or by group; plain decoding is always among them, as what the others are compared with.

    Raises ValueError for a name that no arm has.
    """
    wanted = {PLAIN.name}
    for name in names:
        if not any(name in (arm.name, arm.group) for arm in arms) and name not in GROUPS:
            raise ValueError(
                f"there is no arm {name!r}: choose groups ({', '.join(GROUPS)}) "
                f"or arms ({', '.join(arm.name for arm in arms)})"
            )
        wanted.add(name)
    return [arm for arm in arms if wanted & {arm.name, arm.group}]


def few(arms: Sequence[Arm]) -> list[Arm]:
    """One or two of each group, for a quick look: of those with a width, the middle and the greatest."""
    kept = []
    for group in GROUPS:
        members = [arm for arm in arms if arm.group == group]
        widths = sorted({arm.width for arm in members if arm.width})
        some = {widths[(len(widths) - 1) // 2], widths[-1]} if widths else set()
        kept += [arm for arm in members if not arm.width or arm.width in some]
    return kept
