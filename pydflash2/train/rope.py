"""Rotary embedding as the engine applies it: plain, linear or YaRN, to a whole head or to its front."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pydflash2.convert.config import HeadConfig, RopeScaling


class Rope(nn.Module):
    """Turns pairs of a head's first `n_rot` values by angles that grow with the position.

    Formulas: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071). A head has one rope for all its layers.
    """

    frequencies: Tensor

    def __init__(self, config: HeadConfig, head_dim: int) -> None:
        super().__init__()
        self.n_rot = int(head_dim * (config.rotary_factor or 1.0))
        if self.n_rot < 2 or self.n_rot % 2:
            raise ValueError(
                f"{self.n_rot} of a head's {head_dim} values are turned: rope turns pairs, so it must be even"
            )
        self.interleaved = config.interleaved_rope
        frequencies, self.magnitude = _frequencies(self.n_rot, config.rope_base, config.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)  # [n_rot / 2]

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each position's angles, [..., n_rot / 2] each."""
        angles = positions.to(torch.float32)[..., None] * self.frequencies
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [..., head_dim], turned; cos and sin [..., n_rot / 2] fit its leading sides. F32 out."""
        turned, rest = x[..., : self.n_rot].float(), x[..., self.n_rot :].float()
        if self.interleaved:
            first, second = turned.view(*x.shape[:-1], self.n_rot // 2, 2).unbind(-1)  # [..., n_rot / 2]
            pairs = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
            return torch.cat([pairs.flatten(-2), rest], dim=-1)
        first, second = turned.chunk(2, dim=-1)  # [..., n_rot / 2]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _frequencies(n_rot: int, base: float, scaling: RopeScaling | None) -> tuple[Tensor, float]:
    """Angle per position of each pair, [n_rot / 2], and what cos and sin are multiplied by."""
    pair = torch.arange(n_rot // 2, dtype=torch.float64)
    plain = base ** (-2.0 * pair / n_rot)
    if scaling is None:
        return plain.float(), 1.0
    stretched = plain / scaling.factor
    if scaling.type == "linear":
        return stretched.float(), 1.0

    # Pairs that turn often within the original context keep their speed, those that hardly turn are slowed.
    fast = 32.0 if scaling.beta_fast is None else scaling.beta_fast
    slow = 1.0 if scaling.beta_slow is None else scaling.beta_slow
    first = max(0, math.floor(_pair_turning(fast, n_rot, base, scaling)))
    last = min(n_rot - 1, math.ceil(_pair_turning(slow, n_rot, base, scaling)))
    slowed = ((pair - first) / max(0.001, last - first)).clamp(0.0, 1.0)
    return (stretched * slowed + plain * (1.0 - slowed)).float(), 1.0 + 0.1 * math.log(scaling.factor)


def _pair_turning(turns: float, n_rot: int, base: float, scaling: RopeScaling) -> float:
    """The number of the pair that makes so many turns within the original context."""
    assert scaling.original_context is not None
    return n_rot * math.log(scaling.original_context / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))
