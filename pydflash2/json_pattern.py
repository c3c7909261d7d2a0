"""Regular expressions of JSON schemas, in the words of llama.cpp's translation into grammars.

The translation copies classes as they stand and knows few escapes; and it would let a string hold a bare
quote, backslash or control character, which JSON writes as escapes. So classes are computed here, and written
out as ranges of the characters that a JSON string holds as they are. The others never match.
"""

from __future__ import annotations

import re

__all__ = ["translated"]

Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF
_ESCAPED: Ranges = [(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\")), (0xD800, 0xDFFF)]
_SETS: dict[str, Ranges] = {
    r"\d": [(ord("0"), ord("9"))],
    r"\w": [(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("_"), ord("_")), (ord("a"), ord("z"))],
    r"\s": [(ord(" "), ord(" ")), (0xA0, 0xA0)],  # and characters that JSON escapes
    ".": [(0, _LAST)],
}
_ESCAPE = r"\\[\^$.|?*+(){}\[\]\-/]"
_MEMBER = rf"(?:{_ESCAPE}|\\[dws]|[^\\\[\]])"
_PIECE = re.compile(
    rf"(?P<plain>[^\\^$.|?*+(){{}}\[\]])|(?P<escape>{_ESCAPE})|(?P<set>\\[dws]|\.)|(?P<class>\[\^?{_MEMBER}+\])"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<or>\|)|(?P<repeat>[*+?]|\{\d{1,4}(?:,\d{0,4})?\})"
)
_RANGE = re.compile(rf"(?P<set>\\[dws])|(?P<first>{_ESCAPE}|[^\\])(?:-(?P<last>{_ESCAPE}|[^\\]))?", re.DOTALL)


def translated(pattern: str) -> str:
    """A pattern for the same strings, or for those that need no escapes. ValueError where there is none."""
    shown = repr(pattern if len(pattern) <= 60 else pattern[:60] + "...")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern {shown} is no regular expression: {error}") from None
    if len(pattern) < 3 or pattern[0] != "^" or pattern[-1] != "$" or pattern[-2] == "\\":
        raise ValueError(f"pattern {shown} must begin with ^, end with $ and have something in between")
    made, at, before = "", 1, "open"
    while at < len(pattern) - 1:
        piece = _PIECE.match(pattern, at, len(pattern) - 1)
        kind = str(piece.lastgroup) if piece else ""
        if piece is None or (kind == "repeat" and before in ("repeat", "open", "or")):
            raise ValueError(
                f"pattern {shown} has {pattern[at : at + 6]!r}, which can't be said in a grammar; possible "
                r"are characters, (), |, classes, '.', \d, \w, \s, * + ? {2,3}, and a backslash before a sign"
            )
        text = piece.group()
        if kind in ("plain", "escape"):
            made += text if text.isascii() and text.isalnum() else _written([(ord(text[-1]),) * 2], shown)
        elif kind == "set":
            made += _written(_SETS[text], shown)
        elif kind == "class":
            made += _written(_class(text[1:-1]), shown)
        else:
            made += text
        at, before = piece.end(), kind
    return f"^{made}$"


def _class(text: str) -> Ranges:
    """What stands between the brackets."""
    negated = text.startswith("^")
    ranges: Ranges = []
    for part in _RANGE.finditer(text, 1 if negated else 0):
        if part["set"]:
            ranges += _SETS[part["set"]]
        else:
            first = part["first"][-1]
            ranges.append((ord(first), ord((part["last"] or first)[-1])))
    return _without([(0, _LAST)], ranges) if negated else ranges


def _without(ranges: Ranges, removed: Ranges) -> Ranges:
    for low, high in removed:
        ranges = [
            (a, b)
            for first, last in ranges
            for a, b in ((first, min(last, low - 1)), (max(first, high + 1), last))
            if a <= b
        ]
    return ranges


def _written(ranges: Ranges, shown: str) -> str:
    kept = _without(ranges, _ESCAPED)
    if not kept:
        raise ValueError(
            f"pattern {shown} needs a quote, a backslash or a control character, which JSON writes as an "
            "escape; leave it out"
        )
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in kept) + "]"


def _code(point: int) -> str:
    if point < 0x80 and chr(point).isalnum():
        return chr(point)
    return f"\\x{point:02X}" if point <= 0xFF else f"\\u{point:04X}" if point <= 0xFFFF else f"\\U{point:08X}"
