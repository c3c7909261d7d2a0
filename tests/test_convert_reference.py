"""Live against llama.cpp's own converter, where its source tree and what it imports are at hand.

Set PYDFLASH2_LLAMA_CPP_DIR to the source; needs torch, transformers and sentencepiece. For everywhere else,
tests/golden/convert/ holds what it wrote for four heads.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from checkpoints import CONFIG_2, save_checkpoint, tensors, values
from golden.make_convert import HERE as GOLDEN
from golden.make_convert import save_target_folder
from pydflash2.convert import convert

CONVERTER = Path(os.environ.get("PYDFLASH2_LLAMA_CPP_DIR", ".")) / "convert_hf_to_gguf.py"

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(
        not CONVERTER.is_file() or not all(map(find_spec, ("torch", "transformers", "sentencepiece"))),
        reason="needs PYDFLASH2_LLAMA_CPP_DIR, torch, transformers, sentencepiece",
    ),
]

CARD = """---
license: apache-2.0
base_model: Qwen/Qwen3-4B
tags: [dflash, speculative-decoding]
language: [en]
pipeline_tag: text-generation
---
"""
OWN = {"lm_head.weight": values("output", (72, 32)), "embed_tokens.weight": values("embedding", (72, 32))}


def rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 5e5, **settings}}


# name -> changed settings, further tensors, stored type, outtype
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "Qwen3-4B-DFlash2-b8": ({}, {}, "BF16", "bf16"),  # a name that the model card's heuristics take apart
    "linear": (rope(rope_type="linear", factor=2.0), {}, "F16", "f32"),
    "partial": (rope(rope_type="default", partial_rotary_factor=0.5), {}, "BF16", "q8_0"),
    "flat-rope": ({"rope_theta": 1e6, "rope_parameters": {}}, OWN, "BF16", "auto"),
    "causal": ({"is_causal": True}, {}, "F32", "auto"),
    "window-off": ({"use_sliding_window": False}, {}, "F16", "auto"),
}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_folder(tmp_path_factory.mktemp("target") / "target", uses_mrope=True)


@pytest.mark.parametrize("name", HEADS)
def test_every_byte_is_as_llama_cpp_writes_it_now(name: str, target_folder: Path, tmp_path: Path) -> None:
    changes, further, stored, outtype = HEADS[name]
    config = copy.deepcopy(CONFIG_2) | changes
    folder = save_checkpoint(tmp_path / name, config, tensors(CONFIG_2) | further, stored)
    (folder / "README.md").write_text(CARD)
    theirs = tmp_path / "theirs.gguf"
    command = [sys.executable, CONVERTER, folder, "--target-model-dir", target_folder, "--outfile", theirs]
    done = subprocess.run([*map(str, command), "--outtype", outtype], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = convert(folder, GOLDEN / "target-mrope.gguf", tmp_path / "ours.gguf", outtype)
    assert ours.read_bytes() == theirs.read_bytes()
