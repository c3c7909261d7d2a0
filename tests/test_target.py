"""The target: taps, rollback, windows, and what it says when it can't."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from pydflash2.errors import (
    BackendUnavailableError,
    ContextOverflowError,
    HeadMismatchError,
    ModelFileError,
    NativeError,
    OutOfMemoryError,
)
from pydflash2.native import TAPS, NativeEngine, ffi, lib
from tiny import head_file, targets
from tiny.heads import FULL, Head
from tiny.numbers import token_ids
from tiny.targets import TARGETS

Floats = npt.NDArray[np.float32]

WIRED = ["qwen3", "llama", "qwen3moe", "qwen35", "qwen3next"]
UNWIRED = ["gemma3", "qwen2", "phi3"]
BATCH = 32


class Target(NativeEngine):
    """A native engine with the rows of its last decode in view."""

    def logits(self) -> Floats:
        """[n_rows, n_vocab]"""
        return self._rows(lib.pd2_sequence_logits, self.target.n_vocab)

    def features(self) -> Floats:
        """[n_rows, n_taps * n_embd]"""
        return self._rows(lib.pd2_sequence_features, self.head.n_taps * self.target.n_embd)

    def _rows(self, read: Callable[..., int], width: int) -> Floats:
        data, n_rows = ffi.new("float **"), ffi.new("int32_t *")
        assert read(self._sequence, data, n_rows) == lib.PD2_OK
        if n_rows[0] == 0:
            return np.empty((0, width), np.float32)
        return np.frombuffer(ffi.buffer(data[0], 4 * n_rows[0] * width), np.float32).reshape(-1, width).copy()

    def judge(self, draft: Sequence[int]) -> None:
        self.verify_tokens(draft)

    def read(self, tokens: Sequence[int], drafting: bool = False) -> int:
        """Prefills a prompt; returns how many of its tokens were in the cache."""
        reused = self.begin(tokens, drafting)
        while self.prefill():
            pass
        return reused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target")


class Loader:
    """Makes tiny pairs on demand, opens them, and closes what it opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[Target] = []

    def __call__(self, name: str, taps: Sequence[int] = (), kind: str = "f32", **options: Any) -> Target:
        target = self.folder / f"{name}-{kind}.gguf"
        if not target.exists():
            targets.write(TARGETS[name], target, kind)
        head = None
        if taps:
            head = self.folder / f"{name}-{'-'.join(map(str, taps))}.gguf"
            if not head.exists():
                head_file.write(Head(name, seed=1, taps=tuple(taps), layers=(FULL,)), head)
        return self.file(target, head, **options)

    def file(self, target: Path, head: Path | None = None, mode: str = "auto", **options: Any) -> Target:
        defaults: dict[str, Any] = {
            "context_size": 0,
            "batch_size": BATCH,
            "n_threads": 1,
            "n_gpu_layers": 0,
            "kv_type": "f32",
            "drafter_kv_type": "f32",
            "use_mmap": True,
        }
        engine = Target(target, head, taps=TAPS[mode], **defaults | options)
        self.engines.append(engine)
        return engine


@pytest.fixture
def load(folder: Path) -> Iterator[Loader]:
    loader = Loader(folder)
    yield loader
    for engine in loader.engines:
        engine.close()


def prompt(n: int, seed: int = 7) -> list[int]:
    return token_ids(seed, n, 3, 250)


# ---- taps ------------------------------------------------------------------------------------------------


def features_of(target: Target) -> Floats:
    """Features of a prefill's last chunk, [8, n_taps * n_embd]."""
    target.read(prompt(BATCH + 8), drafting=True)
    return target.features()


@pytest.mark.parametrize("name", WIRED)
def test_wired_taps_and_the_callback_read_the_same_bits(name: str, load: Loader) -> None:
    wired = load(name, taps=(2, 0, 1), mode="wired", kv_type="f16")
    callback = load(name, taps=(2, 0, 1), mode="callback", kv_type="f16")
    assert wired.target.taps_wired and not callback.target.taps_wired
    width = 3 if wired.target.rollback_limit else 0
    for engine in (wired, callback):
        engine.read(prompt(40), drafting=True)
    assert wired.features().shape == (8, 3 * TARGETS[name].n_embd)  # the last chunk of 32 + 8
    np.testing.assert_array_equal(wired.features(), callback.features())
    np.testing.assert_array_equal(wired.logits(), callback.logits())
    for engine in (wired, callback):
        engine.judge([9, 8, 7][:width])
    assert wired.features().shape[0] == width + 1
    np.testing.assert_array_equal(wired.features(), callback.features())


def test_taps_come_in_the_order_of_fc(load: Loader) -> None:
    n = TARGETS["qwen3"].n_embd
    forward, backward = (features_of(load("qwen3", taps=taps)) for taps in ((0, 3), (3, 0)))
    np.testing.assert_array_equal(forward[:, :n], backward[:, n:])
    np.testing.assert_array_equal(forward[:, n:], backward[:, :n])
    assert not np.array_equal(forward[:, :n], forward[:, n:])


def test_a_tap_is_its_layers_output(load: Loader) -> None:
    """Not its input: a target cut after that layer ends in the same hidden states, but for the final norm."""
    target = TARGETS["qwen3"]
    tapped = features_of(load("qwen3", taps=(1,)))

    weights = targets.tensors(target)
    norm = weights["output_norm.weight"].reshape(-1)
    rms = np.sqrt((tapped.astype(np.float64) ** 2).mean(1, keepdims=True) + target.rms_eps)
    expected = tapped / rms * norm

    TARGETS["qwen3-cut"] = replace(target, n_layer=2)  # the same seed makes the same layers
    try:
        final = features_of(load("qwen3-cut", taps=(1,)))
        assert final.shape == (8, target.n_embd)
        np.testing.assert_allclose(final, expected, rtol=1e-4, atol=1e-5)
    finally:
        del TARGETS["qwen3-cut"]


@pytest.mark.parametrize("name", [*WIRED, *UNWIRED])
def test_the_last_layer_is_read_after_the_final_norm(name: str, load: Loader) -> None:
    target = TARGETS[name]
    engine = load(name, taps=(1, target.n_layer - 1))
    assert engine.target.taps_wired == (name in WIRED)
    weights = targets.tensors(target)
    output = weights["token_embd.weight" if target.tied else "output.weight"]  # [n_vocab, n_embd]

    engine.read(prompt(40), drafting=True)
    final = engine.features()[:, target.n_embd :]
    assert final.shape[0] == 8
    np.testing.assert_allclose(final[-1] @ output.T, engine.logits()[0], rtol=1e-4, atol=1e-4)
    engine.judge([5] if engine.target.rollback_limit else [])
    final = engine.features()[:, target.n_embd :]
    np.testing.assert_allclose(final @ output.T, engine.logits(), rtol=1e-4, atol=1e-4)


def test_features_are_not_read_when_nobody_drafts(load: Loader) -> None:
    for mode in ("wired", "callback"):
        engine = load("qwen3", taps=(0, 4), mode=mode)
        engine.read(prompt(40))
        assert engine.features().shape[0] == 0
        assert engine.logits().shape[0] == 1


@pytest.mark.parametrize("name", UNWIRED)
def test_wired_taps_are_refused_where_the_graph_has_none(name: str, load: Loader) -> None:
    with pytest.raises(
        ValueError, match=rf"wired taps were asked for, but llama.cpp's graph for {name} does not"
    ):
        load(name, taps=(0,), mode="wired")
    assert not load(name, taps=(0,)).target.taps_wired


# ---- rollback --------------------------------------------------------------------------------------------


def after_rejection(engine: Target, n_prompt: int, draft: Sequence[int]) -> tuple[list[int], Floats, Floats]:
    """Rejects a draft, then verifies another: tokens before it, its logits and features."""
    engine.read(prompt(n_prompt), drafting=True)
    engine.judge(draft)
    tokens = engine.tokens()
    engine.judge([30, 40, 50])
    return tokens, engine.logits(), engine.features()


@pytest.mark.parametrize("name", ["qwen3", "qwen35", "gemma3"])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_what_was_rejected_leaves_no_trace(name: str, width: int, load: Loader) -> None:
    engine = load(name, taps=(0, 2))
    tokens, logits, features = after_rejection(engine, 40, prompt(width, seed=99))

    fresh = load(name, taps=(0, 2))
    fresh.read(tokens[:-1], drafting=True)
    assert fresh.tokens() == tokens, "the greedy continuation itself"
    fresh.judge([30, 40, 50])
    np.testing.assert_allclose(logits, fresh.logits(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(features, fresh.features(), rtol=1e-3, atol=1e-4)


def test_a_hybrid_target_says_how_far_it_goes_back(load: Loader) -> None:
    engine = load("qwen35", taps=(0, 2))
    assert engine.target.is_recurrent
    assert engine.target.rollback_limit == engine.head.block_size - 1
    engine = load("qwen3next", taps=(0, 2))
    assert engine.target.is_recurrent
    assert engine.target.rollback_limit == 0, "llama.cpp keeps no snapshots for it"
    assert load("qwen3").target.rollback_limit == -1


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_a_hybrid_target_does_not_go_back_further_than_its_snapshots(name: str, load: Loader) -> None:
    """llama.cpp itself would, to a snapshot that the last, short decode did not write."""
    tokens = prompt(40)
    engine, fresh = load(name, taps=(0, 2)), load(name, taps=(0, 2))
    engine.read(tokens)
    for _ in range(5):
        engine.judge([])  # one row each
    assert engine.read([*tokens[:38], 11, 12]) == 0
    fresh.read([*tokens[:38], 11, 12])
    np.testing.assert_array_equal(engine.logits(), fresh.logits())


def test_a_hybrid_target_keeps_what_a_longer_prompt_continues(load: Loader) -> None:
    tokens = prompt(60)
    engine, fresh = load("qwen35"), load("qwen35")
    engine.read(tokens[:40])
    assert engine.read(tokens) == 40
    fresh.read(tokens)
    np.testing.assert_allclose(engine.logits(), fresh.logits(), rtol=1e-4, atol=1e-4)


def test_a_sliding_window_forgets(load: Loader) -> None:
    """gemma3's window is 16, llama.cpp keeps 256 cells. A prefix that ends further back is read anew."""
    assert TARGETS["gemma3"].window == 16
    tokens = prompt(600)
    engine = load("gemma3")
    engine.read(tokens)
    assert engine.read([*tokens[:200], *prompt(20, seed=2)]) == 0

    engine.read(tokens)
    late = [*tokens[:590], *prompt(20, seed=2)]
    assert engine.read(late) == 590
    fresh = load("gemma3")
    fresh.read(late)
    np.testing.assert_allclose(engine.logits(), fresh.logits(), rtol=1e-4, atol=1e-4)


def test_a_sliding_window_is_reused_up_to_its_edge(load: Loader) -> None:
    """Right at the last position that is granted, a token's whole window is still there."""
    tokens = prompt(600)
    engine = load("gemma3")

    def reused(shared: int) -> int:
        engine.begin([1], drafting=False)  # an empty cache: what it holds depends on the way here
        engine.read(tokens)
        return engine.begin([*tokens[:shared], 5], drafting=False)

    refused, granted = 300, 600
    while granted - refused > 1:
        middle = (refused + granted) // 2
        if reused(middle):
            granted = middle
        else:
            refused = middle
    assert granted > 301, "the cache holds fewer cells than the text has tokens"
    assert reused(granted) == granted
    while engine.prefill():
        pass
    fresh = load("gemma3")
    fresh.read([*tokens[:granted], 5])
    np.testing.assert_allclose(engine.logits(), fresh.logits(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantised_weights_decode(kind: str, load: Loader) -> None:
    """Q4_0 rows are rearranged on load; the head borrows embedding and output from there."""
    engine = load("qwen3-wide", taps=(0, 2), kind=kind)
    engine.read(prompt(40), drafting=True)
    draft = engine.draft(3)
    assert draft.proposal.n == 3
    assert np.isfinite(engine.features()).all()


# ---- refusals --------------------------------------------------------------------------------------------


def edited(source: Path, path: Path, **fields: Any) -> Path:
    """A copy of a GGUF with some scalar or string fields replaced; a string by one of the same length."""
    shutil.copy(source, path)
    reader = gguf.GGUFReader(path, "r+")
    for name, value in fields.items():
        field = reader.fields[name.replace("__", ".")]
        part = field.parts[field.data[0]]
        part[:] = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else value
    del reader
    return path


@pytest.fixture
def qwen3(folder: Path) -> Path:
    path = folder / "qwen3-f32.gguf"
    return path if path.exists() else targets.write(TARGETS["qwen3"], path, "f32")


def test_files_that_are_no_target(folder: Path, qwen3: Path, load: Loader) -> None:
    def refuse(path: Path, message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            load.file(path)

    refuse(folder / "nowhere.gguf", r"nowhere\.gguf' does not exist: check the path")
    refuse(folder, r"is a folder: give the GGUF file itself")
    text = folder / "text.gguf"
    text.write_text("hello, I am not a model")
    refuse(text, r"is not a GGUF file \(it does not start with the letters GGUF\): convert the model")
    cut = folder / "cut.gguf"
    cut.write_bytes(qwen3.read_bytes()[:5000])
    refuse(cut, r"is damaged \(.+\): download or convert it again")
    short = folder / "short.gguf"
    short.write_bytes(qwen3.read_bytes()[:-5000])
    refuse(short, r"llama\.cpp cannot load the target '.+': .+not within the file bounds")
    head = head_file.write(Head("qwen3", seed=1, taps=(0,), layers=(FULL,)), folder / "as-target.gguf")
    refuse(head, r"is a head \(architecture dflash\), not a target: pass it as head")
    unknown = edited(qwen3, folder / "unknown.gguf", general__architecture="qwenX")
    refuse(unknown, r"llama\.cpp cannot load the target '.+': .*unknown model architecture: 'qwenX'")


@pytest.mark.parametrize(
    ("architecture", "kind", "message"),
    [
        (
            "clip",
            "mmproj",
            r"is an image or audio projector \(mmproj\), not a language model: give the model's own",
        ),
        ("llama", "adapter", r"is a LoRA adapter, not a model: merge it into its base model first"),
        ("", "model", r"without general\.architecture, so it holds no model"),
    ],
)
def test_gguf_files_of_other_kinds(
    architecture: str, kind: str, message: str, folder: Path, load: Loader
) -> None:
    path = folder / f"{architecture}-{kind}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=message):
        load.file(path)


def test_the_second_part_of_a_split_model(folder: Path, load: Loader) -> None:
    path = folder / "model-00002-of-00003.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"is part 2 of a split model: give the first part"):
        load.file(path)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("qwen3.block_count", 0, "qwen3.block_count is 0"),
        ("qwen3.block_count", 100000, r"qwen3.block_count is 100000"),
        ("qwen3.attention.layer_norm_rms_epsilon", -1.0, r"qwen3.attention.layer_norm_rms_epsilon is -1"),
        ("qwen3.rope.dimension_count", 7, "qwen3.rope.dimension_count is 7"),
        ("qwen3.rope.dimension_count", 4096, "qwen3.rope.dimension_count is 4096"),
    ],
)
def test_values_that_would_end_the_process(
    field: str, value: float, shown: str, folder: Path, qwen3: Path, load: Any
) -> None:
    path = edited(qwen3, folder / "values.gguf", **{field.replace(".", "__"): value})
    with pytest.raises(ModelFileError, match=rf"is damaged \({shown}\): download or convert it again"):
        load.file(path)


def test_a_vocabulary_with_a_token_twice(folder: Path, qwen3: Path, load: Loader) -> None:
    path = folder / "twice.gguf"
    shutil.copy(qwen3, path)
    reader = gguf.GGUFReader(path, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"]
    first = bytes(tokens.parts[tokens.data[40]])
    again = next(i for i in tokens.data[41:] if len(tokens.parts[i]) == len(first))
    tokens.parts[again][:] = np.frombuffer(first, np.uint8)
    del reader
    with pytest.raises(ModelFileError, match=r"its vocabulary has '.+' twice"):
        load.file(path)


def test_a_model_that_does_not_generate(folder: Path, load: Loader) -> None:
    source = folder / "acausal-source.gguf"
    target = targets.write(TARGETS["llama"], source, "f32")
    path = folder / "acausal.gguf"
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:2])
    writer.add_causal_attention(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelFileError, match=r"\(architecture llama\) does not generate text from left to right"
    ):
        load.file(path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context_size": -5}, ValueError, r"context_size is -5: give a number of tokens, or 0"),
        ({"n_threads": -1}, ValueError, r"n_threads is -1: give a number of threads, or 0"),
        (
            {"kv_type": "q8_0"},
            NativeError,
            r"context of 1024 tokens with a cache of type q8_0 cannot be made: .+divide",
        ),
    ],
)
def test_options_that_cannot_be(
    options: dict[str, Any], error: type[Exception], message: str, load: Loader
) -> None:
    with pytest.raises(error, match=message):
        load("qwen3", **options)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_a_context_that_does_not_fit_the_memory(qwen3: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from pydflash2.errors import OutOfMemoryError
from pydflash2.native import NativeEngine
try:
    NativeEngine(Path(sys.argv[1]), None, context_size=5 * 10**6, batch_size=32, n_threads=1, n_gpu_layers=0,
                 kv_type="f16", drafter_kv_type="f16", taps=0, use_mmap=True)
except OutOfMemoryError as error:
    print(error)
"""
    shown = subprocess.run(
        [sys.executable, "-c", script, qwen3], capture_output=True, text=True, check=True
    ).stdout
    assert "a context of 5000000 tokens with a cache of type f16 cannot be made" in shown
    assert "Ask for a smaller context_size" in shown


def test_a_context_beyond_the_machine_is_refused_before_it_is_made(qwen3: Path) -> None:
    """Linux would grant it, and end the process when it is used."""
    with pytest.raises(
        OutOfMemoryError, match=r"2000000000 tokens takes a cache of \d+\.\d GB, this machine"
    ):
        pydflash2.load(qwen3, head=None, context_size=2 * 10**9)


def test_a_gpu_that_is_not_there(load: Loader) -> None:
    info = ffi.new("pd2_device_info *")
    for index in range(lib.pd2_device_count()):
        lib.pd2_device_get(index, info)
        if info.is_gpu:
            pytest.skip("there is a GPU")
    with pytest.raises(
        BackendUnavailableError, match=r"3 layers were to run on a GPU, but there is none \(back ends .*CPU"
    ):
        load("qwen3", n_gpu_layers=3)
    load("qwen3", n_gpu_layers=-1)  # all where there is a device


def test_a_context_too_small_for_a_hybrid_targets_drafts(load: Loader) -> None:
    with pytest.raises(
        ValueError, match=r"context_size is 5, but drafting 7 tokens with this target takes at least 9"
    ):
        load("qwen35", taps=(0, 2), context_size=5)


def test_a_tap_the_target_does_not_have(load: Loader) -> None:
    with pytest.raises(HeadMismatchError, match=r"layer 40.*layers 0"):
        load("qwen3", taps=(0, 40))


def test_a_full_context(load: Loader) -> None:
    engine = load("qwen3", context_size=50)
    with pytest.raises(ContextOverflowError, match="50"):
        engine.begin(prompt(60), drafting=False)
    engine.read(prompt(49))
    engine.judge([])
    with pytest.raises(ContextOverflowError, match="50"):
        engine.judge([])
    assert len(engine.tokens()) == 51


def test_token_ids_out_of_range(load: Loader) -> None:
    engine = load("qwen3")
    n_vocab = engine.target.n_vocab
    with pytest.raises(ValueError, match=str(n_vocab)):
        engine.begin([3, n_vocab], drafting=False)
    assert lib.pd2_token_bytes(engine._engine, n_vocab, True, ffi.NULL, 0) == -(2**31)
    message = ffi.string(lib.pd2_last_error()).decode()
    assert message == f"token {n_vocab} does not exist: the target's vocabulary has ids 0 to {n_vocab - 1}"


# ---- the rest --------------------------------------------------------------------------------------------


def test_text_and_tokens(load: Loader) -> None:
    engine = load("qwen3")
    text = "def f(x):\n    return 'ä€😀'\n" * 50
    tokens = engine.tokenize(text.encode(), False, False)
    assert b"".join(engine.token_bytes(token) for token in tokens) == text.encode()
    assert engine.tokenize(b"", False, False) == []
    end = engine.tokenize(b"<|end|>", False, True)
    assert len(end) == 1 and engine.is_end(end[0])
    assert not engine.is_end(engine.tokenize(b"a", False, True)[0])
    assert not engine.is_end(-1) and not engine.is_end(10**6)


def test_information(load: Loader) -> None:
    info = load("qwen3", n_threads=0).target
    assert ffi.string(info.architecture) == b"qwen3"
    assert (info.n_layer, info.n_embd, info.n_vocab) == (5, 64, TARGETS["qwen3"].n_vocab)
    assert (info.context_size, info.context_trained) == (1024, 1024)
    assert info.n_threads >= 1
    assert b"CPU" in ffi.string(info.devices)


def test_the_log_goes_to_python_and_not_to_the_terminal(
    load: Loader, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger="pydflash2"):
        load("qwen3")
        load.folder.joinpath("broken.gguf").write_bytes(b"GGUF" + bytes(20))
        with pytest.raises(ModelFileError):
            load.file(load.folder / "broken.gguf")
    levels = {record.levelname for record in caplog.records}
    assert {"INFO", "ERROR"} <= levels
    assert any("qwen3" in record.message for record in caplog.records)
    assert not any("\n" in record.message for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_a_long_log_line_is_cut(load: Loader) -> None:
    target = load.folder / "nowhere-at-all.gguf"
    target.write_bytes(b"GGUF" + bytes(20))
    params = ffi.new("pd2_engine_params *")
    lib.pd2_engine_default_params(params)
    path = ffi.new("char[]", str(target).encode())
    params.target_path = path
    engine = ffi.new("pd2_engine **")
    assert lib.pd2_engine_load(params, engine) == lib.PD2_ERROR_MODEL_FILE
    level, line = ffi.new("int32_t *"), ffi.new("char[]", 8)
    length = lib.pd2_log_next(level, line, len(line))
    assert length > 7 and len(ffi.string(line)) == 7
    while lib.pd2_log_next(level, line, len(line)) >= 0:
        pass
    assert level[0] == 4
