"""llama.cpp's server, and a program that times its drafter, on a pair."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.figures import Run
from compare.process import Paused


@dataclass(frozen=True)
class Pair:
    """A target, its head, and what every contender runs them with."""

    name: str
    target: Path
    head: Path
    context_size: int
    n_threads: int

    def options(self, width: int) -> list[str]:
        """llama.cpp's, for draft-dflash at this width; 0: the target alone.

        Threads are given for all four uses, since each has a default of its own.
        """
        threads = str(self.n_threads)
        options = [
            "-m",
            str(self.target),
            "-c",
            str(self.context_size),
            "-t",
            threads,
            "-tb",
            threads,
            "-np",
            "1",
        ]
        if width:
            options += [
                "-md",
                str(self.head),
                "--spec-type",
                "draft-dflash",
                "--spec-draft-n-max",
                str(width),
            ]
            options += ["-td", threads, "-tbd", threads]
        return options


def request(prompt: list[int], n: int) -> dict[str, Any]:
    """A greedy text by the cheapest chain that is greedy: the default one sorts a vocabulary for each row."""
    return {
        "prompt": prompt,
        "n_predict": n,
        "cache_prompt": False,
        "temperature": 0.0,
        "samplers": ["top_k"],
        "top_k": 1,
    }


class Server(Paused):
    """llama-server on a pair, at one width: its drafter computes blocks of the width it was started with."""

    def __init__(self, program: Path, pair: Pair, width: int, work: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command = [str(program), *pair.options(width), "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--cache-ram", "0"]
        super().__init__(command, work / f"server-{pair.name}-{width}.log", False, os.environ)
        try:
            with self:
                self._wait(120)
        except BaseException:
            self.close()
            raise

    def generate(self, prompt: list[int], n: int) -> Run:
        """Its own timings, so that nothing of HTTP is in them."""
        with self:
            return Run.of_timings(self._post("/completion", request(prompt, n)))

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise self.died()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
                return
            except OSError:  # refused, or 503 while it loads
                time.sleep(0.2)
        raise RuntimeError(f"llama-server was not ready after {seconds:.0f} s")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        call = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(call, timeout=1800) as reply:
                answer: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            raise RuntimeError(
                f"llama-server refused {path}: {error.read().decode(errors='replace')}"
            ) from None
        except OSError:
            raise self.died() from None
        return answer


def round_cost(
    program: Path, pair: Pair, width: int, prompt: list[int], rounds: int, work: Path, count: bool = False
) -> dict[str, Any]:
    """Milliseconds of each round's parts in llama.cpp, or with `count` the nodes of its drafter's graphs."""
    ids = work / "prompt-ids.txt"
    ids.write_text(" ".join(map(str, prompt)), encoding="utf-8")
    command = [str(program), str(ids), str(rounds), *(["--count"] if count else []), *pair.options(width)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            "\n".join([*done.stderr.splitlines()[-15:], f"round_cost failed ({done.returncode})"])
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
