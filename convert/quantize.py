"""llama-quantize's choice of types and ggml's quantisation, through the compiled module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pydflash2._native import ffi, lib
from pydflash2.errors import HeadFormatError, ModelFileError
from pydflash2.native import check, string

from .config import HeadConfig
from .tensors import HeadTensor


def _ggml_name(kind: GGMLQuantizationType) -> bytes:
    return kind.name.lower().replace("_k", "_K").encode()


def plan(
    file_type: str, config: HeadConfig, head_dim: int, tensors: Sequence[HeadTensor]
) -> list[str | None]:
    """ggml's name of the type that llama-quantize gives each tensor, None where it keeps its own."""
    geometry = ffi.new("pd2_quantize_geometry *")
    geometry.n_embd, geometry.n_ff, geometry.n_layer = config.n_embd, config.n_ff, config.n_layer
    geometry.n_head, geometry.n_head_kv, geometry.head_dim = config.n_head, config.n_head_kv, head_dim
    names = [ffi.new("char[]", tensor.name.encode()) for tensor in tensors]
    shapes = [(*reversed(tensor.shape), *(1,) * (4 - len(tensor.shape))) for tensor in tensors]
    types = ffi.new("const char *[]", len(tensors))
    check(
        lib.pd2_quantize_plan(
            file_type.encode(),
            geometry,
            len(tensors),
            ffi.new("const char *[]", names),
            ffi.new("int64_t[]", [side for shape in shapes for side in shape]),
            types,
        )
    )
    return [None if types[i] == ffi.NULL else string(types[i]) for i in range(len(tensors))]


def rows(kind: GGMLQuantizationType, values: npt.NDArray[np.float32], name: str) -> npt.NDArray[Any]:
    """Quantises [n_rows, n_per_row] on all cores. A row's bytes depend on that row alone."""
    n_rows, n_per_row = values.shape
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = n_per_row // block * block_bytes
    out = np.empty((n_rows, row_bytes), np.uint8)
    n_threads = min(os.cpu_count() or 1, n_rows)
    bounds = [n_rows * i // n_threads for i in range(n_threads + 1)]

    def quantize_slice(first: int, last: int) -> None:
        written = ffi.new("uint64_t *")
        status = lib.pd2_quantize(
            _ggml_name(kind),
            ffi.from_buffer("float[]", values[first:last]),
            ffi.from_buffer(out[first:last]),
            last - first,
            n_per_row,
            written,
        )
        if status != lib.PD2_OK:
            check(status)
        if written[0] != (last - first) * row_bytes:
            raise HeadFormatError(
                f"ggml wrote {written[0]} bytes of {name}, where {kind.name} takes {row_bytes} a row"
            )

    try:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(quantize_slice, bounds[:-1], bounds[1:]))
    except ModelFileError as error:
        raise HeadFormatError(f"{name} can't be quantised: {error}") from error
    return out
