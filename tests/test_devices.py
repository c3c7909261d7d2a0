"""Which devices a pair runs on: what is asked for is used, or refused with a reason; and what was used is said."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pydflash2
from pydflash2 import BackendUnavailableError, native
from pydflash2.cli import main
from pydflash2.devices import Placement
from tiny.files import TinyFiles
from tiny.lattice import assert_same_lattice
from tiny.native import DEVICE, Native
from tiny.numbers import token_ids

PROMPT = "ABC ABC AB"
BACK_ENDS = {device["backend"] for device in native.devices()}
GPUS = [device["name"] for device in native.devices() if device["is_gpu"]]
needs_gpu = pytest.mark.skipif(not GPUS, reason="no GPU's back end in this build, or no device of it")
needs_two = pytest.mark.skipif(len(GPUS) < 2, reason="fewer than two GPUs")


def placed(files: tuple[Path, Path], **options: object) -> Placement:
    with pydflash2.load(*files, context_size=64, n_threads=1, **options) as engine:  # type: ignore[arg-type]
        assert engine.generate(PROMPT, max_tokens=4).tokens
        return engine.placement


# ---- the CPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "CPU", ["cpu"]])
def test_the_cpu(device: str | list[str], tiny: TinyFiles) -> None:
    found = placed(tiny.pair("plain"), device=device)
    assert (found.target, found.head, found.splits, found.fallen_back) == (("CPU",), "CPU", 1, ())
    assert {place.device for place in found.operations} == {"CPU"}
    names = {place.name for place in found.tensors}
    assert {"fc.weight", "blk.0.attn_q.weight", "output.weight (target's)"} <= names
    assert str(found) == "target on CPU, the head beside it"


def test_without_a_head(tiny: TinyFiles) -> None:
    with pydflash2.load(tiny.target("qwen3"), None, device="cpu") as engine:
        assert engine.placement == Placement(("CPU",))
        assert str(engine.placement) == "target on CPU"


def test_every_tensor_of_the_head_has_a_place(tiny: TinyFiles) -> None:
    """Those in the file, and what is borrowed; its bytes are the file's."""
    import gguf

    target, head = tiny.pair("plain")
    fields = {tensor.name: tensor for tensor in gguf.GGUFReader(head).tensors}
    tensors = placed((target, head), device="cpu").tensors
    own = {place.name: place for place in tensors if "(target's)" not in place.name}
    assert {name: place.bytes for name, place in own.items()} == {
        name: int(tensor.n_bytes) for name, tensor in fields.items()
    }
    assert not any(place.borrowed for place in own.values())


# ---- what can't be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"device": "tpu"},
            BackendUnavailableError,
            "'tpu' was asked for, but this build has no such back end",
        ),
        ({"device": "tpu:0"}, BackendUnavailableError, "'tpu:0' was asked for"),
        ({"device": "cpu:7"}, BackendUnavailableError, "CPU has 1, counted from 0"),
        ({"device": "cpu:"}, ValueError, "device is 'cpu:': give auto, cpu, a back end"),
        ({"device": ":0"}, ValueError, "device is ':0'"),
        ({"device": "cpu:9999"}, ValueError, "device is 'cpu:9999'"),
        ({"device": "cpu:-1"}, ValueError, "device is 'cpu:-1'"),
        ({"device": ""}, ValueError, "device is ''"),
        ({"device": []}, ValueError, r"device is \[\]"),
        ({"device": ["auto", "cpu"]}, ValueError, "device is"),
        ({"device": ["cpu", "cpu"]}, ValueError, "names CPU among others"),
        ({"device": 3}, TypeError, "device is 3"),
        ({"device": [3]}, TypeError, r"device is \[3\]"),
        ({"device": "a\0b"}, TypeError, "device is"),
        ({"device": "x" * 300}, ValueError, "device is"),
        ({"device": "cpu", "n_gpu_layers": 2}, ValueError, "device is the CPU, and 2 layers"),
        ({"draft_device": "tpu"}, BackendUnavailableError, "'tpu' was asked for"),
        ({"draft_device": 1}, TypeError, "draft_device is 1"),
        ({"split_mode": "rows"}, ValueError, "split_mode is 'rows'"),
        ({"device": "cpu", "split_mode": "tensor"}, BackendUnavailableError, 'split_mode "tensor"'),
        ({"device": "cpu", "split_mode": "row"}, BackendUnavailableError, 'split_mode "row"'),
        ({"device": "cpu", "tensor_split": [1]}, ValueError, "tensor_split has 1 shares for 0 devices"),
        ({"tensor_split": [0, 0]}, ValueError, "tensor_split is"),
        ({"tensor_split": [-1]}, ValueError, "tensor_split is -1"),
        ({"tensor_split": [float("nan")]}, ValueError, "tensor_split is nan"),
    ],
)
def test_refusals(options: dict[str, object], error: type[Exception], message: str, tiny: TinyFiles) -> None:
    with pytest.raises(error, match=message):
        placed(tiny.pair("plain"), **options)


@pytest.mark.parametrize("name", ["cuda:0", "metal", "vulkan:0", "rocm", "sycl:1", "rpc:localhost:1"])
def test_a_device_that_is_not_there_is_no_silent_cpu(name: str, tiny: TinyFiles) -> None:
    backend = {"cuda": "CUDA", "metal": "MTL", "vulkan": "Vulkan", "rocm": "ROCm", "sycl": "SYCL"}
    if backend.get(name.partition(":")[0]) in BACK_ENDS:
        pytest.skip("it is there")
    with pytest.raises(BackendUnavailableError, match=name):
        placed(tiny.pair("plain"), device=name)


def test_the_command_line(tiny: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    target, head = tiny.pair("plain")
    pair = ["-m", str(target), "-d", str(head)]
    assert main(["generate", *pair, PROMPT, "-n", "2", "--device", "tpu:0"]) == 1
    assert "'tpu:0' was asked for" in capsys.readouterr().err
    assert main(["generate", *pair, PROMPT, "-n", "2", "-dev", "cpu", "-devd", "cpu"]) == 0
    assert capsys.readouterr().err.startswith("pydflash2: target on CPU, the head beside it\n")
    assert main(["doctor", str(target), str(head), "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "target on CPU, the head beside it" in output
    assert "operations in one part, all on CPU" in output
    assert main(["doctor", str(target), str(head), "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["placement"]
    assert (record["head"], record["splits"]) == ("CPU", 1)
    assert {place["device"] for place in record["operations"]} == {"CPU"}
