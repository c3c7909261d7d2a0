"""ggml's quantisation and llama-quantize's choice of types, called as the converter calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from gguf.quants import quantize as gguf_quantize

from pydflash2._native import ffi, lib
from pydflash2.errors import ModelFileError
from pydflash2.native import check, string


def quantize(kind: str, values: Any, n_per_row: int) -> bytes:
    source = np.ascontiguousarray(values, np.float32)
    n_rows = source.size // n_per_row
    out = np.empty(source.nbytes + 64, np.uint8)
    written = ffi.new("uint64_t *")
    check(
        lib.pd2_quantize(
            kind.encode(),
            ffi.from_buffer("float[]", source),
            ffi.from_buffer(out),
            n_rows,
            n_per_row,
            written,
        )
    )
    return out[: written[0]].tobytes()


def plan(file_type: str, tensors: dict[str, list[int]], **changes: int) -> list[str | None]:
    geometry = ffi.new("pd2_quantize_geometry *")
    sizes = {"n_embd": 256, "n_ff": 256, "n_layer": 8, "n_head": 4, "n_head_kv": 2, "head_dim": 64} | changes
    for name, size in sizes.items():
        setattr(geometry, name, size)
    names = [ffi.new("char[]", name.encode()) for name in tensors]
    shapes = [side for shape in tensors.values() for side in [*shape, *[1] * (4 - len(shape))]]
    types = ffi.new("const char *[]", len(tensors))
    check(
        lib.pd2_quantize_plan(
            file_type.encode(),
            geometry,
            len(tensors),
            ffi.new("const char *[]", names),
            ffi.new("int64_t[]", shapes),
            types,
        )
    )
    return [None if found == ffi.NULL else string(found) for found in types]


VALUES = np.sin(np.arange(512, dtype=np.float32))


@pytest.mark.parametrize(("kind", "error"), [("q8_0", 0.005), ("q6_K", 0.04), ("q4_K", 0.15), ("q4_0", 0.15)])
def test_values_survive(kind: str, error: float) -> None:
    blocks = np.frombuffer(quantize(kind, VALUES, 256), np.uint8).reshape(2, -1)
    read = dequantize(blocks, GGMLQuantizationType[kind.upper()])
    assert np.abs(read.reshape(-1) - VALUES).max() < error


def test_q8_0_is_the_gguf_packages() -> None:
    """Plain Q8_0 files come from that package, those a plan falls back to from ggml: the same bytes."""
    assert quantize("q8_0", VALUES, 64) == gguf_quantize(VALUES, GGMLQuantizationType.Q8_0).tobytes()


def test_no_rows_are_no_bytes() -> None:
    assert quantize("q4_K", [], 256) == b""


@pytest.mark.parametrize(
    ("kind", "values", "n_per_row", "error", "message"),
    [
        ("q4_k", VALUES, 256, ValueError, "ggml has no tensor type named 'q4_k'"),
        ("iq2_xxs", VALUES, 256, ValueError, "iq2_xxs cannot be made from floats alone"),
        ("i32", VALUES, 256, ValueError, "i32 cannot be made from floats alone"),
        (
            "q4_K",
            VALUES,
            128,
            ValueError,
            "4 rows of 128 values cannot become q4_K: a row must be a multiple of 256",
        ),
        (
            "q8_0",
            [0.0] * 40 + [np.nan] + [0.0] * 23,
            32,
            ModelFileError,
            "the values hold -?nan, which no quantised type can",
        ),
        ("q4_0", [-np.inf] * 32, 32, ModelFileError, "the values hold -inf, which no quantised type can"),
    ],
)
def test_what_cannot_be_quantised(
    kind: str, values: Any, n_per_row: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        quantize(kind, values, n_per_row)


def test_empty_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows of 0 values cannot become q8_0"):
        check(
            lib.pd2_quantize(b"q8_0", ffi.new("float[32]"), ffi.new("char[64]"), 3, 0, ffi.new("uint64_t *"))
        )


def test_what_keeps_its_type() -> None:
    tensors = {
        "fc.weight": [256, 8],
        "output_norm.weight": [256],
        "blk.0.attn_conv_base": [256, 2, 2],
        "d2t": [64],
    }
    assert plan("q4_k_m", tensors) == ["q4_K", None, None, None]


def test_an_own_output_head_gets_more_bits() -> None:
    assert plan("q4_k_m", {"output.weight": [256, 8], "fc.weight": [256, 8]}) == ["q6_K", "q4_K"]


@pytest.mark.parametrize(
    ("file_type", "name", "shape", "changes", "message"),
    [
        ("q9", "a", [1], {}, "no file type is named 'q9': use one of q2_k, q4_0, q4_k_m, q6_k, q8_0"),
        (
            "q4_0",
            "a",
            [1],
            {"n_layer": 513},
            "a head of 513 layers cannot be planned: llama.cpp takes 1 to 512",
        ),
        ("q4_0", "a", [1], {"n_layer": 0}, "a head of 0 layers cannot be planned"),
        (
            "q4_0",
            "a",
            [1],
            {"n_head_kv": 0},
            "sizes of a head must be positive, got n_embd 256, .* n_head_kv 0",
        ),
        ("q4_0", "", [1], {}, "a tensor's name must have 1 to 63 bytes, got ''"),
        ("q4_0", "a" * 64, [1], {}, "a tensor's name must have 1 to 63 bytes"),
        ("q4_0", "a", [0], {}, "tensor a has a side of 0"),
        ("q4_0", "a", [2**40], {}, "tensor a has a side of 1099511627776"),
    ],
)
def test_what_cannot_be_planned(
    file_type: str, name: str, shape: list[int], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(file_type, {name: shape}, **changes)
