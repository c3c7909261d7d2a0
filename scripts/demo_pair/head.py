"""The DFlash 2 head: drafts a block of tokens in one pass from the target's features.

Own implementation of the published architecture for training: many anchors of a text at once. Parameter
names are those of published checkpoints (the codebooks are bare parameters there, without `.weight`), so a
state dict is already a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .corpus import MASK_ID
from .model import Attention, FeedForward, Geometry, RMSNorm, rotary_tables


@dataclass(frozen=True)
class HeadGeometry:
    """What a head adds to its target's sizes."""

    taps: tuple[int, ...] = (1, 4, 7, 10)
    layers: int = 1
    block: int = 8
    window: int = 512
    kernel: int = 2
    group: int = 16
    rank: int = 32
    candidates: int = 8


class DynamicConvolution(nn.Module):
    """Causal convolutions over the block, before and after a sublayer, whose kernels depend on the row.

    out[i, c] = sum over t of (base[side, t, c] + dynamic[i, side, t, c // group]) * x[i - t, c]
    """

    def __init__(self, hidden: int, kernel: int, group: int):
        super().__init__()
        self.kernel = kernel
        self.group = group
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * kernel * (hidden // group), bias=False)

    def kernels(self, normed: Tensor) -> Tensor:
        """[side, ..., tap, hidden]: both sides' kernels, from the sublayer's normed input."""
        dynamic = self.kernel_projection(normed).unflatten(-1, (2, self.kernel, -1)).movedim(-3, 0)
        base = self.base_kernel.view(2, *[1] * (normed.dim() - 1), self.kernel, -1)
        return dynamic.repeat_interleave(self.group, dim=-1) + base

    @staticmethod
    def apply(x: Tensor, kernels: Tensor) -> Tensor:
        """Convolve x [..., rows, hidden] along its rows; zero before the first one."""
        out = kernels[..., 0, :] * x
        for tap in range(1, kernels.shape[-2]):
            shifted = F.pad(x[..., :-tap, :], (0, 0, tap, 0))
            out = out + kernels[..., tap, :] * shifted
        return out


@dataclass(frozen=True)
class Tables:
    """Rotary tables of the context rows and of the block rows."""

    context: tuple[Tensor, Tensor]
    block: tuple[Tensor, Tensor]


class HeadLayer(nn.Module):
    """A decoder layer whose block rows attend to the context's features and to their own block."""

    def __init__(self, geometry: Geometry, head: HeadGeometry):
        super().__init__()
        self.input_layernorm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.self_attn = Attention(geometry)
        self.post_attention_layernorm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.mlp = FeedForward(geometry)
        self.attention_conv = DynamicConvolution(geometry.hidden, head.kernel, head.group)
        self.mlp_conv = DynamicConvolution(geometry.hidden, head.kernel, head.group)

    def forward(self, x: Tensor, context: Tensor, tables: Tables, mask: Tensor) -> Tensor:
        """x [batch, anchors, block, hidden], context [batch, rows, hidden], mask [batch, 1, rows, keys]."""
        batch, anchors, block, _ = x.shape
        normed = self.input_layernorm(x)
        before, after = self.attention_conv.kernels(normed)
        mixed = DynamicConvolution.apply(normed, before).flatten(1, 2)
        attention = self.self_attn
        queries = attention.queries(mixed, *tables.block)
        keys, values = attention.keys_values(mixed, *tables.block)
        context_keys, context_values = attention.keys_values(context, *tables.context)
        keys = torch.cat([context_keys, keys], dim=2)
        values = torch.cat([context_values, values], dim=2)
        out = attention.attend(queries, keys, values, causal=False, mask=mask)
        x = x + DynamicConvolution.apply(out.view(batch, anchors, block, -1), after)
        normed = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(normed)
        return x + DynamicConvolution.apply(self.mlp(DynamicConvolution.apply(normed, before)), after)


class CandidateSelector(nn.Module):
    """Scores steps from one candidate to the next: a low-rank table gated by the hidden state."""

    def __init__(self, geometry: Geometry, rank: int):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(geometry.vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(geometry.vocabulary, rank))
        self.hidden_projection = nn.Linear(geometry.hidden, rank, bias=False)

    def scores(self, hidden: Tensor, unary: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """[..., K] scores of `candidates` [..., K] after `previous` [...], given their unary logits."""
        gate = self.predecessor_codebook[previous] * self.hidden_projection(hidden)
        return unary + (self.successor_codebook[candidates] * gate[..., None, :]).sum(-1)


class Head(nn.Module):
    """Features of committed tokens in, hidden states of a block's predicted rows out."""

    def __init__(self, geometry: Geometry, head: HeadGeometry):
        super().__init__()
        self.geometry = geometry
        self.head = head
        self.fc = nn.Linear(len(head.taps) * geometry.hidden, geometry.hidden, bias=False)
        self.hidden_norm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.layers = nn.ModuleList(HeadLayer(geometry, head) for _ in range(head.layers))
        self.norm = RMSNorm(geometry.hidden, geometry.norm_epsilon)
        self.candidate_selector = CandidateSelector(geometry, head.rank)

    def initialise(self, seed: int) -> None:
        """Convolutions start as the identity and the selector as silent, so that both only ever add."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("base_kernel"):
                nn.init.zeros_(parameter)
                parameter.data[:, 0] = 1.0
            elif name.endswith(
                ("kernel_projection.weight", "successor_codebook", "o_proj.weight", "down_proj.weight")
            ):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)

    def block_ids(self, anchors: Tensor, rows: int) -> Tensor:
        """[..., rows]: each anchor token followed by mask tokens."""
        ids = torch.full((*anchors.shape, rows), MASK_ID, dtype=torch.long)
        ids[..., 0] = anchors
        return ids

    def visible(self, anchors: Tensor, context: int, rows: int) -> Tensor:
        """[batch, block rows, context + block rows]: the anchor's past and the own block, in the window."""
        batch, count = anchors.shape
        row = torch.arange(rows)
        positions = (anchors[..., None] + row).flatten(1)
        distance = positions[..., None] - torch.arange(context)
        past = torch.arange(context) < anchors.repeat_interleave(rows, dim=1)[..., None]
        owner = torch.arange(count).repeat_interleave(rows)
        apart = (row.repeat(count)[:, None] - row.repeat(count)).abs()
        own = (owner[:, None] == owner) & (apart < self.head.window)
        return torch.cat([past & (distance < self.head.window), own.expand(batch, -1, -1)], dim=-1)

    def forward(self, features: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Normed hidden states [batch, anchors, rows - 1, hidden] of the rows that predict.

        `features` [batch, context, taps * hidden] of positions 0.., `blocks` [batch, anchors, rows, hidden]
        the embedded blocks, `anchors` [batch, anchors] the positions of their first rows.
        """
        rows = blocks.shape[2]
        geometry = self.geometry
        context = self.hidden_norm(self.fc(features))
        positions = (anchors[..., None] + torch.arange(rows)).flatten(1)
        tables = Tables(
            rotary_tables(torch.arange(features.shape[1]), geometry.head_size, geometry.rope_theta),
            tuple(t[:, None] for t in rotary_tables(positions, geometry.head_size, geometry.rope_theta)),
        )
        mask = self.visible(anchors, features.shape[1], rows)[:, None]
        x = blocks
        for layer in self.layers:
            x = layer(x, context, tables, mask)
        return self.norm(x)[:, :, 1:]

    def choose(self, hidden: Tensor, logits: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy path [..., rows] through the candidates [..., rows, K], starting from the anchor tokens."""
        unary, candidates = logits.topk(self.head.candidates, dim=-1)
        previous, path = anchors, []
        for row in range(hidden.shape[-2]):
            scores = self.candidate_selector.scores(
                hidden[..., row, :], unary[..., row, :], previous, candidates[..., row, :]
            )
            previous = candidates[..., row, :].gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            path.append(previous)
        return torch.stack(path, dim=-1), candidates
