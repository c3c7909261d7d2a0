"""The torch side of a head beside the engine's, on a tiny pair: needs torch.

A config is a published one as a dict, so that a test can say any setting a checkpoint can have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pydflash2.convert import convert
from pydflash2.convert.config import HeadConfig
from pydflash2.train import checkpoint
from pydflash2.train.head import Head
from pydflash2.train.tables import Tables
from tiny import heads, targets
from tiny.lattice import Lattice, assert_same_lattice
from tiny.native import Native
from tiny.numbers import token_ids, uniform

torch.set_num_threads(1)

PROMPT_LENGTH = 41


def head_of(name: str, folder: Path, scaled: bool = False, **changes: Any) -> Head:
    """A tiny head of tiny.heads in torch. changes: config.json's keys, or those of tiny.heads.Head.

    scaled: with a feature_scale that spans three orders of magnitude; the head computes the same.
    """
    described = heads.HEADS[name]
    fields = {key: changes.pop(key) for key in list(changes) if key in described.__dataclass_fields__}
    described = replace(described, **fields)
    made = heads.checkpoint(described)
    made.config.update(changes)
    made.write(folder)
    config = HeadConfig.read(folder)
    scale = torch.from_numpy(10.0 ** uniform(1, "scale", (len(config.taps) * config.n_embd,)))
    head = Head(config, scale if scaled else None)
    head.load_state_dict({key: torch.from_numpy(value) for key, value in made.tensors.items()})
    if scaled:
        head.fc.weight.data *= scale
    return head


def export(head: Head, target: Path, folder: Path) -> Path:
    """The head as a GGUF in F32, by the way of its checkpoint."""
    checkpoint.write(head, folder)
    return convert(folder, target, folder / "head.gguf", "f32", progress=False)


def prompt_of(target: str) -> list[int]:
    return token_ids(1000, PROMPT_LENGTH, 0, targets.TARGETS[target].vocabulary.eos)


@torch.no_grad()
def lattice_of(head: Head, tables: Tables, features: Any, anchor: int) -> tuple[list[int], Lattice]:
    """The greedy path and the lattice of a whole block after a text with these features, [n, n_feature]."""
    config = head.config
    ids = torch.full((1, 1, config.block_size), config.mask_token)
    ids[..., 0] = anchor
    past = torch.from_numpy(features)[None]
    hidden = head(past, tables.embed(ids), torch.tensor([[past.shape[1]]]))
    rows = tables.everything()
    logits = rows.logits(hidden)
    path, candidates = head.choose(hidden, logits, torch.tensor([[anchor]]), rows.tokens)
    hidden, candidates = hidden[0, 0], candidates[0, 0]  # [n, n_embd], [n, K]
    unary = logits[0, 0].gather(-1, candidates)
    scores = None
    if head.candidate_selector is not None:
        k = candidates.shape[1]
        before = torch.cat([torch.full((1, k), anchor), candidates[:-1]])  # [n, K]
        scores = head.candidate_selector.scores(
            hidden[:, None].expand(-1, k, -1),
            unary[:, None].expand(-1, k, -1),
            before,
            candidates[:, None].expand(-1, k, -1),
        ).numpy()  # [n, K, K]
    return path[0, 0].tolist(), Lattice(candidates.numpy(), unary.numpy(), scores)


def assert_drafts_alike(head: Head, target: Path, gguf: Path, prompt: list[int]) -> None:
    """The engine's lattice with `gguf` is the torch head's, on the engine's own features."""
    tables = Tables(target, head.config, "cpu", torch.float32)
    with Native(target, gguf) as engine:
        anchor = engine.prefill(prompt)
        features = engine.features()
        draft = engine.draft(head.config.block_size - 1)
    unread = np.zeros((len(prompt) - len(features), features.shape[1]), np.float32)  # before every window
    path, lattice = lattice_of(head, tables, np.concatenate([unread, features]), anchor)
    assert np.isfinite(draft.scores).all()
    assert_same_lattice(draft, lattice)
    assert draft.tokens == path
