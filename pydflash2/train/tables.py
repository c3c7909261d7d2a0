"""The target's frozen token table and output head, dequantised by rows from its GGUF.

Both are the largest tensors of many targets: only the rows that training asks for are held.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pydflash2.convert.config import HeadConfig
from pydflash2.convert.target import Target
from pydflash2.errors import HeadMismatchError

from .weights import Weights

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_OUTPUT_SCALE, _OUTPUT_BIAS = "output.scale", "output.bias"
_PIECE = 1 << 24  # values dequantised at once


class OutputRows:
    """Rows of the output head, [n, n_embd], and the token ids they stand for, `tokens` [n]."""

    def __init__(
        self,
        tokens: Tensor,
        weight: Tensor,
        scale: float,
        bias: Tensor | None,
        soft_cap: float | None,
    ) -> None:
        self.tokens = tokens
        self.weight = weight
        self._scale = scale
        self._bias = bias
        self._soft_cap = soft_cap

    def logits(self, hidden: Tensor) -> Tensor:
        """F32 logits [..., n] of hidden states [..., n_embd], as the selector takes them.

        They are multiplied by output_multiplier and capped as the head's config says, after the target's own
        scale and bias.
        """
        logits = F.linear(hidden.to(self.weight.dtype), self.weight).float()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._bias is not None:
            logits = logits + self._bias
        if self._soft_cap is not None:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return logits


class Tables:
    """What a head borrows from its target.

    dtype: of the rows that are kept. Products with them are in that type, the logits are F32.
    """

    def __init__(
        self, target: Path, config: HeadConfig, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        """Raises `ModelFileError` for what can't be read, `HeadMismatchError` where the sizes do not fit."""
        self._weights = Weights(target)
        self._config = config
        self._device = torch.device(device)
        self._dtype = dtype
        self._output = _OUTPUT if _OUTPUT in self._weights else _EMBEDDING  # tied
        for name in (_EMBEDDING, self._output):
            if self._weights.shape(name)[-1] != config.n_embd:
                raise HeadMismatchError(
                    f"{target}: rows of {name} have {self._weights.shape(name)[-1]} values, the head's hidden"
                    f" size is {config.n_embd}. Give the target the head was made for"
                )
        self._embedding_scale = embedding_scale(Target.from_gguf(self._weights.file), config)
        n_tokens = self._weights.shape(_EMBEDDING)[0]
        self._place = torch.full((n_tokens,), -1, device=self._device)  # of each token's row among those kept
        self._kept = torch.empty(0, config.n_embd, device=self._device, dtype=dtype)
        self._n_kept = 0
        self._lock = threading.Lock()  # several threads embed blocks at once

    @property
    def n_tokens(self) -> int:
        """Rows of the output head: the tokens that have a logit."""
        return self._weights.shape(self._output)[0]

    def embed(self, tokens: Tensor) -> Tensor:
        """Rows of the token table x input_embedding_scale, [..., n_embd]. Rows once read are kept."""
        places = self._place[tokens]
        if bool((places < 0).any()):
            with self._lock:
                self._keep(torch.unique(tokens[self._place[tokens] < 0]))
            places = self._place[tokens]
        return self._kept[places]

    def _keep(self, tokens: Tensor) -> None:
        """Reads rows, and only then lets their places be seen."""
        rows = self._weights.rows(_EMBEDDING, tokens.cpu().numpy())
        end = self._n_kept + len(rows)
        if end > len(self._kept):
            n_rows = min(len(self._place), max(end, 2 * len(self._kept)))
            grown = self._kept.new_empty(n_rows, self._kept.shape[1])
            grown[: self._n_kept] = self._kept[: self._n_kept]
            self._kept = grown
        self._kept[self._n_kept : end] = torch.from_numpy(rows * np.float32(self._embedding_scale))
        self._place[tokens] = torch.arange(self._n_kept, end, device=self._device)
        self._n_kept = end

    def shortlist(self, tokens: Tensor) -> OutputRows:
        """Rows of the output head for these ids [n], in their order, on the device."""
        ids = tokens.cpu().numpy().astype(np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= self.n_tokens:
            raise ValueError(f"a shortlist holds tokens of 0 to {self.n_tokens - 1}, and at least one")
        weight = torch.empty(len(ids), self._config.n_embd, device=self._device, dtype=self._dtype)
        step = max(1, _PIECE // self._config.n_embd)
        for at in range(0, len(ids), step):
            weight[at : at + step] = torch.from_numpy(self._weights.rows(self._output, ids[at : at + step]))
        multiplier = self._config.output_multiplier or 1.0
        scale, bias = 1.0, None
        if _OUTPUT_SCALE in self._weights:
            scale = float(self._weights.read(_OUTPUT_SCALE).reshape(-1)[0])
        if _OUTPUT_BIAS in self._weights:
            bias = torch.from_numpy(self._weights.read(_OUTPUT_BIAS)[ids] * np.float32(multiplier))
            bias = bias.to(self._device)
        return OutputRows(tokens.to(self._device), weight, scale * multiplier, bias, self._config.soft_cap)

    def everything(self) -> OutputRows:
        """All rows of the output head."""
        return self.shortlist(torch.arange(self.n_tokens))


def embedding_scale(target: Target, config: HeadConfig) -> float:
    """What block rows are multiplied by: the head's own scale, else its target's, as the converter does."""
    scale = target.embedding_scale if config.embedding_scale is None else config.embedding_scale
    return 1.0 if scale is None else scale
