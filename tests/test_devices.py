"""Which devices a pair runs on: those asked for, or an error with a reason; and what was used is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pydflash2
from pydflash2 import BackendUnavailableError, native
from pydflash2.cli import main
from pydflash2.devices import Placement
from tiny.files import TinyFiles

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


@pytest.mark.parametrize(
    ("target", "head", "said"),
    [
        (("CUDA0", "CPU"), "CUDA0", "target on CUDA0, the head beside it"),
        (("CUDA0", "CPU"), "CPU", "target on CUDA0, the head on CPU"),
        (("CPU",), "CUDA0", "target on CPU, the head on CUDA0"),
        (("CUDA0", "CUDA1", "CPU"), "CUDA1", "target on CUDA0, CUDA1, the head on CUDA1"),
    ],
)
def test_what_is_said(target: tuple[str, ...], head: str, said: str) -> None:
    assert str(Placement(target, head)) == said


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


# ---- GPUs: one, two, and a head elsewhere ----------------------------------------------------------------


def text_on(files: tuple[Path, Path], **options: object) -> tuple[list[int], Placement]:
    """Greedy, with drafts of 3. Short: a software device takes its time."""
    with pydflash2.load(
        *files,
        context_size=128,
        n_threads=1,
        **{"kv_type": "f32", "drafter_kv_type": "f32", **options},  # type: ignore[arg-type]
    ) as engine:
        result = engine.generate(PROMPT, max_tokens=12, max_draft_tokens=3, lookup="off")
        assert result.stats.rounds
        assert result.tokens == engine.generate(PROMPT, max_tokens=12, speculate=False).tokens
        return result.tokens, engine.placement


@needs_gpu
@pytest.mark.parametrize(("name", "vocabulary"), [("plain", "full"), ("gemma3", 64), ("chain", 64)])
def test_the_head_runs_beside_the_target_in_one_part(
    name: str, vocabulary: int | str, tiny: TinyFiles
) -> None:
    expected, _ = text_on(tiny.pair(name), device="cpu")
    found, placement = text_on(tiny.pair(name), device=GPUS[0], draft_vocabulary=vocabulary)
    assert found == expected
    assert (placement.target, placement.head) == ((GPUS[0], "CPU"), GPUS[0])
    assert (placement.splits, placement.fallen_back) == (1, ())
    tables = {place.name: place for place in placement.tensors if "(target's)" in place.name}
    if "output.weight (target's)" in tables:
        assert tables["output.weight (target's)"].borrowed == (vocabulary == "full")
    assert {place.device for place in placement.tensors if place.name not in tables} == {GPUS[0]}


@needs_gpu
@pytest.mark.parametrize(("name", "vocabulary"), [("plain", "full"), ("tied-target", 64)])
def test_a_head_away_from_its_target_has_a_copy_of_the_table(
    name: str, vocabulary: int | str, tiny: TinyFiles
) -> None:
    expected, _ = text_on(tiny.pair(name), device="cpu")
    for device, home in ((GPUS[0], "cpu"), ("cpu", GPUS[0])):
        found, placement = text_on(
            tiny.pair(name), device=device, draft_device=home, draft_vocabulary=vocabulary
        )
        assert found == expected
        assert placement.head == (GPUS[0] if home == GPUS[0] else "CPU")
        assert (placement.splits, placement.fallen_back) == (1, ())
        table = next(place for place in placement.tensors if place.name.startswith("output.weight"))
        assert (table.device, table.borrowed) == (placement.head, False)


@needs_gpu
def test_auto_takes_the_gpu_and_half_a_target_can_stay_behind(tiny: TinyFiles) -> None:
    expected, _ = text_on(tiny.pair("plain"), device="cpu")
    found, placement = text_on(tiny.pair("plain"))
    assert (found, placement.target[0], placement.head in GPUS) == (expected, GPUS[0], True)
    found, placement = text_on(tiny.pair("plain"), device=GPUS[0], n_gpu_layers=2)
    assert (found, placement.head) == (expected, GPUS[0])
    with pytest.raises(ValueError, match="no layer on it"):
        placed(tiny.pair("plain"), device=GPUS[0], n_gpu_layers=0)


@needs_gpu
def test_devices_are_named_in_several_ways(tiny: TinyFiles) -> None:
    backend = next(device["backend"] for device in native.devices() if device["is_gpu"])
    for name in (GPUS[0].lower(), backend, f"{backend.lower()}:0"):
        assert placed(tiny.pair("plain"), device=name).target[0] == GPUS[0]
    with pytest.raises(
        BackendUnavailableError, match=f"{backend} has {len(GPUS)}, counted from 0: {GPUS[0]}"
    ):
        placed(tiny.pair("plain"), device=f"{backend}:99")
    with pytest.raises(ValueError, match="twice"):
        placed(tiny.pair("plain"), device=[GPUS[0], f"{backend}:0"])


@needs_two
@pytest.mark.parametrize(
    ("mode", "vocabulary"), [("layer", "full"), ("layer", 64), ("none", 64), ("tensor", "full")]
)
def test_several_gpus(mode: str, vocabulary: int | str, tiny: TinyFiles) -> None:
    # llama.cpp spreads tensors only with its one operation for attention, which a cache in F32 goes without.
    options = {"kv_type": "f16" if mode == "tensor" else "f32", "draft_vocabulary": vocabulary}
    expected, _ = text_on(tiny.pair("plain"), device="cpu", **options)
    for home in (None, GPUS[0]):
        found, placement = text_on(
            tiny.pair("plain"), device=GPUS[:2], split_mode=mode, draft_device=home, **options
        )
        assert found == expected
        assert (placement.splits, placement.fallen_back) == (1, ())
        if home is None:
            assert placement.head == GPUS[0 if mode == "none" else 1]
