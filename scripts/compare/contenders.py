"""The two contenders that are Python packages, each in a process of its own: ours, and xllamacpp."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from compare.figures import Run
from compare.process import Worker
from compare.server import Pair, request

HERE = Path(__file__).parent
XLLAMACPP = "xllamacpp==2026.10.11549"


class Ours:
    """pydflash2. Several engines live in one process, by name."""

    def __init__(self, work: Path, name: str) -> None:
        self._worker = Worker([sys.executable, HERE / "ours_worker.py"], work / f"ours-{name}.log")

    def load(self, name: str, pair: Pair, head: bool = True, **options: Any) -> dict[str, Any]:
        options |= {"context_size": pair.context_size, "n_threads": pair.n_threads}
        with self._worker:
            return self._worker.ask(
                what="load",
                name=name,
                target=str(pair.target),
                head=str(pair.head) if head else None,
                options=options,
            )

    def generate(self, name: str, prompt: list[int], n: int, width: int) -> dict[str, Any]:
        with self._worker:
            return self._worker.ask(what="generate", name=name, prompt=prompt, n=n, width=width)

    def rounds(self, name: str, prompt: list[int], width: int, n: int) -> dict[str, Any]:
        with self._worker:
            return self._worker.ask(what="rounds", name=name, prompt=prompt, width=width, n=n)

    def close(self) -> None:
        self._worker.close()


class XLlamaCpp:
    """xllamacpp on a pair, at one width."""

    def __init__(self, python: Path, pair: Pair, width: int, work: Path) -> None:
        log = work / f"xllamacpp-{pair.name}-{width}.log"
        self._worker = Worker([python, HERE / "xllamacpp_worker.py"], log)
        try:
            with self._worker:
                self._worker.ask(
                    what="load",
                    target=str(pair.target),
                    head=str(pair.head),
                    width=width,
                    context_size=pair.context_size,
                    n_threads=pair.n_threads,
                )
        except BaseException:
            self.close()
            raise

    def generate(self, prompt: list[int], n: int) -> Run:
        with self._worker:
            return Run.of_timings(self._worker.ask(what="generate", body=request(prompt, n)))

    def close(self) -> None:
        self._worker.close()


def xllamacpp_python(work: Path) -> Path | str:
    """The interpreter of an environment with xllamacpp's wheel, which is made once; or why there is none."""
    folder = work / "xllamacpp"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*install, "--only-binary=:all:", XLLAMACPP], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        return (
            f"{XLLAMACPP} has no wheel for this interpreter and platform, or no index is in reach: {reason}"
        )
    works = subprocess.run([python, "-c", "import xllamacpp"], capture_output=True, text=True)
    return python if works.returncode == 0 else f"{XLLAMACPP} does not import: {works.stderr.strip()[-200:]}"
