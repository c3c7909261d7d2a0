"""Geometry chosen for a target, and the checkpoint that training writes."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
from hypothesis import given
from hypothesis import strategies as st

from pydflash2.convert.checkpoint import read_checkpoint
from pydflash2.convert.config import HeadConfig, RopeScaling
from pydflash2.convert.target import Target
from pydflash2.train import checkpoint, geometry
from tiny import heads
from tiny.files import TinyFiles
from tiny.training import head_of

TARGETS = ["qwen3", "llama", "qwen2", "gemma3", "qwen3moe", "phi3", "qwen35", "qwen3next", "qwen3-wide"]

# ---- geometry ----


@pytest.mark.parametrize("name", TARGETS)
def test_defaults_fit_every_target(name: str, tiny: TinyFiles) -> None:
    target = Target.open(tiny.target(name))
    config = geometry.config_for(target)
    geometry.check(config, target)
    assert (config.version, config.block_size, config.top_k, config.causal) == (2, 8, 16, False)
    assert config.n_layer == 1 and config.window == 1024 and config.sliding == (True,)
    assert config.embedding_scale == (8.0 if name == "gemma3" else None)
    assert config.mask_token == target.vocabulary.tokens.index(b"<|mask|>" if name != "gemma3" else b"<mask>")


def test_taps_follow_the_reference() -> None:
    """Values of build_target_layer_ids in PyPI dflash 0.1.0."""
    assert geometry.target_taps(36, 5) == (1, 9, 17, 25, 33)
    assert geometry.target_taps(64, 5) == (1, 16, 31, 46, 61)
    assert geometry.target_taps(18, 5) == (1, 4, 8, 12, 15)
    assert geometry.target_taps(28, 1) == (14,)


@given(st.integers(1, 200))
def test_taps_of_any_depth(n_layer: int) -> None:
    taps = geometry.target_taps(n_layer, geometry._n_taps(n_layer))
    assert len(set(taps)) == len(taps) and min(taps) >= 0 and max(taps) < n_layer
    assert len(taps) == (5 if n_layer >= 8 else max(1, n_layer - 3))


def test_what_is_chosen_counts(tiny: TinyFiles) -> None:
    target = Target.open(tiny.target("qwen3"))
    config = geometry.config_for(
        target, n_layer=3, window=None, block_size=16, n_taps=2, rank=8, mask_token=7, n_head=8, n_head_kv=4
    )
    assert config.sliding == (False,) * 3 and config.window is None
    assert (config.block_size, config.taps, config.rank, config.mask_token) == (16, (1, 2), 8, 7)
    assert (config.n_head, config.n_head_kv) == (8, 4)
    assert geometry.config_for(target, taps=(4, 0)).taps == (4, 0)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"conv_group": 24}, "hidden size 64 is no multiple of conv_group 24"),
        ({"n_head": 6, "n_head_kv": 4}, "6 heads can't share 4 key/value heads"),
        ({"taps": (0, 5)}, "tap 5 is no layer of the target: they are 0 to 4"),
        ({"taps": (-1,)}, "tap -1"),
        ({"taps": ()}, "a tap at least"),
        ({"taps": (1, 1)}, "name a layer twice"),
        ({"n_taps": 4}, "name a layer twice"),
        ({"n_taps": 3, "taps": (0, 1)}, "3 taps are asked for, and 2 are named"),
        ({"block_size": 1}, "block_size is 1: it must be a whole number, 2 or more"),
        ({"block_size": True}, "block_size is True"),
        ({"top_k": 65}, "top_k is 65: 64 candidates"),
        ({"top_k": 0}, "top_k is 0"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_layer": 600}, "600 layers"),
        ({"n_layer": 2, "sliding": (True,)}, "1 layer types are given for 2 layers"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"window": 0}, "a window of 0"),
        ({"mask_token": 320}, "mask token 320 is none of the target's, 0 to 319"),
        ({"n_embd": 32}, "hidden size is 32, the target's 64"),
        ({"n_vocab": 100}, "100 tokens does not cover the target's 320"),
        ({"rank": 2.5}, "rank is 2.5"),
        ({"conv_kernel": 0}, "conv_kernel is 0"),
    ],
)
def test_impossible_geometry(chosen: dict[str, Any], message: str, tiny: TinyFiles) -> None:
    with pytest.raises(ValueError, match=message):
        geometry.config_for(Target.open(tiny.target("qwen3")), **chosen)


def test_unknown_setting(tiny: TinyFiles) -> None:
    with pytest.raises(TypeError, match="no setting named width"):
        geometry.config_for(Target.open(tiny.target("qwen3")), width=3)


def test_no_mask_token(tiny: TinyFiles) -> None:
    """Without a mask or an unused token, one has to be named."""
    target = Target.open(tiny.target("qwen3"))
    plain = dataclasses.replace(
        target,
        vocabulary=dataclasses.replace(
            target.vocabulary, tokens=[b"t%d" % token for token in range(320)], types=[1] * 320
        ),
    )
    with pytest.raises(ValueError, match="--mask-token"):
        geometry.config_for(plain)
    assert geometry.config_for(plain, mask_token=3).mask_token == 3
    spare = dataclasses.replace(plain.vocabulary, types=[1] * 300 + [5] * 20)
    assert geometry.config_for(dataclasses.replace(plain, vocabulary=spare)).mask_token == 300


# ---- checkpoint ----

CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": None},
    {"causal": True},
    {"window": None},
    {"window": None, "sliding": (True, False), "causal": None},
    {"sliding": (False, False)},
    {"gelu": True, "interleaved_rope": True},
    {"rope_scaling": RopeScaling("linear", 2.0)},
    {"rope_scaling": RopeScaling("yarn", 4.0, 512)},
    {"rope_scaling": RopeScaling("yarn", 4.0, 512, 16.0, 2.0), "rotary_factor": 0.5},
    {"output_multiplier": 0.25, "soft_cap": 30.0, "embedding_scale": 1.0},
    {"version": 1, "conv_kernel": None, "conv_group": None, "rank": None, "top_k": None},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_config_comes_back(changes: dict[str, Any], tiny: TinyFiles, tmp_path: Path) -> None:
    config = geometry.config_for(Target.open(tiny.target("qwen3")), n_layer=2)
    config = dataclasses.replace(config, **changes)
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config_json(config)))
    assert HeadConfig.read(tmp_path) == config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_written_types(dtype: torch.dtype, tmp_path: Path) -> None:
    head = head_of("plain", tmp_path / "made")
    checkpoint.write(head, tmp_path / "out", dtype)
    stored = read_checkpoint(tmp_path / "out")
    assert {tensor.dtype for tensor in stored} == {
        {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    }
    assert {tensor.name for tensor in stored} == set(heads.tensors(heads.HEADS["plain"]))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == str(dtype).split(".")[1]


def test_a_full_disk_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_of("plain", tmp_path / "made")
    checkpoint.write(head, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    head.fc.weight.data += 1
    with pytest.raises(OSError, match="disk is full"):
        checkpoint.write(head, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.reference
@pytest.mark.parametrize("name", ["plain", "sliding", "dflash-1", "yarn"])
def test_the_reference_reads_it(name: str, tmp_path: Path) -> None:
    dflash = pytest.importorskip("dflash.model")
    head = head_of(name, tmp_path / "made", scaled=True)
    checkpoint.write(head, tmp_path / "out")
    kind = dflash.DFlash2DraftModel if head.config.version == 2 else dflash.DFlashDraftModel
    read = kind.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert read.block_size == head.config.block_size and tuple(read.target_layer_ids) == head.config.taps
    assert read.mask_token_id == head.config.mask_token
    loaded = read.state_dict()
    for key, value in checkpoint.tensors(head).items():
        assert torch.equal(loaded.pop(f"{key}.weight" if key.endswith("_codebook") else key), value), key
    assert not loaded
