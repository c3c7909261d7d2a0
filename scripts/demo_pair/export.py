"""Write the target, as a Hugging Face folder and as GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .corpus import END_OF_TEXT, END_OF_TEXT_ID, MASK, MASK_ID
from .model import Target

DESCRIPTION = (
    "A small language model of Python code, trained on CPython's standard library to demonstrate DFlash 2. "
    "It writes text that looks like code; it is not meant to be useful."
)
LICENCE_NOTE = (
    "Trained only on the Python standard library, (c) Python Software Foundation, PSF License Version 2."
)

# Hugging Face's names (without `model.`) to llama.cpp's.
TENSOR_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    stem = name.removesuffix(".weight")
    if stem.startswith("layers."):
        _, index, rest = stem.split(".", 2)
        return f"blk.{index}.{TENSOR_NAMES[rest]}.weight"
    return f"{TENSOR_NAMES[stem]}.weight"


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_target_folder(model: Target, tokenizer: Tokenizer, folder: Path) -> None:
    """The target as Hugging Face's Qwen3ForCausalLM reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    geometry = model.geometry
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": geometry.head_size,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "initializer_range": 0.02,
        "intermediate_size": geometry.feed_forward,
        "layer_types": ["full_attention"] * geometry.layers,
        "max_position_embeddings": geometry.context,
        "max_window_layers": geometry.layers,
        "num_attention_heads": geometry.heads,
        "num_hidden_layers": geometry.layers,
        "num_key_value_heads": geometry.key_value_heads,
        "rms_norm_eps": geometry.norm_epsilon,
        "rope_parameters": {"rope_theta": geometry.rope_theta, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": geometry.vocabulary,
        "eos_token_id": END_OF_TEXT_ID,
        "dtype": "float32",
    }
    write_json(folder / "config.json", config)
    tensors = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "mask_token": MASK,
            "add_bos_token": False,
        },
    )


def add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    """Vocabulary, merges and special tokens as llama.cpp reads them."""
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    special = {END_OF_TEXT_ID, MASK_ID}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(
        [TokenType.CONTROL if index in special else TokenType.NORMAL for _, index in vocabulary]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(END_OF_TEXT_ID)
    writer.add_pad_token_id(END_OF_TEXT_ID)
    writer.add_mask_token_id(MASK_ID)
    writer.add_add_bos_token(False)


def write_target_gguf(model: Target, tokenizer: Tokenizer, path: Path) -> None:
    """The target as llama.cpp's `qwen3`: matrices in Q8_0, norms in F32, output head tied."""
    path.parent.mkdir(parents=True, exist_ok=True)
    geometry = model.geometry
    writer = GGUFWriter(path, "qwen3")
    writer.add_type("model")
    writer.add_name("pydflash2 demo target")
    writer.add_description(DESCRIPTION)
    writer.add_license("PSF-2.0")
    writer.add_license_name(LICENCE_NOTE)
    writer.add_tags(["text-generation", "code", "dflash2", "demo"])
    writer.add_languages(["en"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    writer.add_context_length(geometry.context)
    writer.add_embedding_length(geometry.hidden)
    writer.add_block_count(geometry.layers)
    writer.add_feed_forward_length(geometry.feed_forward)
    writer.add_head_count(geometry.heads)
    writer.add_head_count_kv(geometry.key_value_heads)
    writer.add_key_length(geometry.head_size)
    writer.add_value_length(geometry.head_size)
    writer.add_layer_norm_rms_eps(geometry.norm_epsilon)
    writer.add_rope_freq_base(geometry.rope_theta)
    writer.add_vocab_size(geometry.vocabulary)
    add_tokenizer(writer, tokenizer)
    for name, value in model.state_dict().items():
        array = value.float().numpy().astype(np.float32)
        if array.ndim == 2:
            blocks = quants.quantize(array, GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
