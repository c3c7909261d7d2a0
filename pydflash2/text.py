"""Token bytes to text, piece by piece, and stop strings across the pieces' borders."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

# A token may end in the middle of a character; the rest comes with the next one. What never becomes a
# character is shown as U+FFFD, as str.decode does.
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Turns the bytes of tokens into text that is final, and finds the first stop string in it.

    The match that is completed first wins; of several completed by the same character, the longest. So
    where the text ends doesn't depend on how it was cut into tokens. Text that could still become a stop
    string is held back.
    """

    def __init__(self, stop: Iterable[str] = ()) -> None:
        self._decoder = _Utf8Decoder(errors="replace")
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False  # a stop string was found: the text is complete, further bytes are ignored

    def feed(self, data: bytes) -> str:
        """Adds bytes and returns the text that is certain now, without any stop string."""
        return self._advance(self._decoder.decode(data), final=False)

    def finish(self) -> str:
        """Ends the text and returns what was held back. Half a character becomes U+FFFD."""
        return self._advance(self._decoder.decode(b"", True), final=True)

    def _advance(self, text: str, final: bool) -> str:
        if self.stopped:
            return ""
        self._held += text
        match = self._first_match()
        if match is not None:
            self.stopped = True
            released, self._held = self._held[:match], ""
            return released
        keep = 0 if final else self._possible_start()
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def _first_match(self) -> int | None:
        """Where the stop string that is completed first begins."""
        found = ((self._held.find(stop), len(stop)) for stop in self._stop)
        ends_and_starts = [(start + length, start) for start, length in found if start >= 0]
        return min(ends_and_starts)[1] if ends_and_starts else None

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
