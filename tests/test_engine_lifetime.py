"""Interrupts, two users at once, closing: the next request is answered as if nothing had happened."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from pydflash2.native import NativeEngine, ffi
from tiny.files import TinyFiles

PROMPT = "the cat sat on"


@pytest.fixture
def engine(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, batch_size=8) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(tiny: TinyFiles) -> list[int]:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
        return engine.generate(PROMPT, max_tokens=50).tokens


def interrupt_at(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> list[int]:
    """Has Ctrl-C arrive during the given native call. Returns the list that counts the calls."""
    real: Callable[..., Any] = getattr(NativeEngine, method)
    calls: list[int] = []

    def counted(self: NativeEngine, *arguments: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return real(self, *arguments)

    monkeypatch.setattr(NativeEngine, method, counted)
    return calls


@pytest.mark.parametrize("call", [1, 3, 40])
def test_ctrl_c_in_a_prefill(
    engine: pydflash2.Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    with monkeypatch.context() as patch:
        calls = interrupt_at(patch, "prefill", call)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([65] * 900, max_tokens=50)  # 113 chunks
        assert len(calls) == call
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected


def test_ctrl_c_in_a_round(
    engine: pydflash2.Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = interrupt_at(patch, "round", 4)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            engine.generate(PROMPT, max_tokens=500)
        assert len(calls) == 4
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected
    del interrupt  # the traceback, and with it the generator, lived until here


def test_ctrl_c_from_another_thread(engine: pydflash2.Engine, expected: list[int]) -> None:
    """A real, late signal: requests go on until it comes."""
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while timer.is_alive() or engine.tokens:
            engine.generate([65] * 900, max_tokens=20)
    timer.join()
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected


# ---- two users at once -----------------------------------------------------------------------------------

BUSY = (
    r"^the engine is busy with another call: finish or close\(\) the stream that is open, or load another "
    r"engine for the other thread$"
)


def test_an_open_stream_keeps_the_engine(engine: pydflash2.Engine, expected: list[int]) -> None:
    stream = engine.stream(PROMPT, max_tokens=50)
    other = engine.stream(PROMPT, max_tokens=50)  # not begun: nobody's way is blocked yet
    tokens = next(stream).tokens
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate(PROMPT),
        lambda: engine.stream(PROMPT),
        lambda: next(other),
        lambda: engine.prefill(PROMPT),
        engine.draft,
        lambda: engine.verify([]),
    ]
    for call in calls:
        with pytest.raises(pydflash2.EngineBusyError, match=BUSY):
            call()
    assert engine.tokens[-1:] == tokens  # looking is allowed
    tokens += [token for piece in stream for token in piece.tokens]
    assert tokens == expected
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected


def test_the_last_piece_frees_the_engine(engine: pydflash2.Engine, expected: list[int]) -> None:
    stream = engine.stream(PROMPT, max_tokens=20)
    while next(stream).finish_reason is None:
        pass
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected


@pytest.mark.parametrize("leave", ["close", "drop", "break"])
def test_a_stream_left_early_frees_the_engine(
    engine: pydflash2.Engine, expected: list[int], leave: str
) -> None:
    if leave == "break":
        for _ in engine.stream(PROMPT, max_tokens=50):
            break
    else:
        stream = engine.stream(PROMPT, max_tokens=50)
        next(stream)
        next(stream)
        if leave == "close":
            stream.close()
        del stream
    assert engine.generate(PROMPT, max_tokens=50).tokens == expected


def test_two_threads(engine: pydflash2.Engine, expected: list[int]) -> None:
    begun, go_on = threading.Event(), threading.Event()
    tokens: list[int] = []

    def read() -> None:
        for piece in engine.stream(PROMPT, max_tokens=50):
            tokens.extend(piece.tokens)
            begun.set()
            go_on.wait(60)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    with pytest.raises(pydflash2.EngineBusyError, match=BUSY):
        engine.generate(PROMPT)
    go_on.set()
    reader.join()
    assert tokens == expected


def test_two_engines_in_two_threads(tiny: TinyFiles, expected: list[int]) -> None:
    texts: list[list[int]] = []

    def work() -> None:
        with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
            for _ in range(5):
                texts.append(engine.generate(PROMPT, max_tokens=50).tokens)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 15


# ---- closing ---------------------------------------------------------------------------------------------

CLOSED = "^the engine is closed: load a new one$"


def test_a_closed_engine(engine: pydflash2.Engine) -> None:
    engine.generate(PROMPT, max_tokens=3)
    engine.close()
    engine.close()
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate(PROMPT),
        lambda: engine.generate([1, 2]),
        lambda: engine.stream(PROMPT),
        lambda: engine.prefill([1, 2]),
        engine.draft,
        lambda: engine.verify([1]),
        lambda: engine.tokens,
        lambda: engine.tokenize("a"),
        lambda: engine.detokenize([65]),
        lambda: engine.__enter__(),
    ]
    for call in calls:
        with pytest.raises(pydflash2.EngineClosedError, match=CLOSED):
            call()
    assert repr(engine) == (
        "<pydflash2.Engine target='qwen3-chain-f32.gguf' head='chain-head-f32.gguf' closed>"
    )


def test_closing_while_streaming(engine: pydflash2.Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=50)
    next(stream)
    engine.close()
    with pytest.raises(pydflash2.EngineClosedError, match=CLOSED):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_closing_while_another_thread_generates(engine: pydflash2.Engine) -> None:
    begun = threading.Event()
    outcome: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                for _ in engine.stream([65] * 500, max_tokens=100):
                    begun.set()
        except pydflash2.EngineClosedError as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    engine.close()
    reader.join(60)
    assert [str(error) for error in outcome] == ["the engine is closed: load a new one"]


def test_the_last_reference_frees_the_engine(tiny: TinyFiles) -> None:
    engine = pydflash2.load(*tiny.pair("chain"), n_threads=1)
    released = engine._native._release
    engine.generate(PROMPT, max_tokens=3)
    del engine
    gc.collect()
    assert not released.alive


def test_a_cycle_is_collected(tiny: TinyFiles) -> None:
    engine = pydflash2.load(*tiny.pair("chain"), n_threads=1)
    handles = engine._native._handles
    stream = engine.stream(PROMPT, max_tokens=50)
    next(stream)
    cycle: list[object] = [engine, stream]
    cycle.append(cycle)
    del engine, stream, cycle
    assert handles.engine[0] != ffi.NULL
    gc.collect()
    assert handles.engine[0] == ffi.NULL


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_engines_one_after_the_other_leave_nothing(tiny: TinyFiles) -> None:
    program = """
import ctypes, gc, os, sys, pydflash2
def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def use(n):
    for i in range(n):
        engine = pydflash2.load(sys.argv[1], sys.argv[2], n_threads=1, context_size=4096)
        engine.generate([65] * 100, max_tokens=10)
        if i % 2:
            engine.close()
use(10)
before, files = resident(), len(os.listdir("/proc/self/fd"))
use(30)
print(resident() - before, len(os.listdir("/proc/self/fd")) - files)
with pydflash2.load(sys.argv[1], sys.argv[2], n_threads=1, context_size=4096) as engine:
    engine.generate([65] * 100, max_tokens=10)
    print(resident() - before)
"""
    command = [sys.executable, "-c", program, *map(str, tiny.pair("chain"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    grown, files, one_engine = map(int, done.stdout.split())
    assert grown < one_engine / 4  # of 30 engines
    assert files == 0


AT_EXIT = """
import sys, threading, pydflash2
engine = pydflash2.load(sys.argv[1], sys.argv[2], n_threads=1)
begun = threading.Event()
def read():
    while True:
        for _ in engine.stream([65] * 300, max_tokens=50):
            begun.set()
if sys.argv[3] == "thread":
    threading.Thread(target=read, daemon=True).start()
    begun.wait(60)
else:
    stream = engine.stream("the cat", max_tokens=50)
    next(stream)
print("end")
"""


LEAVING = """
import sys, threading, pydflash2
def load():
    return pydflash2.load(sys.argv[1], sys.argv[2], n_threads=1)
if sys.argv[3] == "sys.exit inside with":
    with load() as engine:
        stream = engine.stream("the cat", max_tokens=50)
        next(stream)
        sys.exit(3)
elif sys.argv[3] == "sys.exit in a thread":
    def work():
        with load() as engine:
            next(engine.stream("the cat", max_tokens=50))
            sys.exit(4)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    sys.exit(3)
elif sys.argv[3] == "two engines":
    engine, other = load(), load()
    next(engine.stream("the cat", max_tokens=50))
    raise SystemExit(3)
else:
    engine = load()
    engine.itself = engine  # a cycle, which no reference count frees
    sys.modules["kept"] = engine
    sys.exit(3)
"""


@pytest.mark.parametrize("how", ["sys.exit inside with", "sys.exit in a thread", "two engines", "a cycle"])
def test_ways_to_leave(tiny: TinyFiles, how: str) -> None:
    command = [sys.executable, "-c", LEAVING, *map(str, tiny.pair("chain")), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize("what", ["stream", "thread"])
def test_an_engine_in_use_at_exit(tiny: TinyFiles, what: str) -> None:
    command = [sys.executable, "-c", AT_EXIT, *map(str, tiny.pair("chain")), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "end\n")
    if what == "stream":
        assert done.stderr == ""
    else:  # the daemon thread may live long enough to be told, and be cut off while it says so
        assert done.stderr == "" or done.stderr.startswith("Exception in thread")


# ---- the log ---------------------------------------------------------------------------------------------


def test_llama_cpps_log_goes_to_pythons(tiny: TinyFiles, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pydflash2"), pydflash2.load(*tiny.pair("chain"), n_threads=1):
        pass
    records = [record for record in caplog.records if record.name == "pydflash2"]
    assert any("qwen3" in record.getMessage() for record in records)
    assert {record.levelno for record in records} <= {
        logging.DEBUG,
        logging.INFO,
        logging.WARNING,
        logging.ERROR,
    }
    assert len({record.levelno for record in records}) > 1


def test_nothing_is_printed(tiny: TinyFiles, tmp_path: Path) -> None:
    program = "import sys, pydflash2; pydflash2.load(sys.argv[1], sys.argv[2]).generate('the', max_tokens=9)"
    command = [sys.executable, "-c", program, *map(str, tiny.pair("chain"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
