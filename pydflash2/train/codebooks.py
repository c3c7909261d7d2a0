"""The selector's codebooks while a head is trained: rows for the tokens a loss is over, one for all others.

A codebook has a row for every token of the vocabulary, of which training on a shortlist can change few; their
gradients and the optimiser's state would be most of a step's work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pydflash2.convert.config import HeadConfig

_PREDECESSOR = "candidate_selector.predecessor_codebook"
_SUCCESSOR = "candidate_selector.successor_codebook"


class Codebooks:
    """Between a head that is trained, with few rows, and the head that is written, with all."""

    def __init__(self, config: HeadConfig, listed: npt.NDArray[np.int64] | None) -> None:
        """listed: the shortlist's tokens, in their order; None: all of them, and both heads are alike."""
        self.config = config
        self._listed = None if listed is None else torch.from_numpy(listed)

    @property
    def trained(self) -> HeadConfig:
        """The config of the head that is trained."""
        if self._listed is None:
            return self.config
        return dataclasses.replace(self.config, n_vocab=len(self._listed) + 1)

    def compact(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a whole head, as the head that is trained: other tokens are taken to have a row of zeros."""
        if self._listed is None:
            return dict(weights)
        return {
            name: torch.cat([value[self._listed], torch.zeros_like(value[:1])])
            if name in (_PREDECESSOR, _SUCCESSOR)
            else value
            for name, value in weights.items()
        }

    def whole(self, weights: Mapping[str, Tensor], before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Of the head that is trained, as a whole one.

        before: the whole head it began as, whose other rows are kept; None: it began with none, and every
            other token has the row that was trained for all of them.
        """
        if self._listed is None:
            return dict(weights)
        found: dict[str, Any] = dict(weights)
        for name in (_PREDECESSOR, _SUCCESSOR):
            value = weights[name]
            if before is not None:
                rows = before[name].clone()
            else:
                assert self.config.n_vocab is not None
                rows = value[-1:].repeat(self.config.n_vocab, 1)
            rows[self._listed] = value[:-1]
            found[name] = rows
        return found
