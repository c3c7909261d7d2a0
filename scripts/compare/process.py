"""Processes that are measured one at a time: while one works the others are stopped, so none can spin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class Paused:
    """A child process that runs only inside `with`. POSIX; elsewhere it is left running, idle.

    Its stderr goes to `log`, whose end is shown when it dies.
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, pipes: bool, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=pipe,
                stdout=pipe,
                stderr=file,
                env=dict(environment),
                text=True,
            )

    def __enter__(self) -> Paused:
        self._signal("SIGCONT")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal("SIGSTOP")

    def close(self) -> None:
        self._signal("SIGCONT")
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def died(self) -> RuntimeError:
        """What to raise when it no longer answers."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return RuntimeError("\n".join([*lines[-15:], f"{self.process.args!r} ended; its log is {self._log}"]))

    def _signal(self, name: str) -> None:
        if os.name == "posix" and self.process.poll() is None:
            self.process.send_signal(getattr(signal, name))


class Worker(Paused):
    """A child that answers one line of JSON with another."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(command, log, True, os.environ if environment is None else environment)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Raises RuntimeError where the child failed, with what it said."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait(20)
            raise self.died()
        answer: dict[str, Any] = json.loads(line)
        return answer


def answer_requests(answers: Mapping[str, Any]) -> None:
    """The child's side of `Worker`: calls answers[what](**request) for each line."""
    # whatever a library prints must not get between the answers
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        out.write(json.dumps(answers[request.pop("what")](**request)) + "\n")
        out.flush()
