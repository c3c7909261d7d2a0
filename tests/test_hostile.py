"""Heads whose metadata or tensors are absurd or of another make: refused with a message, or drafting well."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

from pydflash2._native import lib
from tiny import head_file
from tiny.files import TinyFiles
from tiny.gguf_edit import EditableFile, Tensor
from tiny.heads import HEADS
from tiny.native import Draft, Native, NativeFailure
from tiny.numbers import token_ids

FORMAT, MISMATCH = lib.PD2_ERROR_HEAD_FORMAT, lib.PD2_ERROR_HEAD_MISMATCH
PROMPT = token_ids(3, 40, 0, 256)

Edit = Callable[[EditableFile], object]


def draft(target: Path, head: Path, width: int = 7) -> Draft:
    with Native(target, head, context_size=128) as engine:
        engine.prefill(PROMPT)
        engine.verify(engine.draft(width).tokens)
        return engine.draft(width)


def assert_refused(target: Path, head: Path, status: int, message: str) -> None:
    with pytest.raises(NativeFailure, match=re.escape(message)) as failure:
        Native(target, head, context_size=128)
    assert failure.value.status == status
    if status in (FORMAT, MISMATCH):
        text = str(failure.value)
        assert text.startswith(f"{head}: ")
        assert ";" in text  # what to do


def edited_head(head: Path, edit: Edit, folder: Path) -> Path:
    file = EditableFile(head)
    edit(file)
    return file.write(folder / "head.gguf")


def key(name: str, value: Any, kind: Kind = Kind.UINT32, items: Kind | None = None) -> Edit:
    return lambda file: file.set(f"dflash.{name}", value, kind, items)


def ids(name: str, *values: int, items: Kind = Kind.INT32) -> Edit:
    return key(name, list(values), Kind.ARRAY, items)


def without(*names: str) -> Edit:
    return lambda file: [file.keys.pop(name) for name in names]


def all_of(*edits: Edit) -> Edit:
    return lambda file: [edit(file) for edit in edits]


# ---- metadata ------------------------------------------------------------------------------------

NEEDED = [
    "dflash.embedding_length",
    "dflash.block_count",
    "dflash.feed_forward_length",
    "dflash.attention.head_count",
    "dflash.attention.layer_norm_rms_epsilon",
    "dflash.rope.freq_base",
    "dflash.attention.sliding_window",
    "dflash.attention.sliding_window_pattern",
    "dflash.block_size",
    "dflash.target_layers",
    "dflash.conv_kernel_size",
    "dflash.conv_group_size",
    "dflash.selector_rank",
    "dflash.selector_top_k",
    "tokenizer.ggml.mask_token_id",
]


@pytest.mark.parametrize("name", NEEDED)
def test_a_key_that_is_missing(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("mixed")
    file = EditableFile(head)
    del file.keys[name]
    assert_refused(target, file.write(tmp_path / "head.gguf"), FORMAT, name.split(".")[-1])


@pytest.mark.parametrize("name", NEEDED)
def test_a_key_of_another_type(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("mixed")
    file = EditableFile(head)
    is_array = file.keys[name].kind == Kind.ARRAY
    for value, kind, items in (("8", Kind.STRING, None), ([1.5] * 3, Kind.ARRAY, Kind.FLOAT32)):
        file.set(name, value, kind, items)
        wanted = "a number" if not is_array else "an array" + (" of integers" if items else "")
        path = file.write(tmp_path / "head.gguf")
        assert_refused(
            target, path, FORMAT, f"{name} is not {wanted}; the file is damaged or of another format"
        )


@pytest.mark.parametrize("value", [0, -1, 0.5, 2**31 - 1, 2**32 - 1, 2**63, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", ["block_size", "block_count", "embedding_length", "selector_top_k"])
def test_a_number_beyond_sense(name: str, value: float, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("one-layer")
    file = EditableFile(head)
    whole = isinstance(value, int)
    file.set(f"dflash.{name}", value, (Kind.INT64 if value < 0 else Kind.UINT64) if whole else Kind.FLOAT64)
    path = file.write(tmp_path / "head.gguf")
    assert_refused(target, path, FORMAT, f"dflash.{name} is {value:g}, outside ")


# Each would draft wrongly, ask for absurd memory, or trip an assertion of ggml's that ends the process.
ABSURD: list[tuple[str, Edit, str]] = [
    (
        "plain",
        ids("rope.dimension_sections", 0, 0, 0, 8),
        "dimension_sections does not divide 8 rotated pairs",
    ),
    (
        "plain",
        ids("rope.dimension_sections", 0, 0, 0, 0),
        "dimension_sections does not divide 8 rotated pairs",
    ),
    ("plain", ids("rope.dimension_sections", -1, 2**31 - 1, 5, 0), "does not divide 8 rotated pairs"),
    (
        "plain",
        ids("rope.dimension_sections", 9, 0, 0, 0),
        "dimension_sections does not divide 8 rotated pairs",
    ),
    ("plain", ids("rope.dimension_sections", 4, 4), "has 2 numbers, 3 or 4 are possible"),
    ("plain", key("rope.dimension_count", 3), "3 rotated dimensions; rotary embedding needs an even number"),
    ("plain", key("rope.dimension_count", 18), "dflash.rope.dimension_count is 18, outside 2..16"),
    (
        "plain",
        key("rope.freq_base", 1e-45, Kind.FLOAT64),
        "freq_base is 1e-45; it must be a finite number, above 0",
    ),
    (
        "plain",
        key("rope.freq_base", 1e300, Kind.FLOAT64),
        "dflash.rope.freq_base is 1e+300; it must be a finite",
    ),
    (
        "plain",
        key("rope.scaling.type", "longrope", Kind.STRING),
        "rope scaling 'longrope' is not known; linear and",
    ),
    (
        "yarn",
        key("rope.scaling.factor", 0.0, Kind.FLOAT32),
        "rope.scaling.factor is 0; it must be a finite number",
    ),
    (
        "yarn",
        key("rope.scaling.yarn_beta_fast", -1.0, Kind.FLOAT32),
        "yarn_beta_fast is -1; it must be a finite",
    ),
    ("yarn", without("dflash.rope.scaling.original_context_length"), "original_context_length is missing"),
    (
        "plain",
        key("attention.layer_norm_rms_epsilon", -1.0, Kind.FLOAT32),
        "epsilon is -1; it must be a finite",
    ),
    (
        "plain",
        key("embedding_scale", 0.0, Kind.FLOAT32),
        "embedding_scale is 0; it must be a finite number, above 0",
    ),
    (
        "plain",
        key("embedding_scale", 1e300, Kind.FLOAT64),
        "dflash.embedding_scale is 1e+300; it must be a finite",
    ),
    (
        "plain",
        key("logit_scale", math.nan, Kind.FLOAT32),
        "dflash.logit_scale is nan; it must be a finite number",
    ),
    (
        "plain",
        key("final_logit_softcapping", -1.0, Kind.FLOAT32),
        "softcapping is -1; it must be a finite number, 0 or",
    ),
    (
        "plain",
        key("attention.scale", -1.0, Kind.FLOAT32),
        "dflash.attention.scale is -1; it must be a finite number",
    ),
    ("plain", key("hidden_activation", "relu", Kind.STRING), "activation 'relu' is not known"),
    ("plain", key("attention.head_count_kv", 0), "dflash.attention.head_count_kv is 0, outside 1..65536"),
    ("plain", key("attention.head_count_kv", 3), "4 attention heads are not a multiple of 3 K/V heads"),
    ("plain", key("attention.value_length", 8), "keys of 16 and values of 8 dimensions"),
    ("plain", key("block_count", 3), "the tensor blk.2.attn_k.weight is missing"),
    (
        "plain",
        key("block_count", 1),
        "the tensor blk.1.attn_norm.weight belongs to no part of a DFlash head known here",
    ),
    (
        "plain",
        key("conv_group_size", 48),
        "hidden size 64 is not a multiple of the convolution's group size 48",
    ),
    ("plain", key("selector_top_k", 321), "321 candidates a position out of 320 token ids"),
    (
        "plain",
        all_of(key("block_size", 1024), key("selector_top_k", 320)),
        "more transition scores than memory is",
    ),
    (
        "sliding",
        ids("attention.sliding_window_pattern", 1, items=Kind.BOOL),
        "covers 1 layers, the head has 2",
    ),
    ("sliding", ids("attention.sliding_window_pattern", 1, 1, 0), "covers 3 layers, the head has 2"),
    (
        "sliding",
        key("attention.sliding_window", 0),
        "a window of 0 positions with a sliding_window_pattern; the file",
    ),
    ("plain", key("attention.sliding_window", 9), "a window of 9 positions without a sliding_window_pattern"),
    (
        "window-off",
        lambda file: file.set("pydflash2.attention.causal_pattern", [True], Kind.ARRAY, Kind.BOOL),
        "pydflash2.attention.causal_pattern covers 1 layers, the head has 2",
    ),
    ("plain", ids("target_layers", *[1] * 65), "names 65 target layers, 1 to 64 are possible"),
    ("plain", ids("target_layers", 0, 3), "holds 0; the file stores layer ids plus one, so 1 is the least"),
    ("plain", ids("target_layers", -(2**31), 3), "dflash.target_layers holds -2147483648"),
    ("plain", ids("target_layers", 1, 2, 3), "fc reads 128 features, which 3 taps cannot make up evenly"),
    (
        "plain",
        ids("target_layers", 1, 3, items=Kind.INT64),
        "dflash.target_layers is not an array of integers",
    ),
    (
        "plain",
        lambda file: setattr(file, "architecture", "dflash-draft"),
        "a fork's head format ('dflash-draft')",
    ),
    (
        "plain",
        lambda file: setattr(file, "architecture", "llama"),
        "a head's architecture is 'dflash', this file's is",
    ),
]


@pytest.mark.parametrize(("name", "edit", "message"), ABSURD, ids=[case[2][:40] for case in ABSURD])
def test_metadata_that_cannot_be(
    name: str, edit: Edit, message: str, tiny: TinyFiles, tmp_path: Path
) -> None:
    target, head = tiny.pair(name)
    assert_refused(target, edited_head(head, edit, tmp_path), FORMAT, message)


@pytest.mark.parametrize(
    ("head_dim", "edit"), [(17, key("rope.dimension_count", 16)), (1, lambda file: None)]
)
def test_heads_of_odd_size(head_dim: int, edit: Edit, tiny: TinyFiles, tmp_path: Path) -> None:
    """ggml's rope copies what it does not rotate in pairs: with an odd size it would write past the row."""
    odd = dataclasses.replace(HEADS["plain"], head_dim=head_dim)
    file = EditableFile(head_file.write(odd, tmp_path / "odd.gguf"))
    edit(file)
    message = f"attention heads of {head_dim} dimensions; rotary embedding needs an even number, 2 at least"
    assert_refused(tiny.target("qwen3"), file.write(tmp_path / "head.gguf"), FORMAT, message)


def test_heads_of_no_size(tiny: TinyFiles, tmp_path: Path) -> None:
    """More heads than hidden dimensions, and the head's own size left to be worked out: 64 / 128."""
    target, head = tiny.pair("plain")
    file = EditableFile(head)
    all_of(
        key("attention.head_count", 128),
        key("attention.head_count_kv", 128),
        without("dflash.attention.key_length", "dflash.attention.value_length"),
    )(file)
    shapes = {"q": (0, 64), "k": (0, 64), "v": (0, 64), "output": (64, 0), "q_norm": (0,), "k_norm": (0,)}
    for layer in (0, 1):
        for part, shape in shapes.items():
            file.tensors[f"blk.{layer}.attn_{part}.weight"].data = np.zeros(shape, np.float32)
    message = "attention heads of 0 dimensions; rotary embedding needs an even number"
    assert_refused(target, file.write(tmp_path / "head.gguf"), FORMAT, message)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "plain",
            ids("target_layers", 1, 6),
            "the head taps layer 5, the target has layers 0..4; use the head",
        ),
        ("plain", ids("target_layers", 1, 2**31 - 1), "the head taps layer 2147483646"),
        ("plain", ids("target_layers", 1, 200, items=Kind.UINT8), "the head taps layer 199"),
        (
            "plain",
            ids("target_layers", 1),
            "the head reads 1 taps of hidden size 128, the target's hidden size is 64",
        ),
        (
            "plain",
            lambda file: file.set("tokenizer.ggml.mask_token_id", 320),
            "the head's mask token is 320, the target's token ids are 0..319",
        ),
        ("dflash-1", without("tokenizer.ggml.tokens"), "the head covers 0 token ids, the target has 320"),
    ],
)
def test_a_head_for_another_target(
    name: str, edit: Edit, message: str, tiny: TinyFiles, tmp_path: Path
) -> None:
    target, head = tiny.pair(name)
    assert_refused(target, edited_head(head, edit, tmp_path), MISMATCH, message)


# ---- odd, but right ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 2},
        {"block_size": 1024},
        {"conv_kernel": 1},
        {"conv_kernel": 20},
        {"conv_kernel": 64},
        {"conv_group": 64},
        {"conv_group": 1},
        {"top_k": 1},
        {"top_k": 320},
        {"rank": 1},
        {"head_dim": 2},
        {"n_head_kv": 4},
        {"taps": (2, 2)},
        {"taps": (0,) * 64},
        {"layers": ("sliding_attention",) * 2, "window": 1},
        {"layers": ("sliding_attention",) * 2, "window": 10**9},
    ],
    ids=str,
)
def test_geometry_at_its_limits(change: dict[str, Any], tiny: TinyFiles, tmp_path: Path) -> None:
    head = dataclasses.replace(HEADS["plain"], **change)
    made = draft(tiny.target("qwen3"), head_file.write(head, tmp_path / "head.gguf"))
    assert len(made.tokens) == min(head.block_size - 1, 7)
    assert made.candidates.shape == (len(made.tokens), head.top_k)
    assert np.isfinite(made.scores).all()
    for row in made.candidates:
        assert len(set(row.tolist())) == head.top_k


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("plain", ids("rope.dimension_sections", 8, 0, 0)),
        ("plain", ids("target_layers", 1, 3, items=Kind.UINT8)),
        ("plain", ids("target_layers", 1, 3, items=Kind.UINT32)),
        ("plain", key("block_size", 8, Kind.UINT8)),
        ("plain", key("block_size", 8, Kind.INT64)),
        ("sliding", ids("attention.sliding_window_pattern", 1, 1)),
        (
            "plain",
            without("dflash.attention.key_length", "dflash.attention.value_length", "dflash.context_length"),
        ),
        (
            "reduced-vocabulary",
            lambda file: file.tensors.update(d2t=Tensor(file.tensors["d2t"].data.astype(np.int32), Type.I32)),
        ),
    ],
)
def test_another_writers_spelling_changes_nothing(
    name: str, edit: Edit, tiny: TinyFiles, tmp_path: Path
) -> None:
    target, head = tiny.pair(name)
    ours, theirs = draft(target, edited_head(head, edit, tmp_path)), draft(target, head)
    np.testing.assert_array_equal(ours.candidates, theirs.candidates)
    np.testing.assert_array_equal(ours.scores, theirs.scores)


# ---- tensors -------------------------------------------------------------------------------------


def test_every_tensor_is_needed_and_has_one_shape(tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("one-layer")
    path = tmp_path / "head.gguf"
    for name, tensor in EditableFile(head).tensors.items():
        file = EditableFile(head)
        del file.tensors[name]
        if name != "selector_predecessor.weight":  # tells the versions apart
            assert_refused(
                target, file.write(path), FORMAT, f"the tensor {name} is missing; the file is incomplete"
            )
        file.tensors[name + "x"] = tensor
        with pytest.raises(NativeFailure, match=re.escape(name)):
            Native(target, file.write(path))
        for data in (np.concatenate([tensor.data, tensor.data[..., :1]], -1), tensor.data[:0]):
            file = EditableFile(head)
            file.tensors[name].data = data
            with pytest.raises(NativeFailure, match=r"has shape|taps|token ids") as failure:
                Native(target, file.write(path))
            assert failure.value.status in (FORMAT, MISMATCH)


def edited(name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Edit:
    return lambda file: setattr(file.tensors[name], "data", change(file.tensors[name].data))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "reduced-vocabulary",
            edited("d2t", lambda d: np.where(d == d[5], 320, d)),
            "maps row 5 to token 320, outside",
        ),
        (
            "reduced-vocabulary",
            edited("d2t", lambda d: np.where(d == d[5], -1, d)),
            "maps row 5 to token -1, outside",
        ),
        (
            "reduced-vocabulary",
            edited("d2t", lambda d: np.where(d == d[5], 2**32 + 7, d)),
            "to token 4294967303",
        ),
        (
            "reduced-vocabulary",
            edited("d2t", lambda d: d - np.arange(len(d))),
            "it must hold token ids, not offsets",
        ),
        (
            "reduced-vocabulary",
            edited("d2t", lambda d: d[:-1]),
            "d2t has shape [95, 1, 1], the metadata ask for [96",
        ),
        (
            "reduced-vocabulary",
            lambda file: file.tensors.update(d2t=Tensor(np.zeros(96, np.float32), Type.F32)),
            "d2t has type f32, token ids are i64 or i32",
        ),
        (
            "reduced-vocabulary",
            lambda file: file.tensors.pop("d2t"),
            "96 rows for 320 token ids, and no d2t table",
        ),
        (
            "reduced-vocabulary",
            lambda file: file.tensors.pop("output.weight"),
            "(d2t) without its own output.weight",
        ),
        (
            "plain",
            lambda file: file.tensors.update(d2t=Tensor(np.arange(320), Type.I64)),
            "(d2t) without its own output",
        ),
        (
            "plain",
            lambda file: file.tensors.update(
                {"blk.0.attn_q.bias": Tensor(np.zeros(64, np.float32), Type.F32)}
            ),
            "the tensor blk.0.attn_q.bias belongs to no part of a DFlash head known here; running",
        ),
        (
            "plain",
            lambda file: file.tensors.update(
                {"markov_w1.weight": Tensor(np.zeros((2, 2), np.float32), Type.F32)}
            ),
            "a DSpark head (tensor markov_w1.weight); this engine runs DFlash 1 and DFlash 2 heads",
        ),
    ],
)
def test_tensors_that_do_not_belong(
    name: str, edit: Edit, message: str, tiny: TinyFiles, tmp_path: Path
) -> None:
    target, head = tiny.pair(name)
    assert_refused(target, edited_head(head, edit, tmp_path), FORMAT, message)
