"""The reference implementation (PyPI `dflash`) run on a tiny pair, watched round by round from outside.

Needs torch, transformers and dflash; tests that import this are marked `reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dflash import model as dflash
from torch import nn
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from tiny import heads, targets
from tiny.heads import Checkpoint, Head
from tiny.targets import Target

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass
class Round:
    position: int  # of the anchor
    anchor: int
    drafted: Ids  # [n]
    candidates: Ids  # [n, K], best unary first; DFlash 1: K = 1, the token drafted
    unary: Array  # [n, K]
    scores: (
        Array | None
    )  # [n, K, K]: candidate b at t after candidate a at t - 1; t = 0: after the anchor, every row
    n_accepted: int  # drafts the target agrees with
    n_committed: int  # accepted drafts and bonus, cut at an end token or at the last token wanted
    margin: float  # the closest that a draft's step or the target's choice came to another one
    border: float  # the closest that a candidate came to being none


@dataclass
class Run:
    prompt: list[int]
    committed: list[int]  # after the prompt, first token included
    rounds: list[Round]

    @property
    def margin(self) -> float:
        return min(min(turn.margin, turn.border) for turn in self.rounds)


class _WatchedTarget(nn.Module):
    """A Qwen3 target as the reference calls it, with a head's own embedding and output where it has them."""

    def __init__(self, model: Qwen3ForCausalLM, head: Checkpoint) -> None:
        super().__init__()
        self.model, self.config, self.device = model, model.config, model.device
        self.calls: list[tuple[Ids, Array]] = []  # token ids [n] and logits [n, n_vocab] of each decode
        self.embedding = model.get_input_embeddings()
        if "embed_tokens.weight" in head.tensors:
            weight = torch.from_numpy(head.tensors["embed_tokens.weight"])
            self.embedding = nn.Embedding.from_pretrained(weight)
        self.lm_head: nn.Module = model.lm_head
        if "lm_head.weight" in head.tensors:
            own = head.tensors["lm_head.weight"]
            self.lm_head = _OwnOutput(own, head.draft_vocabulary, model.config.vocab_size)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        output = self.model(input_ids, **kwargs)
        self.calls.append((input_ids[0].numpy().copy(), output.logits[0].numpy().copy()))
        return output


class _OwnOutput(nn.Module):
    """[.., n_embd] -> [.., n_vocab]; tokens outside a reduced vocabulary get minus infinity."""

    def __init__(self, weight: Array, ids: Ids | None, n_vocab: int) -> None:
        super().__init__()
        self.weight, self.n_vocab = torch.from_numpy(weight), n_vocab
        self.ids = torch.arange(n_vocab) if ids is None else torch.from_numpy(ids)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.full((*hidden.shape[:-1], self.n_vocab), -torch.inf)
        logits[..., self.ids] = hidden @ self.weight.T
        return logits


def _qwen3(target: Target, weights: dict[str, Array]) -> Qwen3ForCausalLM:
    if target.architecture != "qwen3":
        raise ValueError(f"the reference is run on qwen3 targets, not on {target.architecture}")
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=target.n_vocab,
            hidden_size=target.n_embd,
            intermediate_size=target.n_ff,
            num_hidden_layers=target.n_layer,
            num_attention_heads=target.n_head,
            num_key_value_heads=target.n_head_kv,
            head_dim=target.head_dim,
            rms_norm_eps=target.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": target.rope_theta},
            tie_word_embeddings=target.tied,
            max_position_embeddings=targets.CONTEXT,
            attn_implementation="eager",
        )
    ).eval()
    names = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    state = {}
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            stem = f"model.layers.{layer}.{names[part]}"
        else:
            stem = outer[stem]
        state[f"{stem}.weight"] = torch.from_numpy(weight)
    if target.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def _drafter(head: Checkpoint, folder: Path) -> dflash.DFlashDraftModel:
    """Loads the checkpoint the way its users do, and makes sure that every tensor arrived."""
    version_2 = head.config["architectures"] == ["DFlash2DraftModel"]
    kind = dflash.DFlash2DraftModel if version_2 else dflash.DFlashDraftModel
    drafter = kind.from_pretrained(head.write(folder), dtype=torch.float32)
    loaded = drafter.state_dict()
    for name, weight in head.tensors.items():
        if name in ("embed_tokens.weight", "lm_head.weight"):
            continue  # the reference borrows both from the target
        key = f"{name}.weight" if name.endswith("_codebook") else name
        if not torch.equal(loaded.pop(key), torch.from_numpy(weight)):
            raise AssertionError(f"{name} did not arrive in the reference model")
    if loaded:
        raise AssertionError(f"the checkpoint lacks {sorted(loaded)}")
    return drafter


class Reference:
    """A pair, loaded once. ends: tokens that end a generation."""

    def __init__(
        self, target: Target, weights: dict[str, Array], head: Checkpoint, ends: list[int], folder: Path
    ) -> None:
        torch.set_num_threads(1)  # the models are too small to share
        self._head, self._ends = head, ends
        self._model, self._drafter = _qwen3(target, weights), _drafter(head, folder)
        self._blocks: list[tuple[torch.Tensor, torch.Tensor]] = []  # hidden [n, n_embd], logits [n, n_vocab]
        compute_logits = self._drafter.compute_logits

        def watched(hidden: torch.Tensor, output_head: nn.Module) -> torch.Tensor:
            logits = compute_logits(hidden, output_head)
            self._blocks.append((hidden[0], logits[0]))
            return logits

        self._drafter.compute_logits = watched

    @classmethod
    def tiny(cls, head: Head, folder: Path) -> Reference:
        ends = list(head.of.vocabulary.ends)
        return cls(head.of, targets.tensors(head.of), heads.checkpoint(head), ends, folder)

    def run(self, prompt: list[int], n_tokens: int, width: int | None = None) -> Run:
        """Greedy generation by the reference's own loop. width: drafted tokens a round."""
        target = _WatchedTarget(self._model, self._head)
        self._blocks.clear()
        with _caches_for(self._head):
            output = dflash.dflash_generate(
                self._drafter,
                target,
                torch.tensor([prompt]),
                max_new_tokens=n_tokens,
                stop_token_ids=self._ends,
                block_size=None if width is None else width + 1,
            )
        tokens = output[0].tolist()
        rounds: list[Round] = []
        position = len(prompt)
        _, *verified = target.calls
        for block, logits in verified:
            draft = self._blocks[len(rounds)] if len(block) > 1 else None
            turn = _observe(self._drafter, position, block, logits, draft)
            turn.n_committed = min(turn.n_accepted + 1, len(tokens) - 1 - position)
            rounds.append(turn)
            position += turn.n_committed
        return Run(prompt, tokens[len(prompt) :], rounds)


@contextmanager
def _caches_for(head: Checkpoint) -> Iterator[None]:
    """transformers makes no cache for sliding layers without a window; a plain one holds the same rows."""
    original = dflash._make_cache
    if heads.SLIDING in head.config["layer_types"] and not head.config["use_sliding_window"]:
        dflash._make_cache = lambda config: DynamicCache()
    try:
        yield
    finally:
        dflash._make_cache = original


def _observe(
    drafter: Any, position: int, block: Ids, logits: Array, draft: tuple[torch.Tensor, torch.Tensor] | None
) -> Round:
    anchor, drafted = int(block[0]), block[1:]
    choices = logits.argmax(-1)
    matches = np.cumprod(drafted == choices[:-1])
    best_two = -np.partition(-logits[: int(matches.sum()) + 1], 1, axis=-1)[:, :2]
    margin = float((best_two[:, 0] - best_two[:, 1]).min())
    selector = getattr(drafter, "candidate_selector", None)
    k = selector.top_k if selector else 1
    candidates, unary = np.zeros((0, k), np.int64), np.zeros((0, k), np.float32)
    scores: Array | None = None
    border = np.inf
    if draft is not None:
        hidden, draft_logits = draft
        values, ids = torch.topk(draft_logits, k + 1, dim=-1)
        border = float((values[:, k - 1] - values[:, k]).min())
        candidates, unary = ids[:, :k].numpy(), values[:, :k].numpy()
        if selector:
            scores = _lattice(selector, hidden, ids[:, :k], values[:, :k], anchor)
            margin = min(margin, _path_margin(candidates, scores, drafted))
    return Round(position, anchor, drafted, candidates, unary, scores, int(matches.sum()), 0, margin, border)


@torch.no_grad()
def _lattice(
    selector: Any, hidden: torch.Tensor, ids: torch.Tensor, unary: torch.Tensor, anchor: int
) -> Array:
    k = ids.shape[1]
    before = torch.cat([torch.full((1, k), anchor), ids[:-1]])
    predecessor = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)[:, None]
    transition = predecessor @ selector.successor_codebook(ids).transpose(1, 2)
    return (unary[:, None, :] + transition).numpy()


def _path_margin(candidates: Ids, scores: Array, drafted: Ids) -> float:
    """Checks that walking the lattice gives what the reference drafted; returns the closest call."""
    before, margin = 0, np.inf
    for step, token in enumerate(drafted):
        row = scores[step, before]
        before = int(row.argmax())
        if candidates[step, before] != token:
            raise AssertionError("the lattice's path is not what the reference drafted")
        second, first = np.sort(row)[-2:]
        margin = min(margin, float(first - second))
    return float(margin)
