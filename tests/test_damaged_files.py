"""Files with damaged bytes, or cut short, and targets with values that llama.cpp asserts on.

Nothing may end the process: what could is tried in one of its own.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Kind

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


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("mixed", "head"),
        ("reduced-vocabulary", "head"),
        ("qwen35", "head"),
        ("qwen35", "target"),
        ("qwen3moe", "target"),
    ],
)
def test_flipped_bytes_end_no_process(name: str, role: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair(name)
    source = target if role == "target" else head
    dice, places, size = random.Random(f"{name} {role}"), structure(source), source.stat().st_size
    patches: list[Patch] = []
    for _ in range(60):
        offset, length = dice.choice(places) if dice.random() < 0.9 else (0, size)
        patches.append(
            [(offset + dice.randrange(length), dice.randrange(256)) for _ in range(dice.choice([1, 1, 3]))]
        )
    survives(target, head, tmp_path / "case.gguf", role, patches)


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


def test_a_target_whose_norms_are_integers(tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("gemma3"))
    norm = file.tensors["blk.5.post_ffw_norm.weight"]
    norm.data, norm.type = norm.data.astype(np.int32), GGMLQuantizationType.I32
    with pytest.raises(NativeFailure, match=r"is damaged \(blk\.5\.post_ffw_norm\.weight has type i32\)"):
        Native(file.write(tmp_path / "target.gguf"))
