"""Heads of any size, described by numbers: GGUF files whose weights are a hole. Nobody computes with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


@dataclass(frozen=True)
class Outline:
    n_embd: int = 4096
    n_layer: int = 5
    n_head: int = 32
    n_head_kv: int = 8
    head_dim: int = 128
    n_ff: int = 12288
    n_vocab: int = 151936
    n_taps: int = 5
    version: int = 2
    block_size: int = 8
    conv_kernel: int = 2
    conv_group: int = 128
    rank: int = 64
    top_k: int = 8
    window: int | None = 2048
    n_full: int = 0  # layers at the end without the window
    type: Type = Type.Q8_0  # of the matrices
    up_type: Type | None = None  # of the layers' up matrices, where another
    own_output: bool = False
    mrope: bool = False
    soft_cap: float | None = None
    logit_scale: float | None = None
    gelu: bool = False
    value_scale: float | None = None

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], Type]]:
        """Name, shape as numpy has it, and type."""
        e, kv = self.n_embd, self.n_head_kv * self.head_dim
        yield "fc.weight", (e, self.n_taps * e), self.type
        yield "enc.output_norm.weight", (e,), Type.F32
        yield "output_norm.weight", (e,), Type.F32
        if self.version == 2:
            yield "selector_predecessor.weight", (self.n_vocab, self.rank), self.type
            yield "selector_successor.weight", (self.n_vocab, self.rank), self.type
            yield "selector_hidden.weight", (self.rank, e), self.type
        if self.own_output:
            yield "output.weight", (self.n_vocab, e), self.type
        for layer in range(self.n_layer):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", (e,), Type.F32
            yield f"{block}.ffn_norm.weight", (e,), Type.F32
            yield f"{block}.attn_q.weight", (self.n_head * self.head_dim, e), self.type
            yield f"{block}.attn_k.weight", (kv, e), self.type
            yield f"{block}.attn_v.weight", (kv, e), self.type
            yield f"{block}.attn_output.weight", (e, self.n_head * self.head_dim), self.type
            yield f"{block}.attn_q_norm.weight", (self.head_dim,), Type.F32
            yield f"{block}.attn_k_norm.weight", (self.head_dim,), Type.F32
            yield f"{block}.ffn_gate.weight", (self.n_ff, e), self.type
            yield f"{block}.ffn_up.weight", (self.n_ff, e), self.up_type or self.type
            yield f"{block}.ffn_down.weight", (e, self.n_ff), self.type
            if self.version == 2:
                for conv in ("attn_conv", "ffn_conv"):
                    yield f"{block}.{conv}_base", (2, self.conv_kernel, e), Type.F32
                    rows = 2 * self.conv_kernel * (e // self.conv_group)
                    yield f"{block}.{conv}_proj.weight", (rows, e), self.type

    def write(self, path: Path) -> Path:
        arch = "dflash"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_embedding_length(self.n_embd)
        writer.add_block_count(self.n_layer)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_head_count(self.n_head)
        writer.add_head_count_kv(self.n_head_kv)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e6)
        writer.add_context_length(32768)
        if self.mrope:
            writer.add_rope_dimension_sections([self.head_dim // 2, 0, 0, 0])
        writer.add_causal_attention(False)
        if self.window is not None:
            writer.add_sliding_window(self.window)
            kinds = [layer < self.n_layer - self.n_full for layer in range(self.n_layer)]
            writer.add_array(f"{arch}.attention.sliding_window_pattern", kinds)
        writer.add_uint32(f"{arch}.block_size", self.block_size)
        writer.add_array(f"{arch}.target_layers", [tap + 1 for tap in range(self.n_taps)])
        if self.version == 2:
            writer.add_uint32(f"{arch}.conv_kernel_size", self.conv_kernel)
            writer.add_uint32(f"{arch}.conv_group_size", self.conv_group)
            writer.add_uint32(f"{arch}.selector_rank", self.rank)
            writer.add_uint32(f"{arch}.selector_top_k", self.top_k)
        if self.logit_scale is not None:
            writer.add_logit_scale(self.logit_scale)
        if self.soft_cap is not None:
            writer.add_final_logit_softcapping(self.soft_cap)
        if self.value_scale is not None:
            writer.add_float32(f"{arch}.attention.value_scale", self.value_scale)
        if self.gelu:
            writer.add_string(f"{arch}.hidden_activation", "gelu")
        writer.add_mask_token_id(0)
        end = 0
        for name, shape, type in self.tensors():
            block, size = gguf.GGML_QUANT_SIZES[type]
            n_bytes = int(np.prod(shape, dtype=np.int64)) // block * size
            stored = (*shape[:-1], shape[-1] // block * size)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), n_bytes, raw_dtype=type)
            end += n_bytes + -n_bytes % gguf.GGUF_DEFAULT_ALIGNMENT
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        size = path.stat().st_size
        os.truncate(path, size + -size % gguf.GGUF_DEFAULT_ALIGNMENT + end)
        return path
