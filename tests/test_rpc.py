"""Targets on other machines, by llama.cpp's RPC: two servers on this one."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import pydflash2
from pydflash2 import BackendUnavailableError
from tiny.files import TinyFiles

PROGRAM = Path(os.environ.get("PYDFLASH2_TEST_BUILD", "")) / "rpc_server"
needs_server = pytest.mark.skipif(
    "PYDFLASH2_TEST_BUILD" not in os.environ or not PROGRAM.is_file(),
    reason="the programs of tests/native are not built (PYDFLASH2_TEST_BUILD)",
)
PROMPT = "ABC ABC AB"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """Devices of two servers."""
    with ExitStack() as stack:
        names = []
        for _ in range(2):
            port = free_port()
            process = stack.enter_context(
                subprocess.Popen([PROGRAM, f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL)
            )
            stack.callback(process.kill)
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None
                    time.sleep(0.1)
            names.append(f"rpc:127.0.0.1:{port}")
        yield names


@needs_server
@pytest.mark.parametrize("name", ["plain", "tied-target", "gemma3", "chain"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_target_on_other_machines(name: str, n: int, servers: list[str], tiny: TinyFiles) -> None:
    """The same text as here; the head stays here, with rows of the output table from the file."""
    options = {"context_size": 128, "n_threads": 1, "kv_type": "f32", "drafter_kv_type": "f32"}
    target, head = tiny.pair(name)
    with pydflash2.load(target, head, device="cpu", **options) as engine:
        expected = engine.generate(PROMPT, max_tokens=40, max_draft_tokens=3, lookup="off")
    with pydflash2.load(target, head, device=servers[:n], draft_vocabulary="full", **options) as engine:
        found = engine.generate(PROMPT, max_tokens=40, max_draft_tokens=3, lookup="off")
        placement = engine.placement
    assert found.tokens == expected.tokens
    assert found.stats.accepted == expected.stats.accepted
    assert [device[:3] for device in placement.target] == ["RPC"] * n + ["CPU"]
    assert (placement.head, placement.splits) == ("CPU", 1)
    table = next(place for place in placement.tensors if place.name.startswith("output.weight"))
    assert (table.device, table.borrowed) == ("CPU", False)


@needs_server
def test_a_head_on_another_machine_is_refused(servers: list[str], tiny: TinyFiles) -> None:
    with pytest.raises(ValueError, match="every draft would wait for the network"):
        pydflash2.load(*tiny.pair("plain"), device="cpu", draft_device=servers[0])


def test_nobody_there(tiny: TinyFiles) -> None:
    with pytest.raises(BackendUnavailableError, match=r"can't be reached.*rpc-server"):
        pydflash2.load(*tiny.pair("plain"), device=f"rpc:127.0.0.1:{free_port()}")


@pytest.mark.parametrize("name", ["rpc:", "rpc:host", "rpc:host:", "rpc:host:x", "rpc::1", "rpc:host:70000"])
def test_what_is_no_address(name: str, tiny: TinyFiles) -> None:
    with pytest.raises(ValueError, match="give rpc:HOST:PORT"):
        pydflash2.load(*tiny.pair("plain"), device=name)


def test_someone_else_there(tiny: TinyFiles) -> None:
    """A service that speaks another protocol: an error, and the process lives."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            for _ in range(2):  # the look whether anyone is there, then llama.cpp
                connection, _ = listener.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        name = f"rpc:127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BackendUnavailableError, match="no devices at"):
            pydflash2.load(*tiny.pair("plain"), device=name)
        thread.join(10)
    with pydflash2.load(*tiny.pair("plain"), device="cpu") as engine:
        assert engine.generate(PROMPT, max_tokens=2).tokens
