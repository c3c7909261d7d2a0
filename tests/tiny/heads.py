"""Tiny random heads in the published checkpoint layout: config.json beside model.safetensors.

`Head` says everything; `config` and `tensors` are a checkpoint's two halves, under Hugging Face names.
Linear weights are [out, in] as torch has them; the two codebooks are bare parameters without `.weight`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tiny import targets
from tiny.numbers import Array, around_one, matrix, uniform
from tiny.targets import TARGETS, Target

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Head:
    target: str  # name in TARGETS
    seed: int
    taps: tuple[int, ...]
    layers: tuple[str, ...] = (FULL, FULL)
    version: int = 2
    block_size: int = 8
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    conv_kernel: int = 2
    conv_group: int = 16
    rank: int = 24
    top_k: int = 7
    window: int | None = None
    use_sliding_window: bool = True
    causal: bool | None = False  # None: the key is absent
    output_multiplier: float | None = None
    soft_cap: float | None = None
    embedding_scale: float | None = None
    rope_theta: float = 10000.0
    rotary_factor: float | None = None
    yarn_factor: float | None = None
    rms_eps: float = 1e-6
    nested: bool = True  # DFlash keys inside dflash_config; else at the top level
    own_embedding: bool = False
    own_output: bool = False
    n_draft_vocab: int | None = None  # rows of the own output head, d2t maps them
    follows_chain: bool = False  # codebooks that know the target's chain, so that drafts are accepted
    knows_pairs: bool = False  # codebooks that know the target's logits after each token, as far as rank goes

    @property
    def of(self) -> Target:
        return TARGETS[self.target]


HEADS: dict[str, Head] = {
    "plain": Head("qwen3", seed=101, taps=(0, 2)),
    "one-layer": Head(
        "qwen3", seed=102, taps=(1,), layers=(FULL,), block_size=4, conv_kernel=3, conv_group=8, top_k=4
    ),
    "five-taps": Head(
        "qwen3", seed=103, taps=(0, 1, 2, 3, 4), layers=(FULL, FULL, FULL), n_head_kv=1, rank=8
    ),
    "last-tap": Head("qwen3", seed=104, taps=(1, 4), layers=(FULL,), head_dim=24),
    "taps-out-of-order": Head(
        "qwen3", seed=105, taps=(3, 0, 2), layers=(FULL,), rms_eps=1e-5, rope_theta=1e6
    ),
    "sliding": Head("qwen3", seed=106, taps=(0, 3), layers=(SLIDING, SLIDING), window=12),
    "mixed": Head("qwen3", seed=107, taps=(1, 2), layers=(SLIDING, FULL, SLIDING), window=9, conv_group=4),
    "causal": Head("qwen3", seed=108, taps=(0, 2), layers=(SLIDING, FULL), window=11, causal=True),
    "causal-absent": Head("qwen3", seed=109, taps=(0, 2), layers=(SLIDING, FULL), window=11, causal=None),
    "narrow-window": Head("qwen3", seed=110, taps=(0, 2), layers=(SLIDING, SLIDING), window=3),
    "narrow-window-causal": Head(
        "qwen3", seed=111, taps=(0, 2), layers=(SLIDING, FULL), window=3, causal=None
    ),
    "window-off": Head(
        "qwen3",
        seed=112,
        taps=(0, 2),
        layers=(SLIDING, FULL),
        window=5,
        use_sliding_window=False,
        causal=None,
    ),
    "block-16": Head("qwen3", seed=113, taps=(0, 2), block_size=16, conv_kernel=3, top_k=16, nested=False),
    "scaled": Head(
        "qwen3",
        seed=114,
        taps=(1, 3),
        layers=(FULL,),
        output_multiplier=0.4,
        soft_cap=3.0,
        embedding_scale=2.5,
    ),
    "yarn": Head("qwen3", seed=115, taps=(0, 2), layers=(FULL,), yarn_factor=4.0),
    "own-embedding": Head("qwen3", seed=117, taps=(0, 2), own_embedding=True, own_output=True),
    "own-output": Head("qwen3", seed=118, taps=(0, 2), layers=(FULL,), own_output=True),
    "reduced-vocabulary": Head(
        "qwen3", seed=119, taps=(0, 2), layers=(FULL,), own_output=True, n_draft_vocab=96
    ),
    "tied-target": Head("qwen3-tied", seed=120, taps=(0, 2), layers=(FULL,), n_head_kv=1),
    "dflash-1": Head("qwen3", seed=121, taps=(0, 2), layers=(SLIDING, FULL), window=20, version=1),
    "dflash-1-reduced": Head(
        "qwen3", seed=122, taps=(0, 2), layers=(FULL,), version=1, own_output=True, n_draft_vocab=96
    ),
    "chain": Head(
        "qwen3-chain", seed=123, taps=(0, 2), layers=(SLIDING, FULL), window=24, top_k=16, follows_chain=True
    ),
    "chain-wide": Head(
        "qwen3-wide",
        seed=124,
        taps=(0, 2),
        head_dim=64,
        n_ff=256,
        rank=32,
        top_k=15,
        block_size=16,
        follows_chain=True,
    ),
    "chain-ending": Head("qwen3-ending", seed=125, taps=(1,), layers=(FULL,), top_k=16, follows_chain=True),
    # What the reference cannot run here; parity is with llama.cpp's drafter and with the target alone.
    "partial-rotary": Head("qwen3", seed=116, taps=(0, 2), rotary_factor=0.5),
    "llama": Head("llama", seed=130, taps=(0, 3)),
    "qwen2": Head("qwen2", seed=131, taps=(0, 3)),
    "gemma3": Head(
        "gemma3", seed=132, taps=(1, 4), embedding_scale=8.0, layers=(SLIDING, SLIDING), window=16
    ),
    "qwen3moe": Head("qwen3moe", seed=133, taps=(0, 2)),
    "phi3": Head("phi3", seed=134, taps=(0, 2)),
    "qwen35": Head("qwen35", seed=135, taps=(0, 2), layers=(SLIDING, FULL), window=12),
    "qwen3next": Head("qwen3next", seed=136, taps=(0, 2), layers=(FULL,)),
}


def config(head: Head) -> dict[str, Any]:
    target = head.of
    dflash: dict[str, Any] = {
        "block_size": head.block_size,
        "mask_token_id": target.vocabulary.mask,
        "target_layer_ids": list(head.taps),
    }
    if head.version == 2:
        dflash["conv_kernel_size"] = head.conv_kernel
        dflash["conv_group_size"] = head.conv_group
        dflash["selector_rank"] = head.rank
        dflash["selector_top_k"] = head.top_k
    for key, value in (
        ("output_multiplier", head.output_multiplier),
        ("final_logit_softcapping", head.soft_cap),
        ("input_embedding_scale", head.embedding_scale),
    ):
        if value is not None:
            dflash[key] = value
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": head.rope_theta}
    if head.rotary_factor is not None:
        rope["partial_rotary_factor"] = head.rotary_factor
    if head.yarn_factor is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": head.yarn_factor,
            "original_max_position_embeddings": int(targets.CONTEXT / head.yarn_factor),
        }
    result: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if head.version == 2 else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "float32",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": target.n_embd,
        "intermediate_size": head.n_ff,
        "num_hidden_layers": len(head.layers),
        "num_attention_heads": head.n_head,
        "num_key_value_heads": head.n_head_kv,
        "head_dim": head.head_dim,
        "layer_types": list(head.layers),
        "use_sliding_window": head.window is not None and head.use_sliding_window,
        "sliding_window": head.window,
        "max_window_layers": len(head.layers),
        "max_position_embeddings": targets.CONTEXT,
        "num_target_layers": target.n_layer,
        "rms_norm_eps": head.rms_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "vocab_size": target.n_vocab,
    }
    if head.causal is not None:
        result["is_causal"] = head.causal
    if head.n_draft_vocab is not None:
        result["draft_vocab_size"] = head.n_draft_vocab
    if head.nested:
        result["dflash_config"] = dflash
    else:
        result |= dflash
    return result


def tensors(head: Head) -> dict[str, Array]:
    """Hugging Face name -> weight. `d2t` is apart, see `draft_vocabulary`."""
    target, seed, n_embd = head.of, head.seed, head.of.n_embd
    result: dict[str, Array] = {}

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        result[f"{name}.weight"] = matrix(seed, name, rows, columns, gain)

    def norm(name: str, n: int, factor: float = 1.0) -> None:
        result[f"{name}.weight"] = np.float32(factor) * around_one(seed, name, n)

    linear("fc", n_embd, len(head.taps) * n_embd)
    norm("hidden_norm", n_embd)
    norm("norm", n_embd)
    out_gain = 0.5 if head.follows_chain else 1.0  # keeps the mask's own direction in the residual stream
    for layer in range(len(head.layers)):
        block = f"layers.{layer}"
        norm(f"{block}.input_layernorm", n_embd)
        norm(f"{block}.post_attention_layernorm", n_embd)
        linear(f"{block}.self_attn.q_proj", head.n_head * head.head_dim, n_embd)
        linear(f"{block}.self_attn.k_proj", head.n_head_kv * head.head_dim, n_embd)
        linear(f"{block}.self_attn.v_proj", head.n_head_kv * head.head_dim, n_embd)
        linear(f"{block}.self_attn.o_proj", n_embd, head.n_head * head.head_dim, 2.0 * out_gain)
        norm(f"{block}.self_attn.q_norm", head.head_dim, 2.0)
        norm(f"{block}.self_attn.k_norm", head.head_dim)
        linear(f"{block}.mlp.gate_proj", head.n_ff, n_embd)
        linear(f"{block}.mlp.up_proj", head.n_ff, n_embd)
        linear(f"{block}.mlp.down_proj", n_embd, head.n_ff, 2.0 * out_gain)
        if head.version == 2:
            for conv in ("attention_conv", "mlp_conv"):
                base = uniform(seed, f"{block}.{conv}.base", (2, head.conv_kernel, n_embd), 0.3)
                base[:, 0] += np.float32(1.0)
                result[f"{block}.{conv}.base_kernel"] = base
                n_kernels = 2 * head.conv_kernel * (n_embd // head.conv_group)
                linear(f"{block}.{conv}.kernel_projection", n_kernels, n_embd, 0.3)
    if head.version == 2:
        result |= _selector(head)
    if head.own_embedding:
        result["embed_tokens.weight"] = uniform(seed, "embed_tokens", (target.n_vocab, n_embd))
    if head.own_output:
        linear("lm_head", head.n_draft_vocab or target.n_vocab, n_embd, 4.0)
    return result


def _selector(head: Head) -> dict[str, Array]:
    target, seed = head.of, head.seed
    std = (3.0 / np.sqrt(head.rank)) ** 0.5
    predecessor = uniform(seed, "predecessor", (target.n_vocab, head.rank), std)
    successor = uniform(seed, "successor", (target.n_vocab, head.rank), std)
    hidden = matrix(seed, "selector_hidden", head.rank, target.n_embd)
    if head.follows_chain:
        # A step of the walk is a code both books share; the gate is positive along the mask's direction.
        walk = targets.chain_tokens(target)
        signs = np.float32(std) * np.sign(predecessor)
        for here, following in zip(walk, [*walk[1:], walk[0]], strict=True):
            successor[following] = predecessor[here] = signs[here]
        mask = targets.tensors(target)["token_embd.weight"][target.vocabulary.mask]
        hidden = np.float32(0.15) * hidden + np.float32(2.0) * mask / np.float32(mask @ mask)
    if head.knows_pairs:
        predecessor, successor = _pairs(target, head.rank)
    return {
        "candidate_selector.predecessor_codebook": predecessor,
        "candidate_selector.successor_codebook": successor,
        "candidate_selector.hidden_projection.weight": hidden.astype(np.float32),
    }


def _pairs(target: Target, rank: int) -> tuple[Array, Array]:
    """[n_vocab, rank] codes of predecessors and successors. Their products are the logits that the target
    would give without its layers. Unlike all other weights they may differ in the last bits between machines.
    """
    weights = targets.tensors(target)
    embedding = weights["token_embd.weight"]
    scale = np.sqrt((embedding**2).mean(1, keepdims=True) + np.float32(target.rms_eps))
    logits = (embedding / scale * weights["output_norm.weight"]) @ weights["output.weight"].T
    before, strength, after = np.linalg.svd(logits - logits.mean(1, keepdims=True))
    root = np.sqrt(strength[:rank])
    return before[:, :rank] * root, after[:rank].T * root


def draft_vocabulary(head: Head) -> npt.NDArray[np.int64] | None:
    """[n_draft_vocab] target id of each row of the output head, ascending; a file stores id - row."""
    if head.n_draft_vocab is None:
        return None
    order = np.argsort(uniform(head.seed, "d2t", (256,)), kind="stable")[: head.n_draft_vocab]
    return np.sort(order).astype(np.int64)


@dataclass(frozen=True)
class Checkpoint:
    """What a folder of a published head holds."""

    config: dict[str, Any]
    tensors: dict[str, Array]
    draft_vocabulary: npt.NDArray[np.int64] | None  # [rows of the output head] target ids

    def write(self, folder: Path, dtype: str = "float32") -> Path:
        """Writes config.json and model.safetensors; dtype float32 or float16."""
        folder.mkdir(parents=True, exist_ok=True)
        stored: dict[str, npt.NDArray[Any]] = {name: w.astype(dtype) for name, w in self.tensors.items()}
        ids = self.draft_vocabulary
        if ids is not None:
            stored["d2t"] = ids - np.arange(len(ids))
        save_file(stored, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config | {"dtype": dtype}, indent=2) + "\n")
        return folder


def checkpoint(head: Head) -> Checkpoint:
    return Checkpoint(config(head), tensors(head), draft_vocabulary(head))
