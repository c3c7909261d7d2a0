"""Which blocks a step trains: some texts, and anchors drawn from each.

A batch depends on the seed and its number alone, so that a run can go on where it was broken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pydflash2 import arguments
from pydflash2.train.features import Features
from pydflash2.train.objective import Blocks
from pydflash2.train.texts import Text

_HELD_OUT_ANCHORS = 32  # of each text that figures are taken on


@dataclass(frozen=True)
class BatchSettings:
    """Sizes of one batch.

    prompt_share: of a text's anchors, drawn from its prompt. Their labels are the prompt's own tokens, which
        the target did not write: more data, of another kind.
    """

    n_texts: int = 4
    n_anchors: int = 48
    prompt_share: float = 0.0

    def __post_init__(self) -> None:
        arguments.integer("texts", self.n_texts, 1)
        arguments.integer("anchors", self.n_anchors, 1)
        arguments.number("prompt_share", self.prompt_share, 0, 1)


class Batches:
    """Batches by number. Every text is taken once before any is taken again."""

    def __init__(
        self,
        texts: Sequence[Text],
        indices: Sequence[int],
        features: Features,
        block_size: int,
        mask_token: int,
        settings: BatchSettings,
        seed: int,
    ) -> None:
        """indices: which of `texts`, at least one; a text needs two tokens behind its prompt."""
        self.texts = texts
        self.indices = np.asarray(indices)
        self.features = features
        self.block_size = block_size
        self.mask_token = mask_token
        self.settings = settings
        self.seed = seed

    def batch(self, number: int) -> Blocks:
        """The batch of this number, on the CPU."""
        first = number * self.settings.n_texts
        picked = [self._text(first + place) for place in range(self.settings.n_texts)]
        return self.blocks(picked, np.random.default_rng((self.seed, 1, number)))

    def _text(self, place: int) -> int:
        epoch, within = divmod(place, len(self.indices))
        order = np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.indices))
        return int(self.indices[order[within]])

    def blocks(self, picked: Sequence[int], random: np.random.Generator) -> Blocks:
        """Blocks of these texts at anchors drawn by `random`."""
        texts = [self.texts[index] for index in picked]
        features = [self.features[index] for index in picked]
        rows, n = self.settings.n_anchors, self.block_size
        context = max(len(text.tokens) for text in texts) - 1
        n_top = max(text.top_tokens.shape[-1] for text in texts)
        padded = torch.zeros(len(texts), context, features[0].shape[-1], dtype=features[0].dtype)
        anchors = torch.empty(len(texts), rows, dtype=torch.long)
        tokens = torch.full((len(texts), rows, n), self.mask_token)
        valid = torch.zeros(len(texts), rows, n - 1, dtype=torch.bool)
        top_tokens = torch.zeros(len(texts), rows, n - 1, n_top, dtype=torch.long)
        top_probabilities = torch.zeros(len(texts), rows, n - 1, n_top)
        for row, text in enumerate(texts):
            padded[row, : len(features[row])] = features[row]
            places = self._anchors(text, random)
            spans = places[:, None] + np.arange(n)
            inside = spans < len(text.tokens)
            safe = np.where(inside, spans, 0)
            anchors[row] = torch.from_numpy(places)
            tokens[row] = torch.from_numpy(np.where(inside, text.tokens[safe], self.mask_token))
            valid[row] = torch.from_numpy(inside[:, 1:])
            written = spans[:, 1:] - text.n_prompt  # which of the continuation's tokens
            known = inside[:, 1:] & (written >= 0)
            if n_top and known.any():
                at = np.where(known, written, 0)
                width = text.top_tokens.shape[-1]
                top_tokens[row, ..., :width] = torch.from_numpy(text.top_tokens[at].astype(np.int64))
                top_probabilities[row, ..., :width] = torch.from_numpy(
                    np.exp(text.top_logprobs[at].astype(np.float32)) * known[..., None]
                )
        return Blocks(padded, anchors, tokens, valid, top_tokens, top_probabilities)

    def _anchors(self, text: Text, random: np.random.Generator) -> np.ndarray:
        """Ascending positions. A continuation's first anchor is its first token, as in the engine."""
        n_prompt = round(self.settings.prompt_share * self.settings.n_anchors)
        inside = text.n_prompt - 2 >= 1
        before = (
            random.integers(1, text.n_prompt - 1, n_prompt) if n_prompt and inside else np.empty(0, np.int64)
        )
        first, end = text.n_prompt, len(text.tokens) - 1
        rest = self.settings.n_anchors - len(before)
        distinct = np.arange(first, end)
        places = (
            random.choice(distinct, rest, replace=False)
            if len(distinct) >= rest
            else random.integers(first, end, rest)
        )
        return np.sort(np.concatenate([before, places]))

    def held_out(self, indices: Sequence[int]) -> list[Blocks]:
        """Batches of all these texts, whose anchors are the same whenever they are asked for."""
        random = np.random.default_rng((self.seed, 2))
        settings = replace(self.settings, n_anchors=_HELD_OUT_ANCHORS, prompt_share=0.0)
        drawing = Batches(
            self.texts, indices, self.features, self.block_size, self.mask_token, settings, self.seed
        )
        n = settings.n_texts
        return [drawing.blocks(indices[at : at + n], random) for at in range(0, len(indices), n)]
