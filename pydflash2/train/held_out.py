"""How good a head is on texts it does not learn from, without running an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pydflash2.train.figures import HeldOut
from pydflash2.train.head import Head
from pydflash2.train.objective import Blocks, Objective, Vocabulary


@torch.no_grad()
def evaluate(
    head: Head, objective: Objective, batches: Sequence[Blocks], step: int, seconds: float
) -> HeldOut:
    """Figures of a head, as it is after `step` steps, over the blocks of held-out texts."""
    n = head.config.block_size - 1
    device = next(head.parameters()).device
    valid, unary, selector, recall = (torch.zeros(n) for _ in range(4))
    losses = torch.zeros(2)
    blocks_seen = accepted = 0.0
    for blocks in batches:
        blocks = blocks.to(device)
        hidden, logits = objective.forward(head, blocks)
        made = objective.losses(head, blocks, hidden, logits)
        losses += torch.tensor([made.unary, made.selector]) / len(batches)
        right = _Right.of(head, objective.vocabulary, blocks, hidden, logits)
        for total, one in zip(
            (valid, unary, selector, recall),
            (blocks.valid, right.unary, right.selector, right.recall),
            strict=True,
        ):
            total += (one & blocks.valid).flatten(0, 1).sum(0).cpu()
        run = (right.path & blocks.valid).int().cumprod(-1).sum(-1)
        whole = blocks.valid.all(-1)  # blocks that the text's end does not cut
        blocks_seen += float(whole.sum())
        accepted += float((run * whole).sum())
    share = valid.clamp_min(1)
    return HeldOut(
        step,
        seconds,
        float(losses[0]),
        float(losses[1]),
        (unary / share).tolist(),
        (selector / share).tolist(),
        (recall / share).tolist(),
        1 + accepted / max(1.0, blocks_seen),
    )


@dataclass(frozen=True)
class _Right:
    """Where a head's choices are the text's tokens, [batch, n_anchors, n] each."""

    unary: Tensor
    selector: Tensor
    recall: Tensor
    path: Tensor

    @classmethod
    def of(cls, head: Head, vocabulary: Vocabulary, blocks: Blocks, hidden: Tensor, logits: Tensor) -> _Right:
        gold = blocks.tokens[..., 1:]
        logits = logits[..., : vocabulary.n_listed]
        tokens = vocabulary.rows.tokens
        likeliest = tokens[logits.argmax(-1)]
        assert head.config.top_k is not None and head.candidate_selector is not None
        hidden = hidden.float()
        before = vocabulary.codebook_rows(vocabulary.row_of[blocks.tokens[..., :-1]])
        # Tokens go by their rows here, as the codebooks do.
        path, rows = head.choose(
            hidden, logits, before[..., 0], torch.arange(len(tokens), device=tokens.device)
        )
        forced = head.candidate_selector.scores(hidden, logits.gather(-1, rows), before, rows)
        candidates = tokens[rows]
        return cls(
            likeliest == gold,
            candidates.gather(-1, forced.argmax(-1, keepdim=True))[..., 0] == gold,
            (candidates == gold[..., None]).any(-1),
            tokens[path] == gold,
        )
