"""A session over the C ABI alone, by a program in C: no memory is lost or misused from load to free.

In a build with -DPYDFLASH2_SANITIZE=address LeakSanitizer looks at every allocation, llama.cpp's too; reads
and writes are watched in csrc alone, as llama.cpp's archives aren't sanitised.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tiny.files import TinyFiles

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
SESSION = FOLDER / "session"

pytestmark = pytest.mark.skipif(
    not SESSION.exists(),
    reason=f"no {SESSION}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build session",
)

LINE = re.compile(r"(.+): (\d+) tokens, (\d+) rounds, (\d+) of (\d+) drafted tokens accepted")


@pytest.mark.parametrize("pair", ["chain", "qwen35"])  # caches that drop tokens, and states that are put back
def test_a_session(tiny: TinyFiles, pair: str) -> None:
    command = [SESSION, *tiny.pair(pair)]
    # This process may have been told not to look for leaks, for Python's sake.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1"}
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr

    texts = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    found = [(text[1], *map(int, text.groups()[1:])) for text in texts if text]
    assert [name for name, *_ in found] == 2 * [
        "greedy", "plain", "expected length", "drawn", *7 * ["grammar"]
    ]  # fmt: skip
    assert found[:11] == found[11:]
    by_name = {name: numbers for name, *numbers in found}
    assert by_name["plain"][1:] == [by_name["plain"][0] - 1, 0, 0]  # a token a round after the anchor
    assert by_name["greedy"][0] >= by_name["plain"][0]
    if pair == "chain":
        assert by_name["greedy"][1] < by_name["plain"][1]
    assert all(accepted <= drafted for _, _, _, accepted, drafted in found)
