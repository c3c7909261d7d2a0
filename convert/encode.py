"""Weight types: which one each tensor gets, and how stored values become it.

Pieces keep memory small whatever a tensor's size. A table of all 65,536 values makes BF16 -> F16 a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize as gguf_quantize

from pydflash2.errors import HeadFormatError

from . import quantize
from .config import HeadConfig
from .tensors import HeadTensor

Piece = npt.NDArray[Any]

FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
    "q6_k": LlamaFileType.MOSTLY_Q6_K,
    "q2_k": LlamaFileType.MOSTLY_Q2_K,
}
_CONVERTER_TYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
}

_PIECE = 1 << 20  # values: 2 MB as BF16, which still fits a cache
_F16_INFINITY = 0x7C00


def automatic_outtype(tensors: list[HeadTensor]) -> str:
    """The checkpoint's own 16-bit type, F16 where it has none: what llama.cpp's converter takes."""
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.stored.dtype in ("BF16", "F16"):
            return tensor.stored.dtype.lower()
    return "f16"


def choose_types(
    outtype: str, config: HeadConfig, head_dim: int, tensors: list[HeadTensor]
) -> list[GGMLQuantizationType]:
    """Each tensor's type: as llama.cpp's converter gives it, or else as llama-quantize does."""
    if outtype in _CONVERTER_TYPES:
        return [_converter_type(tensor, _CONVERTER_TYPES[outtype]) for tensor in tensors]
    planned = quantize.plan(outtype, config, head_dim, tensors)
    return [
        GGMLQuantizationType.F32 if name is None else GGMLQuantizationType[name.upper()] for name in planned
    ]


def _converter_type(tensor: HeadTensor, default: GGMLQuantizationType) -> GGMLQuantizationType:
    if len(tensor.shape) < 2 or tensor.name.endswith("_norm.weight") or not tensor.name.endswith(".weight"):
        return GGMLQuantizationType.F32
    if tensor.shape[-1] % GGML_QUANT_SIZES[default][0]:
        return GGMLQuantizationType.F16  # Q8_0 comes in blocks of 32
    return default


def n_bytes(tensor: HeadTensor, kind: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return tensor.stored.n_elements // block * block_bytes


def encode(tensor: HeadTensor, kind: GGMLQuantizationType, head_dim: int) -> Iterator[Piece]:
    """The tensor's bytes as `kind`, piece by piece. Raises `HeadFormatError` for what F16 can't hold."""
    row = tensor.shape[-1]
    n_rows = max(1, _PIECE // row)
    if tensor.interleaved:
        n_rows = max(head_dim, n_rows // head_dim * head_dim)
    convert = _converter(tensor, kind)
    for piece in tensor.stored.pieces(n_rows * row):
        if tensor.interleaved:
            n_inner = row if len(tensor.shape) > 1 else 1
            pairs = piece.reshape(
                -1, head_dim // 2, 2, n_inner
            )  # [n_head, head_dim / 2, even or odd, n_inner]
            piece = np.ascontiguousarray(pairs.swapaxes(1, 2))
        yield convert(piece.reshape(-1, row))


def _converter(tensor: HeadTensor, kind: GGMLQuantizationType) -> Callable[[Piece], Piece]:
    stored = tensor.stored.dtype
    if kind.name == stored:
        return lambda rows: rows
    if kind is GGMLQuantizationType.F32:
        return lambda rows: _to_f32(rows, stored)
    if kind is GGMLQuantizationType.F16:
        to_f16 = _bf16_to_f16() if stored == "BF16" else _f32_to_f16
        return lambda rows: _checked_f16(to_f16(rows), tensor)
    if kind is GGMLQuantizationType.BF16:
        return lambda rows: gguf_quantize(_to_f32(rows, stored), kind)
    if kind is GGMLQuantizationType.Q8_0:
        return lambda rows: gguf_quantize(_checked_finite(_to_f32(rows, stored), tensor), kind)
    return lambda rows: quantize.rows(kind, _to_f32(rows, stored), tensor.stored.name)


def _to_f32(rows: Piece, stored: str) -> npt.NDArray[np.float32]:
    if stored == "BF16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32, copy=False)


def _f16_of_every_bf16() -> npt.NDArray[np.uint16]:
    every = np.arange(1 << 16, dtype=np.uint32) << 16
    with np.errstate(all="ignore"):
        return every.view(np.float32).astype(np.float16).view(np.uint16)


_F16_OF_BF16 = _f16_of_every_bf16()


def _bf16_to_f16() -> Callable[[Piece], Piece]:
    buffer = np.empty(0, np.uint16)

    def convert(rows: Piece) -> Piece:
        nonlocal buffer
        if buffer.size < rows.size:
            buffer = np.empty(rows.size, np.uint16)
        # "clip" and a buffer that stays make this twice as fast as indexing
        return np.take(_F16_OF_BF16, rows, out=buffer[: rows.size].reshape(rows.shape), mode="clip")

    return convert


def _f32_to_f16(rows: Piece) -> Piece:
    with np.errstate(all="ignore"):
        return rows.astype(np.float16).view(np.uint16)


def _checked_finite(rows: npt.NDArray[np.float32], tensor: HeadTensor) -> npt.NDArray[np.float32]:
    if not np.isfinite(rows).all():
        raise HeadFormatError(f"{tensor.stored.name} can't be quantised: it holds values that are not finite")
    return rows


def _checked_f16(bits: npt.NDArray[np.uint16], tensor: HeadTensor) -> npt.NDArray[np.uint16]:
    # Bits order like magnitudes: the maximum is the largest positive value as signed numbers, the largest
    # negative one as unsigned numbers. Two reductions, no copy.
    if bits.view(np.int16).max() >= _F16_INFINITY or bits.max() >= 0x8000 | _F16_INFINITY:
        raise HeadFormatError(
            f"{tensor.stored.name} holds values that F16 can't (beyond 65504, or not finite). "
            "Use --outtype bf16"
        )
    return bits
