"""The target: a Qwen3-architecture decoder.

Weight names are those of Hugging Face's Qwen3 below `model.`, so a state dict is already a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Geometry:
    """Sizes of a Qwen3 decoder. Every row is a multiple of 32, the block of llama.cpp's Q8_0."""

    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 12
    heads: int = 4
    key_value_heads: int = 2
    head_size: int = 64
    feed_forward: int = 704
    context: int = 1024
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon).to(x.dtype)


def rotary_tables(positions: Tensor, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [..., head_size], for the "neox" layout: the two halves of a head form the pairs."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, rows, head_size]; tables [rows, head_size] or [batch, 1, ...]."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with a norm on each query and key head."""

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.head_size = geometry.head_size
        self.groups = geometry.heads // geometry.key_value_heads
        queries = geometry.heads * geometry.head_size
        keys = geometry.key_value_heads * geometry.head_size
        self.q_proj = nn.Linear(geometry.hidden, queries, bias=False)
        self.k_proj = nn.Linear(geometry.hidden, keys, bias=False)
        self.v_proj = nn.Linear(geometry.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, geometry.hidden, bias=False)
        self.q_norm = RMSNorm(geometry.head_size, geometry.norm_epsilon)
        self.k_norm = RMSNorm(geometry.head_size, geometry.norm_epsilon)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(self.q_norm(self.split(self.q_proj(x))).transpose(1, 2), cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        keys = rotate(self.k_norm(self.split(self.k_proj(x))).transpose(1, 2), cos, sin)
        return keys, self.split(self.v_proj(x)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention of all rows. Query heads in groups share a key/value head."""
        keys, values = (
            shared.repeat_interleave(self.groups, dim=1) for shared in self.keys_values(x, cos, sin)
        )
        out = F.scaled_dot_product_attention(self.queries(x, cos, sin), keys, values, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.gate_proj = nn.Linear(geometry.hidden, geometry.feed_forward, bias=False)
        self.up_proj = nn.Linear(geometry.hidden, geometry.feed_forward, bias=False)
        self.down_proj = nn.Linear(geometry.feed_forward, geometry.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.input_layernorm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.self_attn = Attention(geometry)
        self.post_attention_layernorm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.mlp = FeedForward(geometry)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    """The language model; the output head is the token table."""

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.geometry = geometry
        self.embed_tokens = nn.Embedding(geometry.vocabulary, geometry.hidden)
        self.layers = nn.ModuleList(Layer(geometry) for _ in range(geometry.layers))
        self.norm = RMSNorm(geometry.hidden, geometry.norm_epsilon)

    def initialise(self, seed: int) -> None:
        """Small random weights; projections back into the residual stream start at zero."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                scale = 0.02 if name.startswith("embed") else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=scale, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Normed hidden states [batch, rows, hidden]."""
        positions = torch.arange(ids.shape[1])
        cos, sin = rotary_tables(positions, self.geometry.head_size, self.geometry.rope_theta)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.embed_tokens.weight)
