"""Text from token bytes: characters and stop strings cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydflash2.text import TextStream


def streamed(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[str, bool]:
    stream = TextStream(stop)
    text = "".join([stream.feed(piece) for piece in pieces] + [stream.finish()])
    return text, stream.stopped


def whole(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The rule said in the plainest way: grow the text by a character until it ends in a stop string."""
    for end in range(1, len(text) + 1):
        starts = [end - len(string) for string in stop if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)], True
    return text, False


@st.composite
def cut_bytes(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    value = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(value)), max_size=12)))
    return [value[a:b] for a, b in zip([0, *cuts], [*cuts, len(value)], strict=True)]


@given(cut_bytes(st.text().map(str.encode)))
def test_any_cut_of_utf8_gives_the_text(pieces: list[bytes]) -> None:
    assert streamed(pieces) == (b"".join(pieces).decode(), False)


@given(cut_bytes(st.binary()))
@example([b"\xf0\x9f", b"\x98"])  # an emoji that never ends
@example([b"\xf0\x9f", b"a"])
def test_bytes_that_are_no_utf8_decode_as_python_does(pieces: list[bytes]) -> None:
    assert streamed(pieces) == (b"".join(pieces).decode("utf-8", "replace"), False)


few = st.text(alphabet="aböß😀", max_size=30)
stops = st.lists(st.text(alphabet="aböß😀", min_size=1, max_size=5), max_size=4)


@given(cut_bytes(few.map(str.encode)), stops)
@example([b"abab", b"c"], ["ababc", "bab"])  # the longer one began first, the shorter one is completed first
@example([b"ab"], ["b", "ab"])  # both are completed by the same character
def test_stop_strings_do_not_depend_on_the_cut(pieces: list[bytes], stop: list[str]) -> None:
    assert streamed(pieces, stop) == whole(b"".join(pieces).decode(), stop)


@given(cut_bytes(few.map(str.encode)), stops)
def test_what_was_shown_is_never_taken_back(pieces: list[bytes], stop: list[str]) -> None:
    final, _ = whole(b"".join(pieces).decode(), stop)
    stream, shown = TextStream(stop), ""
    for piece in pieces:
        shown += stream.feed(piece)
        assert final.startswith(shown)


def test_a_character_is_shown_when_its_last_byte_is_there() -> None:
    stream = TextStream()
    assert [stream.feed(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    stream = TextStream(["\n\n"])
    assert stream.feed(b"one\n") == "one"
    assert stream.feed(b"two\n") == "\ntwo"
    assert stream.feed(b"\nthree") == ""
    assert stream.stopped
    assert stream.feed(b"four") == stream.finish() == ""


@pytest.mark.parametrize("stop", [["END"], ["END", "x"]])
def test_half_a_stop_string_at_the_end_is_text(stop: list[str]) -> None:
    assert streamed([b"the EN"], stop) == ("the EN", False)


def test_a_stop_string_may_end_in_a_character_that_never_ends() -> None:
    assert streamed([b"a\xf0\x9f"], ["\N{REPLACEMENT CHARACTER}"]) == ("a", True)
