"""GBNF read a second time, plainly: texts drawn from a grammar, and whether it matches a text."""

from __future__ import annotations

import random
import re
from typing import Any

Node = tuple[
    Any, ...
]  # ("text", string) | ("class", test, sample) | ("rule", name) | ("seq"|"or", nodes) | ("repeat", ...)

_LAST = 0x10FFFF
_CHARACTER = re.compile(r"\\x(..)|\\u(....)|\\U(.{8})|\\(.)|(.)", re.DOTALL)
_CONTROL = {"t": "\t", "r": "\r", "n": "\n"}


def _characters(text: str) -> list[tuple[str, bool]]:
    """Each character with whether it was escaped."""
    found = []
    for match in _CHARACTER.finditer(text):
        code = match[1] or match[2] or match[3]
        if code:
            found.append((chr(int(code, 16)), True))
        else:
            found.append((_CONTROL.get(match[4], match[4]), True) if match[4] else (match[5], False))
    return found


class Grammar:
    """For grammars without left recursion, tokens and comments."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Node] = {}
        for line in text.splitlines():
            name, found, body = line.partition(" ::= ")
            assert found, line
            self._text, self._at = body, 0
            self.rules[name] = self._alternatives()
            assert self._at == len(body), (line, self._at)
        self._cost = self._shortest()

    # ---- parsing ----

    def _blank(self) -> None:
        while self._text[self._at : self._at + 1] == " ":
            self._at += 1

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._text[self._at : self._at + 1] == "|":
            self._at += 1
            parts.append(self._sequence())
        return ("or", parts)

    def _sequence(self) -> Node:
        items: list[Node] = []
        self._blank()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._repeated(self._item()))
            self._blank()
        return ("seq", items)

    def _item(self) -> Node:
        rest = self._text[self._at :]
        if rest[0] == "(":
            self._at += 1
            node = self._alternatives()
            assert self._text[self._at] == ")"
            self._at += 1
            return node
        for pattern, make in (
            (r'"((?:\\.|[^"\\])*)"', lambda m: ("text", "".join(c for c, _ in _characters(m[1])))),
            (r"\[((?:\\.|[^\]\\])*)\]", lambda m: ("class", _ranges(m[1]))),
            (r"[a-zA-Z0-9-]+", lambda m: ("rule", m[0])),
        ):
            match = re.match(pattern, rest, re.DOTALL)
            if match:
                self._at += match.end()
                return make(match)
        raise AssertionError(rest)

    def _repeated(self, node: Node) -> Node:
        while match := re.match(r"[*+?]|\{(\d+)(,?)(\d*)\}", self._text[self._at :]):
            self._at += match.end()
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(match[0], (None, None))
            if least is None:
                least = int(match[1])
                most = least if not match[2] else int(match[3]) if match[3] else None
            node = ("repeat", node, least, most)
        return node

    # ---- drawing ----

    def _shortest(self) -> dict[str, float]:
        """Rule -> how deep its shallowest text is."""
        cost: dict[str, float] = dict.fromkeys(self.rules, float("inf"))
        while True:
            new = {name: 1 + self._depth(node, cost) for name, node in self.rules.items()}
            if new == cost:
                return cost
            cost = new

    def _depth(self, node: Node, cost: dict[str, float]) -> float:
        kind = node[0]
        if kind == "rule":
            return cost[node[1]]
        if kind == "or":
            return min(self._depth(part, cost) for part in node[1])
        if kind == "seq":
            return max((self._depth(part, cost) for part in node[1]), default=0)
        return self._depth(node[1], cost) if kind == "repeat" and node[2] else 0

    def draw(self, rng: random.Random, depth: int = 25) -> str:
        """A text of the grammar, short where it has become deep."""
        return self._draw(("rule", "root"), rng, depth)

    def _draw(self, node: Node, rng: random.Random, depth: int) -> str:
        kind = node[0]
        if kind == "text":
            return str(node[1])
        if kind == "class":
            low, high = rng.choice(node[1])
            return chr(rng.randint(low, min(high, low + 200)))
        if kind == "rule":
            return self._draw(self.rules[node[1]], rng, depth - 1)
        if kind == "seq":
            return "".join(self._draw(part, rng, depth) for part in node[1])
        if kind == "or":
            depths = [self._depth(part, self._cost) for part in node[1]]
            fitting = [part for part, d in zip(node[1], depths, strict=True) if d <= max(depth, min(depths))]
            return self._draw(rng.choice(fitting), rng, depth)
        _, inner, least, most = node
        more = 0 if depth <= self._depth(inner, self._cost) else rng.randint(0, 3)
        n = least + (more if most is None else min(more, most - least))
        return "".join(self._draw(inner, rng, depth) for _ in range(n))

    # ---- matching ----

    def matches(self, text: str) -> bool:
        self._ends_of: dict[tuple[int, int], frozenset[int]] = {}
        return len(text) in self._ends(("rule", "root"), text, 0)

    def _ends(self, node: Node, text: str, at: int) -> frozenset[int]:
        """Where a match of `node` that starts at `at` can end."""
        kind = node[0]
        if kind == "text":
            return frozenset([at + len(node[1])]) if text.startswith(node[1], at) else frozenset()
        if kind == "class":
            hit = at < len(text) and any(low <= ord(text[at]) <= high for low, high in node[1])
            return frozenset([at + 1]) if hit else frozenset()
        if kind == "rule":
            key = (id(self.rules[node[1]]), at)
            if key not in self._ends_of:
                self._ends_of[key] = self._ends(self.rules[node[1]], text, at)
            return self._ends_of[key]
        if kind == "or":
            return frozenset().union(*(self._ends(part, text, at) for part in node[1]))
        ends = frozenset([at])
        if kind == "seq":
            for part in node[1]:
                ends = frozenset().union(*(self._ends(part, text, end) for end in ends))
            return ends
        _, inner, least, most = node
        found = ends if least == 0 else frozenset()
        n = 0
        while ends and (most is None or n < most):
            ends = frozenset().union(*(self._ends(inner, text, end) for end in ends))
            n += 1
            if n > least and ends <= found:
                break
            if n >= least:
                found |= ends
        return found


def _ranges(text: str) -> list[tuple[int, int]]:
    characters = _characters(text)
    negated = bool(characters) and characters[0] == ("^", False)
    ranges, i = [], 1 if negated else 0
    while i < len(characters):
        first = ord(characters[i][0])
        if characters[i + 1 : i + 2] == [("-", False)] and i + 2 < len(characters):
            ranges.append((first, ord(characters[i + 2][0])))
            i += 3
        else:
            ranges.append((first, first))
            i += 1
    if negated:
        kept, start = [], 0
        for low, high in [*sorted(ranges), (_LAST + 1, _LAST + 1)]:
            if start < low:
                kept.append((start, low - 1))
            start = max(start, high + 1)
        ranges = kept
    return ranges
