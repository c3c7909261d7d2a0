"""Tiny head checkpoints and target GGUFs, the same on every machine: their values come from a formula."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

N_VOCAB = 72

CONFIG_1: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_target_layers": 6,
    "vocab_size": N_VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 24,
    "max_window_layers": 2,
    "tie_word_embeddings": False,
    "is_causal": False,
    "dflash_config": {"block_size": 6, "mask_token_id": 5, "target_layer_ids": [1, 4]},
}
CONFIG_2: dict[str, Any] = {
    **CONFIG_1,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        **CONFIG_1["dflash_config"],
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 8,
        "selector_top_k": 4,
        "output_multiplier": 0.25,
        "final_logit_softcapping": 20.0,
        "input_embedding_scale": 1.5,
    },
}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Floats between -0.5 and 0.5 that depend on name and place only."""
    count = int(np.prod(shape))
    start = int.from_bytes(name.encode()[-6:], "little")
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B97F4A7C15)
    return ((bits >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - np.float32(0.5)).reshape(shape)


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of the head that a config describes."""
    drafting = config["dflash_config"]
    n_embd, n_ff, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    n_query, n_key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (n_embd, len(drafting["target_layer_ids"]) * n_embd),
        "hidden_norm.weight": (n_embd,),
        "norm.weight": (n_embd,),
    }
    for layer in range(config["num_hidden_layers"]):
        found |= {
            f"layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm.weight": (n_embd,),
                "post_attention_layernorm.weight": (n_embd,),
                "self_attn.q_proj.weight": (n_query, n_embd),
                "self_attn.k_proj.weight": (n_key, n_embd),
                "self_attn.v_proj.weight": (n_key, n_embd),
                "self_attn.o_proj.weight": (n_embd, n_query),
                "self_attn.q_norm.weight": (head_dim,),
                "self_attn.k_norm.weight": (head_dim,),
                "mlp.gate_proj.weight": (n_ff, n_embd),
                "mlp.up_proj.weight": (n_ff, n_embd),
                "mlp.down_proj.weight": (n_embd, n_ff),
            }.items()
        }
    if config["architectures"] == ["DFlash2DraftModel"]:
        kernel, rank = drafting["conv_kernel_size"], drafting["selector_rank"]
        n_dynamic = 2 * kernel * n_embd // drafting["conv_group_size"]
        for layer in range(config["num_hidden_layers"]):
            for part in ("attention_conv", "mlp_conv"):
                found[f"layers.{layer}.{part}.base_kernel"] = (2, kernel, n_embd)
                found[f"layers.{layer}.{part}.kernel_projection.weight"] = (n_dynamic, n_embd)
        found["candidate_selector.predecessor_codebook"] = (config["vocab_size"], rank)
        found["candidate_selector.successor_codebook"] = (config["vocab_size"], rank)
        found["candidate_selector.hidden_projection.weight"] = (rank, n_embd)
    return found


def tensors(config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: values(name, shape) for name, shape in shapes(config).items()}


def to_bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Bits of BF16, cut off: any BF16 value will do for a test."""
    return (array.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def save_safetensors(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], dtype: str) -> None:
    """Writes arrays as "F32", "F16" or "BF16"; whole numbers stay I64."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, array in arrays.items():
        kind, stored = dtype, array
        if array.dtype == np.int64:
            kind = "I64"
        elif dtype == "BF16":
            stored = to_bf16(array)
        else:
            stored = array.astype({"F32": np.float32, "F16": np.float16}[dtype])
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + stored.nbytes],
        }
        data += stored.tobytes()
    table = json.dumps(header).encode()
    table += b" " * (-len(table) % 8)
    path.write_bytes(len(table).to_bytes(8, "little") + table + data)


def save_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
    dtype: str = "BF16",
) -> Path:
    """A head's folder. Without arrays, the tensors that the config describes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_safetensors(folder / "model.safetensors", tensors(config) if arrays is None else arrays, dtype)
    return folder


def save_target(
    path: Path,
    *,
    architecture: str = "qwen3",
    n_embd: int = 32,
    n_layer: int = 6,
    n_vocab: int = N_VOCAB,
    n_unused: int = 0,
    rope_sections: list[int] | None = None,
) -> Path:
    """A target's GGUF: geometry and vocabulary, and one tensor. The last n_unused tokens are padding."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(n_layer)
    writer.add_embedding_length(n_embd)
    if rope_sections is not None:
        writer.add_rope_dimension_sections(rope_sections)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"token{i}" for i in range(n_vocab)])
    writer.add_token_scores([-float(i) for i in range(n_vocab)])
    writer.add_token_types([1] * (n_vocab - n_unused) + [5] * n_unused)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", values("token_embd.weight", (n_vocab, n_embd)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
