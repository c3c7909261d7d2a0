"""Files cut short, and targets that llama.cpp would end the process over. All other damage: test_fuzz.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Kind

from pydflash2._native import lib
from tiny.files import TinyFiles
from tiny.gguf_edit import EditableFile
from tiny.native import Native, NativeFailure

Patch = list[tuple[int, int | None]]  # (offset, byte); None cuts the file there

# Prints each case before it is tried, so that a crash names the one that did it.
CHILD = """
import sys
from pathlib import Path
from tiny.native import Native, NativeFailure
target, head, case, role = sys.argv[1:]
prompt = [7 * i % 256 for i in range(40)]
for line in sys.stdin:
    patch = eval(line)
    data = bytearray(Path(target if role == "target" else head).read_bytes())
    for at, byte in patch:
        data[at:] = b"" if byte is None else bytes([byte]) + data[at + 1:]
    Path(case).write_bytes(data)
    print(line.strip(), flush=True)
    paths = (case, None) if role == "target" else (target, case)
    try:
        with Native(*[path and Path(path) for path in paths], context_size=128, batch_size=64) as engine:
            engine.prefill(prompt, drafting=role == "head")
            engine.verify(engine.draft(5).tokens if role == "head" else [])
    except NativeFailure as failure:
        assert str(failure).strip(), "no message"
"""


def survives(target: Path, head: Path, case: Path, role: str, patches: list[Patch]) -> None:
    lines = "".join(f"{patch}\n" for patch in patches)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, target, head, case, role],
        input=lines,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{role} {case.name} with {last}: {done.stderr[-2000:]}"
    assert done.stdout == lines


def structure(path: Path) -> list[tuple[int, int]]:
    """(offset, length) of the header, every key and every tensor's description; token texts are cut short."""
    reader = gguf.GGUFReader(path)
    fields = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
    sizes = [(field.offset, sum(int(part.nbytes) for part in field.parts)) for field in fields]
    return [(0, 24)] + [(offset, min(size, 64)) for offset, size in sizes if offset > 0]


@pytest.mark.parametrize("role", ["head", "target"])
def test_a_file_cut_short_ends_no_process(role: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("one-layer")
    source = target if role == "target" else head
    reader = gguf.GGUFReader(source)
    ends = {
        0,
        3,
        4,
        8,
        16,
        23,
        source.stat().st_size - 1,
        int(reader.data_offset),
        int(reader.data_offset) - 1,
    }
    ends |= {at for offset, length in structure(source) for at in (offset, offset + length // 2)}
    ends |= {int(tensor.data_offset) + 1 for tensor in reader.tensors}
    survives(target, head, tmp_path / "case.gguf", role, [[(at, None)] for at in sorted(ends)])


def test_a_cut_head_says_where(tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("plain")
    path = tmp_path / "head.gguf"
    path.write_bytes(head.read_bytes()[:-40])
    with pytest.raises(
        NativeFailure, match=r"the file ends before tensor \S+ does \(\d+ bytes\); it was cut"
    ):
        Native(target, path)
    path.write_bytes(head.read_bytes()[:2000])
    with pytest.raises(NativeFailure, match="not a readable GGUF file"):
        Native(target, path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("expert_group_count", 3, "qwen3moe.expert_group_count is 3"),
        ("expert_group_count", 8, "qwen3moe.expert_group_count is 8"),
        ("expert_used_count", None, "8 experts, but qwen3moe.expert_used_count is missing"),
        ("expert_count", None, "qwen3moe has experts, but qwen3moe.expert_count is missing or 0"),
        ("expert_count", 0, "qwen3moe has experts, but qwen3moe.expert_count is missing or 0"),
    ],
)
def test_a_target_with_impossible_experts(
    field: str, value: int | None, message: str, tiny: TinyFiles, tmp_path: Path
) -> None:
    file = EditableFile(tiny.target("qwen3moe"))
    if value is None:
        del file.keys[f"qwen3moe.{field}"]
    else:
        file.set(f"qwen3moe.{field}", value)
    with pytest.raises(NativeFailure, match=re.escape(message)):
        Native(file.write(tmp_path / "target.gguf"))


@pytest.mark.parametrize("sections", [[0, 0, 0, 0], [-1, 8, 0, 0], [40, 0, 0, 0]])
def test_a_target_with_impossible_sections(sections: list[int], tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("qwen35"))
    file.set("qwen35.rope.dimension_sections", sections, Kind.ARRAY, Kind.INT32)
    message = "qwen35.rope.dimension_sections does not share out a head's dimensions"
    with pytest.raises(NativeFailure, match=re.escape(message)):
        Native(file.write(tmp_path / "target.gguf"))


@pytest.mark.parametrize(
    ("target", "name", "type", "message"),
    [
        ("qwen3moe", "blk.2.ffn_gate_inp.weight", GGMLQuantizationType.I32, "i32, with which MUL_MAT"),
        ("qwen3-tied", "token_embd.weight", GGMLQuantizationType.I8, "i8, with which GET_ROWS"),
        ("gemma3", "blk.3.attn_norm.weight", GGMLQuantizationType.F16, "f16, with which MUL"),
        ("gemma3", "blk.5.post_ffw_norm.weight", GGMLQuantizationType.I32, "i32, with which MUL"),
        ("qwen35", "blk.0.ssm_conv1d.weight", GGMLQuantizationType.F16, "f16, with which SSM_CONV"),
    ],
)
def test_a_weight_that_cannot_be_computed_with(
    target: str, name: str, type: GGMLQuantizationType, message: str, tiny: TinyFiles, tmp_path: Path
) -> None:
    file = EditableFile(tiny.target(target))
    numbers = {GGMLQuantizationType.I32: np.int32, GGMLQuantizationType.I8: np.int8}.get(type, np.float16)
    file.tensors[name].data, file.tensors[name].type = file.tensors[name].data.astype(numbers), type
    with pytest.raises(NativeFailure, match=re.escape(f"{name} has type {message} cannot be computed")):
        Native(file.write(tmp_path / "target.gguf"))


def test_an_assertion_of_llama_cpp_becomes_an_error(tiny: TinyFiles, tmp_path: Path) -> None:
    """No check of ours foresees heads that are too many for phi3's one tensor of queries, keys and values."""
    file = EditableFile(tiny.target("phi3"))
    file.set("phi3.attention.head_count", 260)
    path = file.write(tmp_path / "target.gguf")
    for _ in range(3):
        with pytest.raises(
            NativeFailure, match=r"do not fit together \(\S+:\d+: GGML_ASSERT\(.*\) failed\)"
        ) as error:
            Native(path)
        assert error.value.status == lib.PD2_ERROR_MODEL_FILE
    with Native(*tiny.pair("phi3")) as engine:
        assert len(engine.plain([5, 6, 7], 8)) == 8


def test_a_multimodal_rope_without_sections(tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("llama"))
    file.architecture = "paddleocr"
    file.keys = {name.replace("llama.", "paddleocr.", 1): key for name, key in file.keys.items()}
    with pytest.raises(NativeFailure, match=r"its rope\.dimension_sections are missing or empty"):
        Native(file.write(tmp_path / "target.gguf"))


@pytest.mark.parametrize("value", [0, None])
def test_no_attention_heads(value: int | None, tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("llama"))
    del file.keys["llama.attention.head_count"]
    if value is not None:
        file.set("llama.attention.head_count", value)
    with pytest.raises(NativeFailure, match=r"llama\.attention\.head_count is missing or below 1"):
        Native(file.write(tmp_path / "target.gguf"))


def test_an_interval_of_no_layers(tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("qwen35"))
    file.set("qwen35.full_attention_interval", 0)
    with pytest.raises(NativeFailure, match=r"qwen35\.full_attention_interval is 0"):
        Native(file.write(tmp_path / "target.gguf"))


def test_a_vocabulary_whose_tokenizer_would_never_end(tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("gemma3"))
    file.keys["tokenizer.ggml.model"].value = "rwkv"
    with pytest.raises(NativeFailure, match=r"its vocabulary lacks a token for the byte \d+ alone"):
        Native(file.write(tmp_path / "target.gguf"))


def test_names_as_long_as_the_file(tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("plain")
    for source, paths in ((target, ("long.gguf", None)), (head, (target, "long.gguf"))):
        file = EditableFile(source)
        file.architecture = "x" * 70000
        file.write(tmp_path / "long.gguf")
        with pytest.raises(NativeFailure, match=r"architecture .*(again|here)$") as error:
            Native(*[path and tmp_path / path for path in paths])
        assert len(str(error.value)) < 1000
