"""Worker processes that may crash or hang: seen, counted, replaced."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

_RENEW_AFTER = 2000  # jobs


class Worker:
    """A process that answers each line with a line of JSON."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, as long as the worker
        self._n_done = 0

    def ask(self, line: str, timeout: float) -> dict[str, Any]:
        """The answer; {"verdict": "crash" or "hang", "detail": ...} where none came."""
        if self._process is None or self._n_done >= _RENEW_AFTER:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._n_done += 1
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            answer = _read_line(process.stdout.fileno(), timeout)
        except (BrokenPipeError, EOFError):
            code = process.wait()
            self._process = None
            return {"verdict": "crash", "detail": f"exit {code}: {self._last_words()}"}
        except TimeoutError:
            self.stop()
            return {"verdict": "hang", "detail": f"no answer in {timeout:g} seconds: {self._last_words()}"}
        result: dict[str, Any] = json.loads(answer)
        return result

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _start(self) -> None:
        self.stop()
        self._n_done = 0
        self._errors.seek(0)
        self._errors.truncate()
        environment = os.environ | {
            "GGML_NO_BACKTRACE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",  # threads that spin for each other look hung on a busy machine
        }
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment
        )

    def _last_words(self) -> str:
        """What the process said before it ended: an assertion's line, and where Python was."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").splitlines()
        return " | ".join(line.strip() for line in lines if line.strip())[-2000:][:400]


def _read_line(descriptor: int, timeout: float) -> bytes:
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(timeout):
                raise TimeoutError
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise EOFError
            line += piece
    return line


def run_all(
    jobs: Iterable[str], make_command: Callable[[Path], list[str]], n_workers: int, timeout: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every job with its answer, as they come."""
    waiting: Queue[str] = Queue()
    answers: Queue[tuple[str, dict[str, Any]] | None] = Queue()
    for job in jobs:
        waiting.put(job)
    stopping = threading.Event()

    def serve() -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            worker = Worker(make_command(Path(folder)))
            try:
                while not stopping.is_set():
                    job = waiting.get_nowait()
                    answers.put((job, worker.ask(job, timeout)))
            except Empty:
                pass
            finally:
                worker.stop()
                answers.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(n_workers)]
    for thread in threads:
        thread.start()
    try:
        n_running = n_workers
        while n_running:
            answer = answers.get()
            if answer is None:
                n_running -= 1
            else:
                yield answer
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
