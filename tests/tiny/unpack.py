"""A pair's GGUF files taken apart again, so that the reference can run what users run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny import head_file
from tiny.heads import FULL, SLIDING, Checkpoint
from tiny.numbers import Array
from tiny.targets import Target


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Metadata without the architecture's name in front, and the tensors in F32, [rows, columns]."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    keys = {name.removeprefix(f"{arch}."): field.contents() for name, field in reader.fields.items()}
    return keys, {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}


def target(path: Path) -> tuple[Target, dict[str, Array]]:
    """A qwen3 target's geometry and weights."""
    keys, weights = _read(path)
    return Target(
        architecture=keys["general.architecture"],
        seed=0,
        n_embd=keys["embedding_length"],
        n_layer=keys["block_count"],
        n_head=keys["attention.head_count"],
        n_head_kv=keys["attention.head_count_kv"],
        head_dim=keys["attention.key_length"],
        n_ff=keys["feed_forward_length"],
        tied="output.weight" not in weights,
        rope_theta=keys["rope.freq_base"],
        rms_eps=keys["attention.layer_norm_rms_epsilon"],
        n_vocab=len(weights["token_embd.weight"]),
    ), weights


def checkpoint(path: Path, n_target_layers: int) -> Checkpoint:
    """A DFlash 2 head as the folder it was made from."""
    keys, weights = _read(path)
    n_layer = keys["block_count"]
    sliding = keys.get("attention.sliding_window_pattern", [False] * n_layer)
    config = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": n_layer,
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": keys["attention.key_length"],
        "layer_types": [SLIDING if slides else FULL for slides in sliding],
        "use_sliding_window": any(sliding),
        "sliding_window": keys.get("attention.sliding_window"),
        "max_window_layers": n_layer,
        "max_position_embeddings": keys["context_length"],
        "num_target_layers": n_target_layers,
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": keys["rope.freq_base"]},
        "tie_word_embeddings": False,
        "vocab_size": len(weights["selector_predecessor.weight"]),
        "is_causal": keys["attention.causal"],
        "dflash_config": {
            "block_size": keys["block_size"],
            "mask_token_id": keys["tokenizer.ggml.mask_token_id"],
            "target_layer_ids": [layer - 1 for layer in keys["target_layers"]],
            "conv_kernel_size": keys["conv_kernel_size"],
            "conv_group_size": keys["conv_group_size"],
            "selector_rank": keys["selector_rank"],
            "selector_top_k": keys["selector_top_k"],
        },
    }
    return Checkpoint(config, {head_file.hugging_face_name(n): w for n, w in weights.items()}, None)


def as_f32(source: Path, destination: Path) -> Path:
    """The same file with its weights in F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(destination, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *inner = field.types
        writer.add_key_value(name, field.contents(), kind, sub_type=inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.float32(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return destination
