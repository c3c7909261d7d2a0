"""The head in torch: what it computes is what the engine computes with the exported head."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from pydflash2.convert.config import HeadConfig
from pydflash2.errors import HeadMismatchError, ModelFileError
from pydflash2.train.head import Head
from pydflash2.train.tables import Tables
from tiny import heads, targets
from tiny.files import TinyFiles
from tiny.heads import FULL, SLIDING
from tiny.training import assert_drafts_alike, export, head_of, prompt_of

ROPE = {"rope_theta": 10000.0}

# name -> tiny head, and what is changed of it
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name, head in heads.HEADS.items()
        if not head.own_embedding and not head.own_output and head.target != "qwen3next"
    },
    "gelu": ("plain", {"hidden_act": "gelu_pytorch_tanh"}),
    "linear-rope": ("plain", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 3.0}}),
    "yarn-betas": (
        "yarn",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
            }
        },
    ),
    "yarn-partial": ("yarn", {"rotary_factor": 0.5}),
    "interleaved-rope": ("plain", {"rope_is_neox_style": False}),
    "kernel-1": ("plain", {"conv_kernel": 1}),
    "kernel-longer-than-block": ("plain", {"conv_kernel": 5, "block_size": 4}),
    "group-1": ("plain", {"conv_group": 1}),
    "group-of-everything": ("plain", {"conv_group": 64}),
    "block-2": ("plain", {"block_size": 2}),
    "one-head": ("plain", {"n_head": 1, "n_head_kv": 1}),
    "no-shared-keys": ("plain", {"n_head_kv": 4}),
    "rank-1": ("plain", {"rank": 1, "top_k": 1}),
    "window-1": ("sliding", {"window": 1}),
    "causal-window-1": ("sliding", {"window": 1, "causal": True}),
    "sliding-off-causal": ("window-off", {"layers": (SLIDING, SLIDING)}),
    "causal-full": ("plain", {"causal": True}),
    "gelu-1": ("dflash-1", {"hidden_act": "gelu_pytorch_tanh"}),
    "mixed-1": ("dflash-1", {"layers": (SLIDING, FULL, SLIDING), "causal": None}),
}


def ggml_gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """ggml looks the function up in a table of F16 values on the CPU, which costs three digits."""
    rounded = x.half().float()
    table = (
        0.5 * rounded * (1 + torch.tanh(math.sqrt(2 / math.pi) * (rounded + 0.044715 * rounded**3)))
    ).half()
    assert approximate == "tanh"
    return torch.where(x <= -10, torch.zeros(()), torch.where(x >= 10, x, table.float()))


@pytest.mark.parametrize("name", OPTIONS)
def test_lattice_is_the_engines(
    name: str, tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, changes = OPTIONS[name]
    if "hidden_act" in changes:
        monkeypatch.setattr(torch.nn.functional, "gelu", ggml_gelu)
    head = head_of(base, tmp_path / "made", scaled=True, **changes)
    target = tiny.target(heads.HEADS[base].target)
    gguf = export(head, target, tmp_path / "exported")
    assert_drafts_alike(head, target, gguf, prompt_of(heads.HEADS[base].target))


def inputs(head: Head, n_context: int, anchors: list[list[int]], rows: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(3)
    n_embd = head.config.n_embd
    places = torch.tensor(anchors)
    features = torch.randn(len(anchors), n_context, len(head.config.taps) * n_embd, generator=generator)
    blocks = torch.randn(*places.shape, rows, n_embd, generator=generator)
    return features, blocks, places


@pytest.mark.parametrize("name", ["plain", "mixed", "narrow-window", "narrow-window-causal", "dflash-1"])
@torch.no_grad()
def test_anchors_together_are_each_alone(name: str, tmp_path: Path) -> None:
    """More anchors than one group holds, out of order, twice the same, at 0 and at the context's end."""
    head = head_of(name, tmp_path)
    anchors = [[(7 * place) % 61 for place in range(18)] + [60, 0, 5, 5], [20] * 22]
    features, blocks, places = inputs(head, 60, anchors, 6)
    together = head(features, blocks, places)
    assert together.shape == (2, 22, 5, head.config.n_embd)
    for text in range(2):
        for at in range(22):
            one = (slice(text, text + 1), slice(at, at + 1))
            alone = head(features[text : text + 1, : anchors[text][at]], blocks[one], places[one])
            torch.testing.assert_close(together[one], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_follows_an_anchor_is_not_seen(tmp_path: Path) -> None:
    head = head_of("mixed", tmp_path)
    features, blocks, places = inputs(head, 40, [[10, 30], [12, 17]], 8)
    before = head(features, blocks, places)
    features[0, 30:], features[1, 17:] = 1e4, -1e4
    torch.testing.assert_close(head(features, blocks, places), before)


def test_every_weight_learns(tmp_path: Path) -> None:
    head = head_of("plain", tmp_path)
    features, blocks, places = inputs(head, 40, [[10, 30], [12, 17]], 8)
    hidden = head(features, blocks, places)
    ids = torch.randint(0, 300, (*hidden.shape[:-1], 5), generator=torch.Generator().manual_seed(1))
    scores = head.candidate_selector.scores(hidden, torch.zeros(ids.shape), ids[..., 0], ids)
    (hidden.sum() + scores.square().sum()).backward()
    for key, parameter in head.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all() and parameter.grad.any(), (
            key
        )


def test_autocast_changes_little(tmp_path: Path) -> None:
    head = head_of("plain", tmp_path, scaled=True)
    features, blocks, places = inputs(head, 40, [[10, 30], [12, 17]], 8)
    exact = head(features, blocks, places)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = head(features.bfloat16(), blocks, places)
    rounded.float().sum().backward()
    assert (rounded - exact).norm() < 0.05 * exact.norm()
    assert all(
        parameter.grad.dtype == torch.float32 for parameter in head.parameters() if parameter.grad is not None
    )


def test_features_of_any_size(tmp_path: Path) -> None:
    """Features of 1e5 in some channels, as Gemma's: in BF16 and with a scale, as in F32 without."""
    plain, scaled = head_of("one-layer", tmp_path / "a"), head_of("one-layer", tmp_path / "b", scaled=True)
    features, blocks, places = inputs(plain, 30, [[10, 30]], 8)
    features = (features * 1e5 * scaled.feature_scale).bfloat16()
    torch.testing.assert_close(
        plain(features.float(), blocks, places), scaled(features, blocks, places), rtol=1e-3, atol=1e-4
    )


def test_refusals(tmp_path: Path) -> None:
    head = head_of("plain", tmp_path)
    features, blocks, places = inputs(head, 20, [[10, 21]], 8)
    with pytest.raises(ValueError, match="position 21"):
        head(features, blocks, places)
    with pytest.raises(ValueError, match="feature_scale must be 128 numbers above 0"):
        Head(head.config, torch.zeros(128))
    with pytest.raises(ValueError, match="feature_scale"):
        Head(head.config, torch.ones(64))


# ---- the target's tables ----


def config(name: str, tiny: TinyFiles) -> HeadConfig:
    return HeadConfig.read(tiny.checkpoint(name))


@pytest.mark.parametrize("file_type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_tables_are_the_targets(file_type: str, tiny: TinyFiles) -> None:
    tables = Tables(tiny.target("qwen3", file_type), config("scaled", tiny), "cpu", torch.float32)
    weights = targets.tensors(targets.TARGETS["qwen3"])
    loss = {"f32": 0.0, "f16": 1e-3, "bf16": 8e-3, "q8_0": 0.02, "q4_0": 0.3}[file_type]
    expected = 2.5 * torch.from_numpy(weights["token_embd.weight"])
    for ids in ([[5, 7, 5]], [[7, 319, 0]]):
        torch.testing.assert_close(
            tables.embed(torch.tensor(ids)), expected[torch.tensor(ids)], rtol=loss, atol=2.5 * loss
        )
    everything = tables.everything()
    assert torch.equal(everything.tokens, torch.arange(320))
    torch.testing.assert_close(
        everything.weight, torch.from_numpy(weights["output.weight"]), rtol=loss, atol=2.0 * loss
    )
    hidden = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1))
    some = tables.shortlist(torch.tensor([9, 4, 300]))
    torch.testing.assert_close(some.logits(hidden), everything.logits(hidden)[..., [9, 4, 300]])
    raw = hidden @ everything.weight.T
    torch.testing.assert_close(everything.logits(hidden), torch.tanh(0.4 * raw / 3.0) * 3.0)


def test_tied_tables(tiny: TinyFiles) -> None:
    tables = Tables(tiny.target("qwen3-tied"), config("tied-target", tiny), "cpu", torch.float32)
    assert torch.equal(tables.everything().weight, tables.embed(torch.arange(320)))


def test_tables_refuse(tiny: TinyFiles, tmp_path: Path) -> None:
    with pytest.raises(HeadMismatchError, match="64 values, the head's hidden size is 256"):
        Tables(tiny.target("qwen3"), config("chain-wide", tiny), "cpu", torch.float32)
    tables = Tables(tiny.target("qwen3"), config("plain", tiny), "cpu", torch.float32)
    for ids in ([], [320], [-1]):
        with pytest.raises(ValueError, match="0 to 319"):
            tables.shortlist(torch.tensor(ids, dtype=torch.long))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.target("qwen3").read_bytes()[:2000])
    with pytest.raises(ModelFileError):
        Tables(cut, config("plain", tiny), "cpu", torch.float32)
