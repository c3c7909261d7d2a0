"""Writes a head as published checkpoints are laid out: config.json and model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from pydflash2.convert import keys
from pydflash2.convert.config import HeadConfig

from .files import write_beside
from .head import Head

_NAMES = {version: name for name, version in keys.ARCHITECTURE_VERSIONS.items()}


def write(head: Head, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes the folder's two files, each beside the one it replaces. dtype: of every tensor.

    Raises OSError where they can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: value.to(dtype) for name, value in tensors(head).items()}
    settings = config_json(head.config) | {"dtype": str(dtype).removeprefix("torch.")}
    write_beside(folder / "model.safetensors", lambda file: file.write(save(stored, {"format": "pt"})))
    text = json.dumps(settings, indent=2) + "\n"
    write_beside(folder / "config.json", lambda file: file.write(text.encode()))


def tensors(head: Head) -> dict[str, Tensor]:
    """The published tensors by name, F32 on the CPU; fc.weight reads raw features."""
    result = {name: value.detach().float().cpu().contiguous() for name, value in head.state_dict().items()}
    result["fc.weight"] = result["fc.weight"] / head.feature_scale.cpu()
    return result


def config_json(config: HeadConfig) -> dict[str, Any]:
    """What config.json holds, but for the tensors' dtype: `HeadConfig.read` gives the config back."""
    drafting: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token,
        "target_layer_ids": list(config.taps),
        "conv_kernel_size": config.conv_kernel,
        "conv_group_size": config.conv_group,
        "selector_rank": config.rank,
        "selector_top_k": config.top_k,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.soft_cap,
        "input_embedding_scale": config.embedding_scale,
    }
    optional = {
        "is_causal": config.causal,  # absent: sliding layers are causal, full ones are not
        "num_target_layers": config.n_target_layers,
        "vocab_size": config.n_vocab,
        "draft_vocab_size": config.n_draft_vocab,
    }
    return {
        "architectures": [_NAMES[config.version]],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu else "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "layer_types": ["sliding_attention" if sliding else "full_attention" for sliding in config.sliding],
        "max_position_embeddings": config.context_length,
        "max_window_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_hidden_layers": config.n_layer,
        "num_key_value_heads": config.n_head_kv,
        "rms_norm_eps": config.rms_epsilon,
        "rope_is_neox_style": not config.interleaved_rope,
        "rope_parameters": _rope(config),
        "sliding_window": config.window,
        "tie_word_embeddings": config.tied,
        "use_sliding_window": config.window is not None,
        **{name: value for name, value in optional.items() if value is not None},
        "dflash_config": {name: value for name, value in drafting.items() if value is not None},
    }


def _rope(config: HeadConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": config.rope_base, "rope_type": "default"}
    if (scaling := config.rope_scaling) is not None:
        rope |= {"rope_type": scaling.type, "factor": scaling.factor}
        rope |= {
            name: value
            for name, value in (
                ("original_max_position_embeddings", scaling.original_context),
                ("beta_fast", scaling.beta_fast),
                ("beta_slow", scaling.beta_slow),
            )
            if value is not None
        }
    if config.rotary_factor is not None:
        rope["partial_rotary_factor"] = config.rotary_factor
    return rope
