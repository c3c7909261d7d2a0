"""A DFlash head as a torch module: many anchors of a text at once, for training.

Own implementation of the published architecture. Parameter names are those of published checkpoints (the
codebooks are bare parameters there, without `.weight`), so a state dict maps to a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pydflash2.convert.config import HeadConfig

from .rope import Rope

# Block rows that share one product with the context. They also meet each other's keys, hidden by the mask:
# few are little waste, many are few calls.
_ROWS_TOGETHER = {"cpu": 64}
_ROWS_TOGETHER_ELSEWHERE = 256


def _split(x: Tensor, size: int) -> Tensor:
    """[..., n] -> [..., n / size, size]."""
    return x.view(*x.shape[:-1], x.shape[-1] // size, size)  # not -1: there may be no rows


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last side, computed in F32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon)


class DynamicConvolution(nn.Module):
    """Causal convolutions over a block, before and after a sublayer, whose kernels depend on the row.

    out[i, c] = sum over t of (base[side, t, c] + dynamic[i, side, t, c // group]) * x[i - t, c]
    """

    def __init__(self, n_embd: int, kernel: int, group: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.group = group
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel, n_embd))
        self.kernel_projection = nn.Linear(n_embd, 2 * kernel * (n_embd // group), bias=False)

    def kernels(self, normed: Tensor) -> Tensor:
        """Both sides' row-dependent part from the sublayer's normed input, [..., 2, kernel, groups]."""
        projected: Tensor = self.kernel_projection(normed)
        return projected.view(*normed.shape[:-1], 2, self.kernel, -1)

    def forward(self, x: Tensor, kernels: Tensor, side: int) -> Tensor:
        """Convolves x [..., rows, n_embd] along its rows; there is nothing before the first."""
        blocks = _split(x, self.group)  # [..., rows, groups, group]
        base = _split(self.base_kernel[side], self.group)  # [kernel, groups, group]
        dynamic = kernels[..., side, :, :, None]  # [..., rows, kernel, groups, 1]
        out = (base[0] + dynamic[..., 0, :, :]) * blocks
        for tap in range(1, min(self.kernel, x.shape[-2])):
            term = (base[tap] + dynamic[..., tap:, tap, :, :]) * blocks[..., :-tap, :, :]
            out = out + F.pad(term, (0, 0, 0, 0, tap, 0))
        return out.flatten(-2)


@dataclass(frozen=True)
class _Group:
    """Some anchors of each text, the stretch of context that their blocks see, and who sees what of it."""

    anchors: slice
    context: slice
    masks: dict[tuple[bool, bool], Tensor]  # (sliding, causal) -> [batch, 1, share * rows, context + rows]


@dataclass(frozen=True)
class _Places:
    """Where the rows of one forward lie: the same for every layer."""

    groups: list[_Group]
    block_tables: tuple[Tensor, Tensor]  # [batch, n_anchors, rows, 1, n_rot / 2]
    context_tables: tuple[Tensor, Tensor]  # [context, 1, n_rot / 2]


class Attention(nn.Module):
    """Grouped-query attention of block rows over the context and their own block."""

    def __init__(self, config: HeadConfig, head_dim: int, sliding: bool) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.share = config.n_head // config.n_head_kv  # query heads of one key/value head
        self.kind = attention_kind(config, sliding)
        n_query, n_key = config.n_head * head_dim, config.n_head_kv * head_dim
        self.q_proj = nn.Linear(config.n_embd, n_query, bias=False)
        self.k_proj = nn.Linear(config.n_embd, n_key, bias=False)
        self.v_proj = nn.Linear(config.n_embd, n_key, bias=False)
        self.o_proj = nn.Linear(n_query, config.n_embd, bias=False)
        self.q_norm = RMSNorm(head_dim, config.rms_epsilon)
        self.k_norm = RMSNorm(head_dim, config.rms_epsilon)

    def _keys_values(self, x: Tensor, rope: Rope, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Of rows x [..., n_embd]: [..., n_head_kv, head_dim] each."""
        return rope(self.k_norm(_split(self.k_proj(x), self.head_dim)), *tables), _split(
            self.v_proj(x), self.head_dim
        )

    def forward(self, x: Tensor, context: Tensor, rope: Rope, places: _Places) -> Tensor:
        """x [batch, n_anchors, rows, n_embd] and context [batch, context, n_embd] -> the shape of x."""
        n_rows = x.shape[2]
        queries = rope(self.q_norm(_split(self.q_proj(x), self.head_dim)), *places.block_tables)
        own = self._keys_values(x, rope, places.block_tables)
        past = self._keys_values(context, rope, places.context_tables)
        kind = compute_type(x)
        queries, own_keys, own_values, past_keys, past_values = (
            part.to(kind) for part in (queries, *own, *past)
        )
        outs = []
        for group in places.groups:
            keys, values = (
                torch.cat([before[:, group.context], inside[:, group.anchors].flatten(1, 2)], dim=1)
                for before, inside in ((past_keys, own_keys), (past_values, own_values))
            )  # [batch, context + n * rows, n_head_kv, head_dim]
            # The query heads that share keys become further rows: no key is copied.
            rows = queries[:, group.anchors].flatten(1, 2)  # [batch, n * rows, n_head, head_dim]
            rows = rows.view(*rows.shape[:2], -1, self.share, self.head_dim).permute(0, 2, 3, 1, 4)
            with torch.autocast(x.device.type, enabled=False):
                out = F.scaled_dot_product_attention(
                    rows.flatten(2, 3),  # [batch, n_head_kv, share * n * rows, head_dim]
                    keys.transpose(1, 2),
                    values.transpose(1, 2),
                    attn_mask=group.masks[self.kind].to(kind),
                )
            out = out.view(rows.shape).permute(0, 3, 1, 2, 4).flatten(2)  # [batch, n * rows, n_query]
            outs.append(out.view(len(out), -1, n_rows, out.shape[-1]))
        return self.o_proj(torch.cat(outs, dim=1))


def compute_type(x: Tensor) -> torch.dtype:
    """The type that attention computes in: autocast's on an accelerator, F32 on the CPU.

    Few CPUs multiply BF16 as fast as F32, and its attention's backward pass is several times slower there.
    """
    device = x.device.type
    if device != "cpu" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.float32


def attention_kind(config: HeadConfig, sliding: bool) -> tuple[bool, bool]:
    """Whether such a layer has a window, and whether it is causal."""
    return sliding and config.window is not None, sliding if config.causal is None else config.causal


class FeedForward(nn.Module):
    """Gated feed-forward: down(act(gate(x)) * up(x))."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gelu = config.gelu
        self.gate_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.down_proj = nn.Linear(config.n_ff, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return self.down_proj(gate * self.up_proj(x))


class Layer(nn.Module):
    """A decoder layer whose block rows attend to the context's features and to their own block."""

    attention_conv: DynamicConvolution | None
    mlp_conv: DynamicConvolution | None

    def __init__(self, config: HeadConfig, head_dim: int, sliding: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.n_embd, config.rms_epsilon)
        self.self_attn = Attention(config, head_dim, sliding)
        self.post_attention_layernorm = RMSNorm(config.n_embd, config.rms_epsilon)
        self.mlp = FeedForward(config)
        self.attention_conv = self.mlp_conv = None
        if config.version == 2:
            assert config.conv_kernel is not None and config.conv_group is not None
            self.attention_conv = DynamicConvolution(config.n_embd, config.conv_kernel, config.conv_group)
            self.mlp_conv = DynamicConvolution(config.n_embd, config.conv_kernel, config.conv_group)

    def forward(self, x: Tensor, context: Tensor, rope: Rope, places: _Places) -> Tensor:
        """x [batch, n_anchors, rows, n_embd], context [batch, context, n_embd]."""
        normed = self.input_layernorm(x)
        if self.attention_conv is None or self.mlp_conv is None:
            x = x + self.self_attn(normed, context, rope, places)
            return x + self.mlp(self.post_attention_layernorm(x))
        kernels = self.attention_conv.kernels(normed)
        out = self.self_attn(self.attention_conv(normed, kernels, 0), context, rope, places)
        x = x + self.attention_conv(out, kernels, 1)
        normed = self.post_attention_layernorm(x)
        kernels = self.mlp_conv.kernels(normed)
        out = self.mlp(self.mlp_conv(normed, kernels, 0))
        return x + self.mlp_conv(out, kernels, 1)


class CandidateSelector(nn.Module):
    """Scores steps from one candidate to the next: a low-rank table gated by the hidden state."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        assert config.n_vocab is not None and config.rank is not None
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.n_vocab, config.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.n_vocab, config.rank))
        self.hidden_projection = nn.Linear(config.n_embd, config.rank, bias=False)

    def scores(self, hidden: Tensor, unary: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """Scores [..., K] of `candidates` [..., K] after `previous` [...], given their unary logits [..., K].

        hidden [..., n_embd] is that of the row being predicted.
        """
        # Look-ups by F.embedding: its gradient is summed much faster than that of indexing.
        gate = F.embedding(previous, self.predecessor_codebook) * self.hidden_projection(hidden)
        after = F.embedding(candidates, self.successor_codebook)  # [..., K, rank]
        steps: Tensor = (after * gate[..., None, :]).sum(-1)
        return unary + steps


class Head(nn.Module):
    """Features of committed tokens in, hidden states of a block's predicted rows out.

    config: needs head_dim, and n_vocab for DFlash 2.
    feature_scale: [n_taps * n_embd], what the features are divided by before fc; fc.weight lives in that
        scale, so that channels that differ by orders of magnitude are learnt alike. None: ones.
    """

    feature_scale: Tensor
    candidate_selector: CandidateSelector | None

    def __init__(self, config: HeadConfig, feature_scale: Tensor | None = None) -> None:
        super().__init__()
        if config.head_dim is None or (config.version == 2 and config.n_vocab is None):
            raise ValueError("a head needs a config with head_dim, and n_vocab where it has a selector")
        n_feature = len(config.taps) * config.n_embd
        if feature_scale is None:
            feature_scale = torch.ones(n_feature)
        if feature_scale.shape != (n_feature,) or not bool((feature_scale > 0).all()):
            raise ValueError(
                f"feature_scale must be {n_feature} numbers above 0, one for each feature; got the shape"
                f" {tuple(feature_scale.shape)}"
            )
        self.config = config
        self.register_buffer("feature_scale", feature_scale.float(), persistent=False)
        self.fc = nn.Linear(n_feature, config.n_embd, bias=False)
        self.hidden_norm = RMSNorm(config.n_embd, config.rms_epsilon)
        self.layers = nn.ModuleList(Layer(config, config.head_dim, sliding) for sliding in config.sliding)
        self.norm = RMSNorm(config.n_embd, config.rms_epsilon)
        self.candidate_selector = CandidateSelector(config) if config.version == 2 else None
        self.rope = Rope(config, config.head_dim)

    def forward(self, features: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Normed hidden states of the rows that predict, [batch, n_anchors, rows - 1, n_embd].

        features: [batch, context, n_taps * n_embd] of positions 0..; BF16 or F32. What lies at an anchor and
            after it is not seen, so texts of different lengths are padded with anything finite.
        blocks: [batch, n_anchors, rows, n_embd], embedded: the anchor token, then mask tokens.
        anchors: [batch, n_anchors] positions of the first rows, at most `context`. Any order is right;
            ascending is fastest, as neighbours share what they see of the context.
        """
        if features.shape[1] < int(anchors.max()):
            raise ValueError(
                f"an anchor at position {int(anchors.max())} needs the features of as many tokens before it; "
                f"{features.shape[1]} are given"
            )
        seen, places = self._places(anchors, blocks.shape[2])
        context = self.hidden_norm(self._mix(features[:, seen]))
        x = blocks.float()
        for layer in self.layers:
            x = layer(x, context, self.rope, places)
        return self.norm(x[:, :, 1:])

    def _mix(self, features: Tensor) -> Tensor:
        """fc(features / feature_scale), [batch, context, n_embd]; the weight is the smaller one to divide."""
        if not torch.is_autocast_enabled(features.device.type):
            features = features.to(self.fc.weight.dtype)
        return F.linear(features, self.fc.weight / self.feature_scale)

    @torch.no_grad()
    def _places(self, anchors: Tensor, rows: int) -> tuple[slice, _Places]:
        """The stretch of context that any anchor sees, and where everything lies in it."""
        config = self.config
        device = anchors.device
        kinds = {attention_kind(config, sliding) for sliding in config.sliding}
        window = config.window if config.window is not None and all(sliding for sliding, _ in kinds) else None
        together = max(1, _ROWS_TOGETHER.get(device.type, _ROWS_TOGETHER_ELSEWHERE) // rows)
        parts = [slice(at, at + together) for at in range(0, anchors.shape[1], together)]
        # One copy from the device tells all the stretches.
        ends = torch.stack([torch.stack(anchors[:, part].aminmax()) for part in parts]).tolist()
        begins = [0 if window is None else max(0, int(low) - window + 1) for low, _ in ends]
        begin, end = min(begins), max(int(high) for _, high in ends)

        share = config.n_head // config.n_head_kv
        groups = []
        for part, first, (_, last) in zip(parts, begins, ends, strict=True):
            context = torch.arange(first, int(last), device=device)
            masks = {
                kind: self._mask(anchors[:, part], context, rows, *kind)[:, None].repeat(1, 1, share, 1)
                for kind in kinds
            }
            groups.append(_Group(part, slice(first - begin, int(last) - begin), masks))
        positions = anchors[..., None] + torch.arange(rows, device=device)  # [batch, n_anchors, rows]
        return slice(begin, end), _Places(
            groups,
            self.rope.tables(positions[..., None]),
            self.rope.tables(torch.arange(begin, end, device=device)[:, None]),
        )

    def _mask(self, anchors: Tensor, context: Tensor, rows: int, sliding: bool, causal: bool) -> Tensor:
        """What is added to attention's scores, 0 or -inf: [batch, n * rows, context + n * rows].

        Row i of a block at p has position p + i. It sees the context before p, and its own block.
        """
        window = self.config.window if sliding and self.config.window is not None else 2**31
        row = torch.arange(rows, device=anchors.device)
        distance = (anchors[..., None] + row)[..., None] - context  # [batch, n, rows, context]
        past = (context < anchors[..., None])[:, :, None] & (distance < window)
        apart = row[:, None] - row  # [rows, rows]
        near = (apart < window) & ((apart >= 0) if causal else (-apart < window))
        n = anchors.shape[1]
        block = torch.arange(n, device=anchors.device).repeat_interleave(rows)
        own = (block[:, None] == block) & near.repeat(n, n)  # [n * rows, n * rows]
        seen = torch.cat([past.flatten(1, 2), own.expand(len(anchors), -1, -1)], dim=-1)
        return torch.zeros(seen.shape, device=anchors.device).masked_fill_(~seen, -torch.inf)

    @torch.no_grad()
    def choose(
        self, hidden: Tensor, logits: Tensor, anchors: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The greedy path [..., rows] and the candidates [..., rows, K], best unary first: all token ids.

        hidden [..., rows, n_embd] and logits [..., rows, n] of the rows that predict, anchors [...] the
        anchor tokens, tokens [n] the ids that the logits' columns stand for.
        """
        k = 1 if self.config.top_k is None else min(self.config.top_k, len(tokens))
        unary, columns = logits.topk(k, dim=-1)
        candidates = tokens[columns]
        if self.candidate_selector is None:
            return candidates[..., 0], candidates
        previous, path = anchors, []
        for row in range(hidden.shape[-2]):
            scores = self.candidate_selector.scores(
                hidden[..., row, :], unary[..., row, :], previous, candidates[..., row, :]
            )
            previous = candidates[..., row, :].gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            path.append(previous)
        return torch.stack(path, dim=-1), candidates
