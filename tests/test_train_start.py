"""First weights: of a new head, and of a head to go on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

import checkpoints
from pydflash2.convert.config import HeadConfig
from pydflash2.convert.target import Target
from pydflash2.errors import HeadFormatError, HeadMismatchError, ModelFileError
from pydflash2.train import checkpoint, geometry, start, stored
from pydflash2.train.head import Head
from tiny import head_file, heads, targets
from tiny.files import TinyFiles
from tiny.native import Draft, Native
from tiny.training import assert_drafts_alike, export, head_of, prompt_of

GO_ON = ["plain", "mixed", "causal-absent", "window-off", "yarn", "scaled", "partial-rotary", "qwen35"]


def resumed(source: Path, target: Path, scaled: bool = True) -> Head:
    config = start.config_of(source, Target.open(target))
    scale = 10.0 ** torch.linspace(-2, 3, len(config.taps) * config.n_embd) if scaled else None
    head = Head(config, scale)
    start.from_head(head, source)
    return head


# ---- going on from a head ----


@pytest.mark.parametrize("name", ["dflash-1", "mixed-1"])
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_version_1_drafts_as_before(name: str, kind: str, tiny: TinyFiles, tmp_path: Path) -> None:
    """It becomes a DFlash 2 head whose lattice, before the first step, is what the old head drafts."""
    changes: dict[str, Any] = (
        {"layers": ("sliding_attention",) * 2, "causal": None} if name == "mixed-1" else {}
    )
    old = head_of("dflash-1", tmp_path / "old", **changes)
    target = tiny.target("qwen3")
    source = tmp_path / "old" if kind == "folder" else export(old, target, tmp_path / "gguf")
    head = resumed(source, target)
    assert head.config.version == 2 and head.candidate_selector is not None
    prompt = prompt_of("qwen3")
    assert_drafts_alike(head, target, export(head, target, tmp_path / "new"), prompt)
    old_gguf = export(old, target, tmp_path / "same")
    old_lattice = native_draft(target, old_gguf, prompt)
    new_lattice = native_draft(target, tmp_path / "new" / "head.gguf", prompt)
    assert new_lattice.tokens == old_lattice.tokens
    np.testing.assert_allclose(new_lattice.unary[:, 0], old_lattice.unary[:, 0], rtol=1e-5)
    np.testing.assert_allclose(new_lattice.scores[0, 0], new_lattice.unary[0], rtol=1e-6)


def native_draft(target: Path, gguf: Path, prompt: list[int]) -> Draft:
    with Native(target, gguf) as engine:
        engine.prefill(prompt)
        return engine.draft(7)


@pytest.mark.parametrize("name", GO_ON)
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_version_2_goes_on(name: str, kind: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target = tiny.target(heads.HEADS[name].target)
    source = tiny.checkpoint(name) if kind == "folder" else tiny.head(name)
    head = resumed(source, target)
    prompt = prompt_of(heads.HEADS[name].target)
    assert_drafts_alike(head, target, tiny.head(name), prompt)
    assert_drafts_alike(head, target, export(head, target, tmp_path), prompt)


def test_quantised_head(tiny: TinyFiles, tmp_path: Path) -> None:
    source = tiny.head("chain-wide", "q8_0")
    head = resumed(source, tiny.target("qwen3-wide"))
    exact = resumed(tiny.checkpoint("chain-wide"), tiny.target("qwen3-wide"))
    for (key, value), other in zip(head.state_dict().items(), exact.state_dict().values(), strict=True):
        assert (value - other).norm() <= 0.02 * other.norm(), key


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_round_trip(kind: str, scaled: bool, tiny: TinyFiles, tmp_path: Path) -> None:
    target = tiny.target("qwen3")
    source = tiny.checkpoint("plain") if kind == "folder" else tiny.head("plain")
    head = resumed(source, target, scaled)
    checkpoint.write(head, tmp_path)
    config, tensors = stored.read(tmp_path)
    assert config == head.config
    for key, expected in heads.tensors(heads.HEADS["plain"]).items():
        if scaled and key == "fc.weight":
            torch.testing.assert_close(tensors[key], torch.from_numpy(expected), rtol=1e-6, atol=0)
        else:
            assert torch.equal(tensors[key], torch.from_numpy(expected)), key


@pytest.mark.parametrize("stores", ["BF16", "F16", "F32"])
def test_stored_types(stores: str, tmp_path: Path) -> None:
    folder = checkpoints.save_checkpoint(tmp_path, checkpoints.CONFIG_2, dtype=stores)
    _, tensors = stored.read(folder)
    for key, exact in checkpoints.tensors(checkpoints.CONFIG_2).items():
        assert tensors[key].dtype == torch.float32
        np.testing.assert_allclose(
            tensors[key].numpy(), exact, rtol=1e-2 if stores != "F32" else 0, atol=1e-6
        )


def test_gemma_scale_is_written_down(tiny: TinyFiles) -> None:
    """A folder that names none gets the converter's; a GGUF that names none drafts from raw embeddings."""
    target = Target.open(tiny.target("gemma3"))
    config = HeadConfig.read(tiny.checkpoint("gemma3"))
    assert start.config_of(tiny.checkpoint("gemma3"), target).embedding_scale == 8.0
    assert target.embedding_scale == 8.0
    assert start.config_of(tiny.head("gemma3"), target).embedding_scale == 8.0
    raw = dataclasses.replace(heads.HEADS["gemma3"], embedding_scale=None)
    folder = tiny.checkpoint("gemma3").with_name("raw")
    heads.checkpoint(raw).write(folder)
    assert start.config_of(folder, target).embedding_scale == 8.0
    gguf = head_file.write(raw, folder / "raw.gguf")
    assert start.config_of(gguf, target).embedding_scale == 1.0
    assert config.embedding_scale == 8.0


def test_refused_heads(tiny: TinyFiles, tmp_path: Path) -> None:
    qwen3 = Target.open(tiny.target("qwen3"))
    for source in (tiny.checkpoint("own-output"), tiny.head("own-output"), tiny.head("reduced-vocabulary")):
        with pytest.raises(HeadFormatError, match="of its own"):
            stored.read(source)
    with pytest.raises(HeadMismatchError, match="hidden size is 256, the target's 64"):
        start.config_of(tiny.head("chain-wide"), qwen3)
    with pytest.raises(HeadFormatError, match="is no head"):
        stored.config_of(tiny.target("qwen3"))
    with pytest.raises(ModelFileError, match="there is no"):
        stored.read(tmp_path / "nothing")
    with pytest.raises(HeadFormatError, match=r"no model\.safetensors"):
        (tmp_path / "config.json").write_bytes((tiny.checkpoint("plain") / "config.json").read_bytes())
        stored.read(tmp_path)
    wider = dataclasses.replace(start.config_of(tiny.head("plain"), qwen3), rank=25)
    with pytest.raises(HeadMismatchError, match=r"\[320, 24\], the head to be trained \[320, 25\]"):
        start.from_head(Head(wider), tiny.head("plain"))
    version_1 = HeadConfig.read(tiny.checkpoint("dflash-1"))
    with pytest.raises(HeadMismatchError, match="DFlash 2"):
        start.from_head(Head(version_1), tiny.head("plain"))


@pytest.mark.parametrize("cut", [3, 100, 5000, 60000])
def test_damaged_gguf(cut: int, tiny: TinyFiles, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.head("plain").read_bytes()[:cut])
    with pytest.raises(ModelFileError):
        stored.read(path)


def test_head_of_another_make(tiny: TinyFiles, tmp_path: Path) -> None:
    """A tensor that no rule knows would be lost."""
    described = dataclasses.replace(heads.HEADS["plain"], seed=9)
    path = head_file.write(described, tmp_path / "head.gguf")
    data = path.read_bytes().replace(b"blk.1.attn_conv_base", b"blk.1.attn_sink_base")
    path.write_bytes(data)
    with pytest.raises(HeadFormatError, match="attn_sink_base"):
        stored.read(path)


# ---- a new head ----


def new_head(target: Path, **chosen: Any) -> tuple[Head, str]:
    config = geometry.config_for(Target.open(target), **chosen)
    head = Head(config, 10.0 ** torch.linspace(-2, 3, len(config.taps) * config.n_embd))
    return head, start.fresh(head, 1, target)


def test_copies_the_targets_layers(tiny: TinyFiles, tmp_path: Path) -> None:
    target = tiny.target("qwen3")
    weights = targets.tensors(targets.TARGETS["qwen3"])
    head, said = new_head(target, n_layer=2, taps=(1, 3))
    assert said == "starts from the target's layers 3 to 4"
    state = {key: value.numpy() for key, value in head.state_dict().items()}
    np.testing.assert_array_equal(state["norm.weight"], weights["output_norm.weight"])
    np.testing.assert_array_equal(state["layers.1.mlp.down_proj.weight"], weights["blk.4.ffn_down.weight"])
    np.testing.assert_array_equal(
        state["layers.0.self_attn.q_norm.weight"], weights["blk.3.attn_q_norm.weight"]
    )
    # the deepest tap is the output of layer 3: layer 4 reads it
    np.testing.assert_array_equal(state["hidden_norm.weight"], weights["blk.4.attn_norm.weight"])
    assert not state["candidate_selector.successor_codebook"].any()
    assert (state["layers.0.attention_conv.base_kernel"][:, 0] == 1).all()
    assert not state["layers.0.attention_conv.base_kernel"][:, 1:].any()
    assert_drafts_alike(head, target, export(head, target, tmp_path), prompt_of("qwen3"))


def test_keys_of_the_context_are_the_targets(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the random part of fc, the layer after the deepest tap reads what it read in the target."""
    monkeypatch.setattr(start, "_OTHER_TAPS", 0.0)
    head, _ = new_head(tiny.target("qwen3"), n_layer=1, taps=(1, 3))
    weights = targets.tensors(targets.TARGETS["qwen3"])
    features = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(1)) * head.feature_scale
    context = head.hidden_norm(head._mix(features))
    deepest = features[..., 64:]
    normed = deepest / deepest.square().mean(-1, keepdim=True).sqrt()
    expected = normed * torch.from_numpy(weights["blk.4.attn_norm.weight"])
    torch.testing.assert_close(context, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35", "phi3", "qwen3moe"])
def test_other_targets_start_anew(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    head, said = new_head(tiny.target(name))
    assert said.startswith("starts anew")
    assert not any(layer.mlp.down_proj.weight.any() for layer in head.layers)
    assert_drafts_alike(head, tiny.target(name), export(head, tiny.target(name), tmp_path), prompt_of(name))


def test_same_seed_same_head(tiny: TinyFiles) -> None:
    first, second = (new_head(tiny.target("llama"))[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("changes", [{"head_dim": 32}, {"n_ff": 96}, {"gelu": True}, {"rope_base": 5e5}])
def test_another_form_is_not_copied(changes: dict[str, Any], tiny: TinyFiles) -> None:
    assert new_head(tiny.target("qwen3"), **changes)[1].startswith("starts anew")
