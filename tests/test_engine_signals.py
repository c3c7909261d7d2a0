"""Signals: Ctrl-C at any point leaves an engine that answers, and handlers may close it."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import pydflash2
from pydflash2 import native
from tiny.files import TinyFiles

PROMPT = "the cat sat on"


@pytest.fixture
def engine(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, batch_size=8) as engine:
        yield engine


class Look:
    """Ctrl-C the n-th time that Python looks for it: where a Python function begins or a C function ends."""

    def __init__(self, n: int | None = None) -> None:
        self.n, self.seen = n, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self.n:
                raise KeyboardInterrupt

    def __enter__(self) -> Look:
        gc.disable()  # an interrupt that finalizers swallow is no interrupt
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()


def steps(engine: pydflash2.Engine) -> list[int]:
    """A text by hand."""
    tokens = [engine.prefill(PROMPT)]
    while len(tokens) < 3:
        tokens += engine.verify(engine.draft()).tokens
    return tokens[:3]


@pytest.mark.parametrize("how", ["generate", "steps"])
def test_ctrl_c_at_every_point(engine: pydflash2.Engine, how: str) -> None:
    def run() -> list[int]:
        return (
            steps(engine)
            if how == "steps"
            else engine.generate(PROMPT, max_tokens=3, max_draft_tokens=7).tokens
        )

    expected = run()
    with Look() as look:
        run()
    assert look.seen > 50
    for n in range(1, look.seen - 1):  # the last two are Look's own
        with pytest.raises(KeyboardInterrupt) as interrupt, Look(n):
            run()
        # The traceback, with all it holds, is still alive, as it stays in every interactive session.
        assert run() == expected, f"after point {n}, {interrupt.traceback[-1]}"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an interval timer")
def test_ctrl_c_at_random_times(engine: pydflash2.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.generate(PROMPT, max_tokens=12).tokens
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    rng = random.Random(1)
    try:
        for _ in range(60):
            with pytest.raises(KeyboardInterrupt) as interrupt:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.03))
                while True:
                    engine.generate(PROMPT, max_tokens=12)
            assert engine.generate(PROMPT, max_tokens=12).tokens == expected
            del interrupt
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- during a native call --------------------------------------------------------------------------------


def during(monkeypatch: pytest.MonkeyPatch, function: str, action: Callable[..., None]) -> None:
    """Has something happen at the end of each call of a native function, before its caller goes on."""
    real = native.lib

    class Lib:
        def __getattr__(self, name: str) -> Any:
            found = getattr(real, name)
            if name != function:
                return found

            def call(*arguments: Any) -> Any:
                result = found(*arguments)
                action(*arguments)
                return result

            return call

    monkeypatch.setattr(native, "lib", Lib())


def test_ctrl_c_in_a_load(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was loaded before the interrupt is freed, whichever call it hit."""
    for function in ("pd2_engine_load", "pd2_sequence_create", "pd2_engine_head_info"):
        loaded: list[Any] = []
        freed: list[Any] = []
        with monkeypatch.context() as patch:
            during(patch, "pd2_engine_free", lambda engine, freed=freed: engine and freed.append(engine))
            during(patch, "pd2_engine_load", lambda _, engine, loaded=loaded: loaded.append(engine[0]))
            during(patch, function, lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                pydflash2.load(*tiny.pair("chain"), n_threads=1)
        assert loaded == freed
        assert loaded != [native.ffi.NULL]


@pytest.mark.parametrize("function", ["pd2_sequence_prefill", "pd2_sequence_round", "pd2_token_bytes"])
def test_a_signal_handler_closes_the_engine(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """As servers do on SIGTERM. The handler runs amid a native call of its own thread, which ends first."""
    engine = pydflash2.load(*tiny.pair("chain"), n_threads=1)
    freed: list[Any] = []
    own = engine._native._handles.engine[0]  # another test's engine may be collected meanwhile
    before = signal.signal(signal.SIGTERM, lambda *_: engine.close())
    try:
        during(monkeypatch, "pd2_engine_free", lambda pointer: pointer == own and freed.append(pointer))
        during(monkeypatch, function, lambda *_: freed or signal.raise_signal(signal.SIGTERM))
        with pytest.raises(pydflash2.EngineClosedError, match=r"^the engine is closed: load a new one$"):
            engine.generate(PROMPT, max_tokens=50)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(freed) == 1


def test_a_signal_handler_cannot_use_the_engine(
    engine: pydflash2.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate(PROMPT, max_tokens=50).tokens
    said: list[str] = []

    def handler(*_: object) -> None:
        for call in (lambda: engine.tokens, lambda: engine.generate(PROMPT), lambda: engine.tokenize("a")):
            with pytest.raises(pydflash2.EngineBusyError) as busy:
                call()
            said.append(str(busy.value))

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with monkeypatch.context() as patch:
            during(patch, "pd2_sequence_round", lambda *_: said or signal.raise_signal(signal.SIGTERM))
            assert engine.generate(PROMPT, max_tokens=50).tokens == expected
    finally:
        signal.signal(signal.SIGTERM, before)
    amid = "the engine is amid a call that this signal handler or finalizer interrupts: let it end first"
    assert said == [amid, said[1], amid]
    assert said[1].startswith("the engine is busy with another call")


def test_a_finalizer_closes_the_engine(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may come amid a native call, and may find an object whose `__del__` closes."""
    engine = pydflash2.load(*tiny.pair("chain"), n_threads=1)

    class Service:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            engine.close()

    Service()
    during(monkeypatch, "pd2_sequence_round", lambda *_: gc.collect() and None)
    with pytest.raises(pydflash2.EngineClosedError):
        engine.generate(PROMPT, max_tokens=50)
    assert engine._native._handles.engine[0] == native.ffi.NULL
