"""Tiny random targets of several architectures, as GGUF files llama.cpp runs.

A `Target` says everything; `tensors(target)` are its weights under GGUF names, each [rows, columns] as torch
has them, so that the same model can be built in transformers. Greedy texts move through many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tiny import vocabulary
from tiny.numbers import Array, around_one, matrix, uniform

CONTEXT = 1024


@dataclass(frozen=True)
class Target:
    architecture: str
    seed: int
    n_embd: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 128
    tied: bool = False
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6
    layer_gain: float = 0.7  # what a sublayer adds to a residual stream that starts at 1
    logit_gain: float = 4.0
    chain: int = 0  # > 0: a noisy walk over this many tokens, see `_chain`
    chain_ends: bool = False  # the walk passes the end token
    chain_start: int = 65  # the chain's tokens are those from here on
    chain_gain: float = 2.0  # how sure of the next step the target is
    window: int = 0  # gemma3
    n_expert: int = 0
    n_expert_used: int = 0
    biases: bool = False
    n_vocab: int = vocabulary.N_VOCAB

    @property
    def vocabulary(self) -> vocabulary.Vocabulary:
        if self.n_vocab != vocabulary.N_VOCAB:
            return vocabulary.symbols()
        return vocabulary.sentence_piece() if self.architecture == "gemma3" else vocabulary.byte_level()


TARGETS: dict[str, Target] = {
    "qwen3": Target("qwen3", seed=11, n_layer=5, head_dim=24),  # head_dim != n_embd / n_head
    "qwen3-chain": Target("qwen3", seed=12, chain=16, layer_gain=0.5),
    "qwen3-ending": Target("qwen3", seed=22, chain=16, chain_ends=True, layer_gain=0.35),
    "qwen3-tied": Target("qwen3", seed=13, tied=True, n_head_kv=1),
    "qwen3-wide": Target("qwen3", seed=14, n_embd=256, head_dim=64, n_ff=256, chain=24, layer_gain=0.4),
    "llama": Target("llama", seed=15, n_layer=5),
    "qwen2": Target("qwen2", seed=16, biases=True),
    "gemma3": Target("gemma3", seed=17, tied=True, n_layer=6, n_head_kv=1, window=16, layer_gain=1.0),
    "qwen3moe": Target("qwen3moe", seed=18, n_expert=8, n_expert_used=2, n_ff=32),
    "phi3": Target("phi3", seed=19),
    "qwen35": Target("qwen35", seed=20, n_head_kv=1, head_dim=32),
    "qwen3next": Target("qwen3next", seed=21, n_head_kv=1, head_dim=32, n_expert=4, n_expert_used=2, n_ff=32),
    "symbols": Target(
        "qwen3",
        seed=23,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_head_kv=1,
        n_ff=48,
        n_vocab=24,
        chain=16,
        chain_ends=True,
        chain_start=0,
        chain_gain=0.8,
        layer_gain=0.3,
    ),
}


# ---- weights -------------------------------------------------------------------------------------


class _Weights:
    """Collects tensors of one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tensors: dict[str, Array] = {}

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        self.tensors[f"{name}.weight"] = matrix(self.target.seed, name, rows, columns, gain)

    def norm(self, name: str, n: int) -> None:
        self.tensors[f"{name}.weight"] = around_one(self.target.seed, name, n)

    def bias(self, name: str, n: int) -> None:
        self.tensors[f"{name}.bias"] = uniform(self.target.seed, f"{name}.bias", (n,), 0.3)


def tensors(target: Target) -> dict[str, Array]:
    """GGUF name -> weight, [rows, columns]."""
    weights = _Weights(target)
    n_embd, n_vocab = target.n_embd, target.n_vocab
    embedding = uniform(target.seed, "token_embd", (n_vocab, n_embd), 1.0 / 8.0 if target.tied else 1.0)
    weights.tensors["token_embd.weight"] = embedding
    weights.norm("output_norm", n_embd)
    if target.chain:
        weights.tensors["output.weight"] = _chain(target, embedding)
    elif not target.tied:
        weights.matrix("output", n_vocab, n_embd, target.logit_gain)
    for layer in range(target.n_layer):
        _LAYERS[target.architecture](weights, f"blk.{layer}", layer)
    return weights.tensors


def chain_tokens(target: Target) -> list[int]:
    """The tokens a chain walks over, [chain], in walking order; the last leads back to the first."""
    walk = [target.chain_start + (7 * step) % target.chain for step in range(target.chain)]
    return [*walk[:-1], target.vocabulary.eos] if target.chain_ends else walk


def _chain(target: Target, embedding: Array) -> Array:
    """Output head of a target that likes to go round `chain_tokens`: row b seeks its predecessor's embedding.

    What the layers add makes it stray. Rows of the chain also look for the mask token's embedding, which
    lets a head's mask rows find them among their candidates.
    """
    head = matrix(target.seed, "output", target.n_vocab, target.n_embd, 0.25 * target.logit_gain)
    walk = chain_tokens(target)
    unit = embedding / np.sqrt(np.float32(target.n_embd))
    for here, following in zip(walk, [*walk[1:], walk[0]], strict=True):
        head[following] += (
            np.float32(target.chain_gain) * unit[here] + np.float32(0.7) * unit[target.vocabulary.mask]
        )
    return head


def _attention(weights: _Weights, block: str, *, qk_norm: bool, q_factor: int = 1) -> None:
    target = weights.target
    n_q, n_kv = target.n_head * target.head_dim, target.n_head_kv * target.head_dim
    weights.matrix(f"{block}.attn_q", n_q * q_factor, target.n_embd)
    weights.matrix(f"{block}.attn_k", n_kv, target.n_embd)
    weights.matrix(f"{block}.attn_v", n_kv, target.n_embd)
    weights.matrix(f"{block}.attn_output", target.n_embd, n_q, 2.0 * target.layer_gain)
    if qk_norm:
        weights.tensors[f"{block}.attn_q_norm.weight"] = 2.0 * around_one(
            target.seed, f"{block}.q_norm", target.head_dim
        )
        weights.norm(f"{block}.attn_k_norm", target.head_dim)
    if target.biases:
        weights.bias(f"{block}.attn_q", n_q)
        weights.bias(f"{block}.attn_k", n_kv)
        weights.bias(f"{block}.attn_v", n_kv)


def _mlp(weights: _Weights, block: str) -> None:
    target = weights.target
    weights.matrix(f"{block}.ffn_gate", target.n_ff, target.n_embd)
    weights.matrix(f"{block}.ffn_up", target.n_ff, target.n_embd)
    weights.matrix(f"{block}.ffn_down", target.n_embd, target.n_ff, 2.0 * target.layer_gain)


def _experts(weights: _Weights, block: str) -> None:
    target, seed = weights.target, weights.target.seed
    n_expert, n_ff, n_embd = target.n_expert, target.n_ff, target.n_embd
    weights.matrix(f"{block}.ffn_gate_inp", n_expert, n_embd, 2.0)
    for name, rows, columns in (("gate", n_ff, n_embd), ("up", n_ff, n_embd), ("down", n_embd, n_ff)):
        std = (2.0 * target.layer_gain if name == "down" else 1.0) / np.sqrt(columns)
        full = f"{block}.ffn_{name}_exps"
        weights.tensors[f"{full}.weight"] = uniform(seed, full, (n_expert, rows, columns), float(std))


def _qwen3(weights: _Weights, block: str, layer: int) -> None:
    weights.norm(f"{block}.attn_norm", weights.target.n_embd)
    _attention(weights, block, qk_norm=True)
    weights.norm(f"{block}.ffn_norm", weights.target.n_embd)
    _mlp(weights, block)


def _llama(weights: _Weights, block: str, layer: int) -> None:
    weights.norm(f"{block}.attn_norm", weights.target.n_embd)
    _attention(weights, block, qk_norm=False)
    weights.norm(f"{block}.ffn_norm", weights.target.n_embd)
    _mlp(weights, block)


def _qwen3moe(weights: _Weights, block: str, layer: int) -> None:
    weights.norm(f"{block}.attn_norm", weights.target.n_embd)
    _attention(weights, block, qk_norm=True)
    weights.norm(f"{block}.ffn_norm", weights.target.n_embd)
    _experts(weights, block)


def _gemma3(weights: _Weights, block: str, layer: int) -> None:
    _qwen3(weights, block, layer)
    weights.norm(f"{block}.post_attention_norm", weights.target.n_embd)
    weights.norm(f"{block}.post_ffw_norm", weights.target.n_embd)


def _phi3(weights: _Weights, block: str, layer: int) -> None:
    target = weights.target
    weights.norm(f"{block}.attn_norm", target.n_embd)
    weights.matrix(
        f"{block}.attn_qkv", (target.n_head + 2 * target.n_head_kv) * target.head_dim, target.n_embd
    )
    weights.matrix(f"{block}.attn_output", target.n_embd, target.n_embd, 2.0 * target.layer_gain)
    weights.norm(f"{block}.ffn_norm", target.n_embd)
    weights.matrix(f"{block}.ffn_up", 2 * target.n_ff, target.n_embd)
    weights.matrix(f"{block}.ffn_down", target.n_embd, target.n_ff, 2.0 * target.layer_gain)


# Gated delta net of the hybrid targets: every second layer keeps a state, the others attend.
STATE, N_KEY_HEAD, N_VALUE_HEAD, KERNEL, INTERVAL = 16, 2, 4, 4, 2


def _mixer(weights: _Weights, block: str, layer: int) -> None:
    target, seed = weights.target, weights.target.seed
    weights.norm(f"{block}.attn_norm", target.n_embd)
    weights.norm(f"{block}.post_attention_norm", target.n_embd)
    if (layer + 1) % INTERVAL == 0:
        _attention(weights, block, qk_norm=True, q_factor=2)  # query and output gate
        return
    n_value = N_VALUE_HEAD * STATE
    n_mixed = 2 * N_KEY_HEAD * STATE + n_value
    weights.matrix(f"{block}.attn_qkv", n_mixed, target.n_embd)
    weights.matrix(f"{block}.attn_gate", n_value, target.n_embd)
    weights.matrix(f"{block}.ssm_conv1d", n_mixed, KERNEL)
    weights.bias(f"{block}.ssm_dt", N_VALUE_HEAD)
    decay = uniform(seed, f"{block}.ssm_a", (N_VALUE_HEAD,), 0.15)
    weights.tensors[f"{block}.ssm_a"] = -np.float32(0.4) + decay
    weights.norm(f"{block}.ssm_norm", STATE)
    weights.matrix(f"{block}.ssm_out", target.n_embd, n_value, 2.0 * target.layer_gain)
    if target.architecture == "qwen35":
        weights.matrix(f"{block}.ssm_beta", N_VALUE_HEAD, target.n_embd)
        weights.matrix(f"{block}.ssm_alpha", N_VALUE_HEAD, target.n_embd)
    else:
        weights.matrix(f"{block}.ssm_ba", 2 * N_VALUE_HEAD, target.n_embd)


def _qwen35(weights: _Weights, block: str, layer: int) -> None:
    _mixer(weights, block, layer)
    _mlp(weights, block)


def _qwen3next(weights: _Weights, block: str, layer: int) -> None:
    target = weights.target
    _mixer(weights, block, layer)
    _experts(weights, block)
    weights.tensors[f"{block}.ffn_gate_inp_shexp.weight"] = uniform(
        target.seed, f"{block}.shared gate", (target.n_embd,)
    )
    weights.matrix(f"{block}.ffn_gate_shexp", target.n_ff, target.n_embd)
    weights.matrix(f"{block}.ffn_up_shexp", target.n_ff, target.n_embd)
    weights.matrix(f"{block}.ffn_down_shexp", target.n_embd, target.n_ff, target.layer_gain)


_LAYERS: dict[str, Callable[[_Weights, str, int], None]] = {
    "qwen3": _qwen3,
    "llama": _llama,
    "qwen2": _llama,
    "gemma3": _gemma3,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "qwen35": _qwen35,
    "qwen3next": _qwen3next,
}


# ---- file ----------------------------------------------------------------------------------------


def write(target: Target, path: Path, file_type: str = "f32") -> Path:
    """Writes the GGUF. file_type: f32, f16, bf16, q8_0 or q4_0; vectors and expert routers stay F32."""
    writer = gguf.GGUFWriter(path, target.architecture)
    writer.add_name(f"tiny, seed {target.seed}")  # llama.cpp reads meaning into names such as phi3
    writer.add_context_length(CONTEXT)
    writer.add_vocab_size(target.n_vocab)
    writer.add_embedding_length(target.n_embd)
    writer.add_block_count(target.n_layer)
    writer.add_feed_forward_length(target.n_ff)
    writer.add_head_count(target.n_head)
    writer.add_head_count_kv(target.n_head_kv)
    writer.add_key_length(target.head_dim)
    writer.add_value_length(target.head_dim)
    writer.add_layer_norm_rms_eps(target.rms_eps)
    writer.add_rope_freq_base(target.rope_theta)
    hybrid = target.architecture in ("qwen35", "qwen3next")
    writer.add_rope_dimension_count(target.head_dim // 2 if hybrid else target.head_dim)
    if target.architecture == "phi3":
        writer.add_rope_scaling_orig_ctx_len(CONTEXT)
    if target.window:
        writer.add_sliding_window(target.window)
    if target.n_expert:
        writer.add_expert_count(target.n_expert)
        writer.add_expert_used_count(target.n_expert_used)
        writer.add_expert_feed_forward_length(target.n_ff)
    if target.architecture == "qwen3next":
        writer.add_expert_shared_feed_forward_length(target.n_ff)
    if target.architecture == "qwen35":
        writer.add_rope_dimension_sections([target.head_dim // 4, 0, 0, 0])
    if hybrid:
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(N_VALUE_HEAD * STATE)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(N_VALUE_HEAD)
        writer.add_ssm_group_count(N_KEY_HEAD)
        writer.add_full_attention_interval(INTERVAL)
    writer.add_file_type(
        gguf.LlamaFileType[f"MOSTLY_{file_type.upper()}" if file_type != "f32" else "ALL_F32"]
    )
    target.vocabulary.write(writer)
    kind = gguf.GGMLQuantizationType[file_type.upper()]
    for name, weight in tensors(target).items():
        if weight.ndim < 2 or "ffn_gate_inp" in name or "ssm_conv1d" in name:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
