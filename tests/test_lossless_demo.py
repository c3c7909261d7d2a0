"""The packaged demo pair, as users run it: greedy text with drafts is the target's own at every width."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pydflash2 import model_files
from tiny.native import Native

N_TOKENS = 64
MAX_PROMPT = 200


@pytest.fixture(scope="module")
def demo() -> Iterator[Native]:
    target, head = model_files.demo_pair()
    with Native(target, head, kv_type="f16", drafter_kv_type="f16") as engine:
        yield engine


def sources(n: int) -> list[str]:
    """n beginnings of functions and classes from the standard library's own files."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for file in sorted(folder.glob("*.py")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "class "))]
        texts += ["".join(lines[start : start + 6]) for start in starts[::7]]
    assert len(texts) >= n, f"the standard library in {folder} has no sources"
    return texts[:: len(texts) // n][:n]


def departures(engine: Native, text: str, widths: Iterable[int]) -> list[int]:
    """The widths at which the text that follows is another than the target's own."""
    prompt = engine.tokenize(text)[:MAX_PROMPT]
    expected = engine.plain(prompt, N_TOKENS)
    return [width for width in widths if engine.speculative(prompt, N_TOKENS, width)[0] != expected]


def test_texts_are_the_targets_own(demo: Native) -> None:
    widest = demo.head_info.block_size - 1
    wrong = {index: departures(demo, text, [1 + index % widest]) for index, text in enumerate(sources(40))}
    assert not any(wrong.values()), wrong


def test_a_long_text_is_the_targets_own_too() -> None:
    """From 512 positions on, ggml's fastest attention treats one row unlike several."""
    with Native(*model_files.demo_pair(), kv_type="f16", drafter_kv_type="f16", context_size=1024) as engine:
        prompt = engine.tokenize("".join(sources(40)))[:700]
        assert len(prompt) == 700
        expected = engine.plain(prompt, N_TOKENS)
        for width in (1, 3, 7):
            assert engine.speculative(prompt, N_TOKENS, width)[0] == expected, f"width {width}"


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_threads"), [(500, 1), (25, 0)], ids=["one thread", "a user's threads"])
def test_texts_are_the_targets_own_at_every_width(n: int, n_threads: int) -> None:
    """Few with as many threads as a user gets: on a busy machine so small a target waits for them."""
    with Native(
        *model_files.demo_pair(), kv_type="f16", drafter_kv_type="f16", n_threads=n_threads
    ) as engine:
        widths = range(1, engine.head_info.block_size)
        wrong = {index: departures(engine, text, widths) for index, text in enumerate(sources(n))}
    assert not any(wrong.values()), wrong


def test_drafts_of_the_demo_head_are_accepted(demo: Native) -> None:
    rounds = accepted = 0
    for text in sources(10):
        _, verdicts = demo.speculative(
            demo.tokenize(text)[:MAX_PROMPT], N_TOKENS, demo.head_info.block_size - 1
        )
        rounds += len(verdicts)
        accepted += sum(verdict.n_accepted for verdict in verdicts)
    assert 1 + accepted / rounds > 2
