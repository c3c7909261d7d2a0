"""What a head is trained for: that the tokens it drafts are those the target would have written.

Two cross-entropies, as published: of the head's own logits at every position of a block (*unary*), and of the
selector's choice among the best K of them, given the true token before (*selector*). Both are weighted by
position, because a token is only accepted where all before it were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from pydflash2 import arguments
from pydflash2.train.head import Head
from pydflash2.train.tables import OutputRows, Tables
from pydflash2.train.texts import Texts

Weighting = Literal["decay", "d-pace"]
MissingGold = Literal["skip", "insert"]

_FULL_VOCABULARY = 16_384  # tokens a loss is over without a shortlist
_SHORTLIST = 8_192
_REDRAW_STEPS = 32  # dequantising rows costs more than a step gains from fresh ones


@dataclass(frozen=True)
class ObjectiveSettings:
    """How losses are weighted.

    weighting: "decay": exp(-(k - 1) / decay) at position k; "d-pace" (arXiv 2605.18810): by what the head
        itself expects to be accepted, with the confidence smoothed by pace_alpha.
    teacher: share of the target's own distribution in the labels, the rest being the token it chose. 0:
    published.
    selector_weight: of the selector's loss beside the unary one.
    missing_gold: positions whose token is not among the best K are left out of the selector's loss ("skip",
        as NeMo AutoModel does), or take the place of the weakest candidate ("insert", as speculators does).
    shortlist: tokens the softmax is over; None: all. The others are represented by `negatives` of them,
        drawn anew now and then, each counting for as many as it stands for. A position whose token is in
        neither is left out.
    """

    weighting: Weighting = "decay"
    decay: float = 4.0
    pace_alpha: float = 0.5
    teacher: float = 0.5
    selector_weight: float = 1.0
    missing_gold: MissingGold = "skip"
    shortlist: int | None = None
    negatives: int = 1024

    def __post_init__(self) -> None:
        arguments.number("decay", self.decay, 1e-3)
        arguments.number("pace_alpha", self.pace_alpha, 1e-3, 1)
        arguments.number("teacher", self.teacher, 0, 1)
        arguments.number("selector_weight", self.selector_weight, 0)
        arguments.integer("negatives", self.negatives, 0)
        if self.shortlist is not None:
            arguments.integer("shortlist", self.shortlist, 1)


@dataclass
class Blocks:
    """What one forward pass trains: many blocks of some texts, padded to the longest."""

    features: Tensor  # [batch, context, n_taps * n_embd]
    anchors: Tensor  # [batch, n_anchors] positions
    tokens: Tensor  # [batch, n_anchors, block_size] the anchor, then what the target wrote
    valid: Tensor  # [batch, n_anchors, block_size - 1] False behind a text's end
    top_tokens: Tensor  # [batch, n_anchors, block_size - 1, n_top] the target's likeliest
    top_probabilities: Tensor  # the same shape; all 0 where they are not known

    def to(self, device: torch.device) -> Blocks:
        return Blocks(*(value.to(device, non_blocking=True) for value in vars(self).values()))


class Losses(NamedTuple):
    """Means over the positions of a batch; all but `total` are for the eye."""

    total: Tensor
    unary: float
    selector: float
    covered: float  # share of positions whose token is among the best K


def shortlist_size(n_vocab: int, n: int | None) -> int:
    """Tokens that a loss is over; n: as asked for, None: what suits the vocabulary."""
    if n is None:
        n = n_vocab if n_vocab <= _FULL_VOCABULARY else _SHORTLIST
    return min(n, n_vocab)


def shortlist(texts: Texts, n_vocab: int, n: int | None) -> npt.NDArray[np.int64] | None:
    """The tokens that the target wrote, or might have written, most often; None: all there are."""
    n = shortlist_size(n_vocab, n)
    if n == n_vocab:
        return None
    counts = np.zeros(n_vocab)
    for text in texts.training:
        np.add.at(counts, text.tokens[text.n_prompt :], 1.0)
        np.add.at(counts, text.top_tokens, np.exp(text.top_logprobs.astype(np.float32)))
    return np.sort(np.argsort(-counts, kind="stable")[:n])


class Vocabulary:
    """The tokens a softmax is over, and their rows of the target's output head."""

    def __init__(
        self, tables: Tables, listed: npt.NDArray[np.int64] | None, n_vocab: int, negatives: int, seed: int
    ) -> None:
        """listed: ids, ascending; None: all of them."""
        self.n_vocab = n_vocab
        self._tables = tables
        self._seed = seed
        self._listed = listed
        self.n_listed = n_vocab if listed is None else len(listed)
        self._rest = (
            np.empty(0, np.int64)
            if listed is None
            else np.setdiff1d(np.arange(n_vocab), listed, assume_unique=True)
        )
        self._negatives = min(negatives, len(self._rest))
        self._epoch = -1
        self.rows: OutputRows
        self.row_of: Tensor  # [n_vocab] a token's row, -1 where it has none
        self.correction: Tensor | None = None  # [n_rows] added to the logits in the normaliser
        self.at_step(0)

    def at_step(self, step: int) -> None:
        """Draws the negatives of a step. They depend on the seed and the step alone."""
        epoch = step // _REDRAW_STEPS if self._negatives else 0
        if epoch == self._epoch:
            return
        self._epoch = epoch
        if self._listed is None:
            ids = np.arange(self.n_vocab)
            self.rows = self._tables.everything()
        else:
            drawn = np.random.default_rng((self._seed, epoch)).choice(
                self._rest, self._negatives, replace=False
            )
            ids = np.concatenate([self._listed, drawn])
            self.rows = self._tables.shortlist(torch.from_numpy(ids))
            correction = torch.zeros(len(ids))
            if self._negatives:
                correction[self.n_listed :] = float(np.log(len(self._rest) / self._negatives))
            self.correction = correction.to(self.rows.tokens.device)
        row_of = torch.full((self.n_vocab,), -1)
        row_of[torch.from_numpy(ids)] = torch.arange(len(ids))
        self.row_of = row_of.to(self.rows.tokens.device)

    def codebook_rows(self, rows: Tensor) -> Tensor:
        """Rows of the selector's codebooks (see `Codebooks`) for rows of `row_of`."""
        return torch.where((rows < 0) | (rows >= self.n_listed), self.n_listed, rows)


def decay_weights(n: int, decay: float, device: torch.device | None = None) -> Tensor:
    """[n] exp(-(k - 1) / decay), k = 1 .. n: equation 4 of the DFlash paper."""
    return torch.exp(-torch.arange(n, device=device) / decay)


def pace_weights(confidence: Tensor, alpha: float) -> Tensor:
    """D-PACE's weights [..., n] of a block's positions, from the probability that each one's token was given.

    w_j = sum over m >= j of the product over i <= m of ((1 - alpha) q_i + alpha): how much of the expected
    accepted length passes through position j (arXiv 2605.18810, equations 7 and 8).
    """
    prefix = ((1 - alpha) * confidence + alpha).cumprod(-1)
    return prefix.flip(-1).cumsum(-1).flip(-1)


def target_shares(blocks: Blocks, teacher: float) -> tuple[Tensor, Tensor]:
    """Tokens [..., 1 + n_top] that a position should give, and their shares, which sum to 1."""
    gold = blocks.tokens[..., 1:, None]
    known = blocks.top_probabilities.sum(-1, keepdim=True)
    share = teacher * (known > 0)
    soft = share * blocks.top_probabilities / known.clamp_min(1e-9)
    return torch.cat([gold, blocks.top_tokens], -1), torch.cat([1 - share, soft], -1)


class Objective:
    """The losses of a batch."""

    def __init__(
        self, tables: Tables, vocabulary: Vocabulary, settings: ObjectiveSettings, precision: torch.dtype
    ) -> None:
        """precision: of the matrix products; torch.float32 or torch.bfloat16."""
        self.tables = tables
        self.vocabulary = vocabulary
        self.settings = settings
        self.precision = precision

    def __call__(self, head: Head, blocks: Blocks) -> Losses:
        return self.losses(head, blocks, *self.forward(head, blocks))

    def forward(self, head: Head, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Hidden states [batch, n_anchors, n, n_embd] and logits [batch, n_anchors, n, n_rows] of blocks."""
        device = blocks.features.device
        ids = torch.full_like(blocks.tokens, head.config.mask_token)
        ids[..., 0] = blocks.tokens[..., 0]
        embedded = self.tables.embed(ids)
        # Its cache of rounded weights is one for all threads, and emptied by whichever is ready: it would
        # decide how a gradient is summed up.
        lower = self.precision == torch.bfloat16
        with torch.autocast(device.type, torch.bfloat16, enabled=lower, cache_enabled=False):
            hidden = head(blocks.features, embedded, blocks.anchors)
            logits = self.vocabulary.rows.logits(hidden)
        return hidden, logits.float()

    def losses(self, head: Head, blocks: Blocks, hidden: Tensor, logits: Tensor) -> Losses:
        """Of what `forward` gave."""
        settings, vocabulary = self.settings, self.vocabulary
        device = blocks.features.device
        labels, shares = target_shares(blocks, settings.teacher)
        rows = vocabulary.row_of[labels]
        shares = shares * (rows >= 0)
        listed = rows[..., 0] >= 0
        shares = shares / shares.sum(-1, keepdim=True).clamp_min(1e-9)
        corrected = logits if vocabulary.correction is None else logits + vocabulary.correction
        chosen = logits.gather(-1, rows.clamp_min(0)) - corrected.logsumexp(-1, keepdim=True)
        unary = -(shares * chosen).sum(-1)  # [batch, n_anchors, n]

        weights = (blocks.valid & listed).float()
        if settings.weighting == "decay":
            weights = weights * decay_weights(weights.shape[-1], settings.decay, device)
        else:
            weights = weights * pace_weights(
                chosen[..., 0].detach().exp() * (blocks.valid & listed), settings.pace_alpha
            )
        weights = weights / weights.sum().clamp_min(1e-9)
        unary_loss = (unary * weights).sum()
        selector, covered = self._selector(head, hidden.float(), logits, blocks, labels, shares)
        selector_loss = (selector * weights).sum()
        return Losses(
            unary_loss + settings.selector_weight * selector_loss,
            unary_loss.item(),
            selector_loss.item(),
            (covered * weights).sum().item(),
        )

    def _selector(
        self, head: Head, hidden: Tensor, logits: Tensor, blocks: Blocks, labels: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss at each position [batch, n_anchors, n], 0 where left out; and whether K held the token."""
        assert head.config.top_k is not None and head.candidate_selector is not None
        vocabulary = self.vocabulary
        _, best = logits[..., : vocabulary.n_listed].topk(head.config.top_k, dim=-1)
        gold = labels[..., :1]
        covered = (vocabulary.rows.tokens[best] == gold).any(-1)
        counted = covered
        if self.settings.missing_gold == "insert":
            counted = vocabulary.row_of[gold[..., 0]] >= 0
            weakest = torch.where(covered, best[..., -1], vocabulary.row_of[gold[..., 0]].clamp_min(0))
            best = torch.cat([best[..., :-1], weakest[..., None]], -1)
        candidates = vocabulary.rows.tokens[best]  # [batch, n_anchors, n, K]
        scores = head.candidate_selector.scores(
            hidden,
            logits.gather(-1, best),
            vocabulary.codebook_rows(vocabulary.row_of[blocks.tokens[..., :-1]]),
            vocabulary.codebook_rows(best),
        )
        same = candidates[..., None] == labels[..., None, :]  # [batch, n_anchors, n, K, 1 + n_top]
        wanted = (same * shares[..., None, :]).sum(-1)
        wanted = wanted / wanted.sum(-1, keepdim=True).clamp_min(1e-9)
        loss = -(wanted * F.log_softmax(scores, dim=-1)).sum(-1)
        return loss * counted, covered
