"""When an exception helps: it is one of ours, names what is wrong, and is a sentence to read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydflash2.errors import PyDFlash2Error

_SHORTEST, _LONGEST = 20, 1500  # characters
_RAW = re.compile(
    r"std::|basic_string|vector::|\bmap::at|\b_M_|\bsto[idlu]\b|bad_alloc|Traceback|<object at|0x[0-9a-f]{6,}"
    r"|\bnullptr\b|llama\.cpp gave no reason"
)
# What to do. Ours end with it; a message that only says what happened leaves the user alone. (Of what a user
# wrote, the place where it is wrong is enough.)
_ADVICE = re.compile(
    r"\b(allow|ask|call|cast|change|check|choose|convert|correct|decode|download|drop|exchange|fetch|free|give|go|install|leave|"
    r"load|make|merge|must|name|needs?|pass|possible|remove|run|save|set|shorten|split|update|use|verify|write|"
    r"the target's ids are|line \d+, column \d+)\b",
    re.IGNORECASE,
)


def complaint(error: BaseException, mentions: Iterable[str]) -> str | None:
    """What is wrong with an exception as an answer to a user, or None. It must name one of `mentions`."""
    message = str(error)
    if not isinstance(error, PyDFlash2Error) and type(error) not in (ValueError, TypeError):
        return f"a {type(error).__name__}"
    if len(message) < _SHORTEST or " " not in message:
        return "too short"
    if len(message) > _LONGEST:
        return "too long"
    if raw := _RAW.search(message):
        return f"raw text {raw.group()!r}"
    if not any(mention in message for mention in mentions):
        return "does not name what is wrong"
    if not _ADVICE.search(message):
        return "says nothing to do"
    return None
