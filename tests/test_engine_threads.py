"""Threads: native code runs beside them, and `close` may come from any of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pydflash2
from pydflash2 import native
from tiny.files import TinyFiles

PROMPT = "the cat sat on"


@pytest.fixture
def one_thread_at_a_time() -> Iterator[None]:
    """Python takes its lock from no thread: another one runs only where this one gives it up."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def test_native_code_runs_without_pythons_lock(tiny: TinyFiles, one_thread_at_a_time: None) -> None:
    """While one thread is in a single native call, another one ends many rounds on an engine of its own."""
    n_rounds = 0
    begun, stop = threading.Event(), threading.Event()

    def other() -> None:
        nonlocal n_rounds
        with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
            engine.prefill(PROMPT)
            while not stop.is_set():
                engine.verify([])
                n_rounds += 1
                begun.set()
                if len(engine.tokens) > 200:
                    engine.prefill(PROMPT)

    thread = threading.Thread(target=other)
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, context_size=1500, batch_size=1200) as engine:
        thread.start()
        try:
            assert begun.wait(60)
            engine._native.begin([65] * 1200, True)
            before = n_rounds
            left = engine._native.prefill()  # one chunk, one call
            during = n_rounds - before
        finally:
            stop.set()
            thread.join()
    assert left == 0
    assert during > 1


def test_pythons_own_code_does_not_give_the_lock_up(one_thread_at_a_time: None) -> None:
    """What makes the test above one that can fail."""
    n = 0
    begun, stop = threading.Event(), threading.Event()

    def count() -> None:
        nonlocal n
        while not stop.is_set():
            n += 1
            begun.set()
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    assert begun.wait(60)
    before = n
    sum(range(1000000))
    during = n - before
    stop.set()
    thread.join()
    assert during == 0


@pytest.mark.parametrize("n_threads", [2, 3, 16])
def test_threads_of_a_graph_change_no_text(tiny: TinyFiles, n_threads: int) -> None:
    """Also more of them than there are cores, and those of two engines that compute at once."""
    prompt = [65 + i % 20 for i in range(300)]
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, kv_type="f32") as engine:
        expected = engine.generate(prompt, max_tokens=60).tokens

    def write(_: int) -> list[list[int]]:
        with pydflash2.load(*tiny.pair("chain"), n_threads=n_threads, kv_type="f32") as engine:
            ways: list[dict[str, Any]] = [{"speculate": False}, {"max_draft_tokens": 7}, {"lookup": "mod"}]
            return [engine.generate(prompt, max_tokens=60, **way).tokens for way in ways]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, range(2))) == [[expected] * 3] * 2


def test_many_threads_close_at_once(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid a stream of another thread. Each close returns after the engine has been freed, which is once."""
    engine = pydflash2.load(*tiny.pair("chain"), n_threads=1)
    begun, barrier = threading.Event(), threading.Barrier(8)
    freed: list[bool] = []
    ended: list[str] = []

    def read() -> None:
        try:
            while True:
                for _ in engine.stream([65] * 300, max_tokens=100):
                    begun.set()
        except pydflash2.EngineClosedError as error:
            ended.append(str(error))

    def close() -> None:
        barrier.wait(60)
        engine.close()
        freed.append(engine._native._handles.engine[0] == native.ffi.NULL)

    threads = [threading.Thread(target=read), *(threading.Thread(target=close) for _ in range(8))]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert freed == [True] * 8
    assert ended == ["the engine is closed: load a new one"]


def test_looking_waits_for_the_call_that_runs(tiny: TinyFiles) -> None:
    """`tokens` from another thread is always a text between two rounds."""
    with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
        expected = engine.generate(PROMPT, max_tokens=200).tokens
        prompt = engine.tokenize(PROMPT)
        done = threading.Event()
        seen: list[list[int]] = []

        def look() -> None:
            while not done.is_set():
                seen.append(engine.tokens)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            for _ in range(5):
                assert engine.generate(PROMPT, max_tokens=200).tokens == expected
        finally:
            done.set()
            thread.join()
        whole = engine.tokens
    assert whole[: len(prompt) + 200] == prompt + expected
    assert all(tokens == whole[: len(tokens)] for tokens in seen)
    assert len({len(tokens) for tokens in seen}) > 1
