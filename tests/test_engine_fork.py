"""Forks: a child may ignore its parent's engines and load its own; the parent goes on as if nothing was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tiny.files import TinyFiles

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system doesn't fork")

# Each program gets target, head, and the threads of the parent's and of the child's engine.
START = """
import multiprocessing, os, sys, threading
import pydflash2

def load(n_threads):
    return pydflash2.load(sys.argv[1], sys.argv[2], n_threads=int(n_threads), context_size=256)

def text(engine):
    return engine.generate("the cat sat on", max_tokens=8).text

engine = load(sys.argv[3])
expected = text(engine)
stream = engine.stream("the cat sat on", max_tokens=8)
next(stream)  # the child inherits an engine that is busy
"""
END = """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
stream.close()
print(process.exitcode, text(engine) == expected)
"""


def run(program: str, tiny: TinyFiles, parent: int = 2, child: int = 2) -> str:
    """What it prints. A child that hangs ends with the time out, and its parent's group with it."""
    arguments = [*map(str, tiny.pair("chain")), str(parent), str(child)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        raise
    assert err == ""
    return out


@pytest.mark.parametrize("parent", [1, 2])
def test_a_child_that_does_nothing(tiny: TinyFiles, parent: int) -> None:
    assert run(START + "def child(): pass\n" + END, tiny, parent) == "0 True\n"


def test_a_child_that_leaves_by_sys_exit(tiny: TinyFiles) -> None:
    """Unlike multiprocessing's, it runs what is registered for the exit."""
    program = START + (
        "child = os.fork()\n"
        "if child == 0: sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "stream.close(); print(text(engine) == expected)\n"
    )
    assert run(program, tiny) == "7\nTrue\n"


def test_a_child_that_uses_its_parents_engine(tiny: TinyFiles) -> None:
    program = (
        START
        + """
def child():
    looks = [lambda: engine.tokens, engine.__enter__, engine.draft]
    for call in [lambda: text(engine), lambda: next(stream), *looks]:
        try:
            call()
        except pydflash2.EngineClosedError as error:
            print(str(error).replace(str(os.getppid()), "N"), flush=True)
    engine.close()
"""
        + END
    )
    message = "the engine belongs to process N, which this one is a fork of: load another one here\n"
    assert run(program, tiny) == message * 5 + "0 True\n"


LOADS = """
def child():
    with load(sys.argv[4]) as own:
        print(text(own) == expected, flush=True)
"""


@pytest.mark.parametrize("child", [1, 2])
@pytest.mark.parametrize("parent", [1, 2])
def test_a_child_that_loads_its_own(tiny: TinyFiles, parent: int, child: int) -> None:
    """OpenMP's idle threads, which the child's first computation would wait for, aren't in the child."""
    assert run(START + LOADS + END, tiny, parent, child) == "True\n0 True\n"


def test_a_fork_while_other_threads_compute(tiny: TinyFiles) -> None:
    """The child inherits locks that are closed, and nobody who would open them."""
    program = (
        START
        + LOADS.replace("    with", "    engine.close()\n    with")
        + """
stream.close()
stop = threading.Event()
def work():
    while not stop.is_set():
        text(engine)
worker = threading.Thread(target=work)
worker.start()
for _ in range(5):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
stop.set()
worker.join()
print(process.exitcode, text(engine) == expected)
"""
    )
    assert run(program, tiny) == "True\n" * 5 + "0 True\n"
