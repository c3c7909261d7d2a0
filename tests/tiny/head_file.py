"""A head as GGUF, written straight from its numbers: a check of the converter, and a way round it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tiny import heads, targets
from tiny.heads import SLIDING, Head

_TOP = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


def gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{_LAYER[rest]}"


def hugging_face_name(name: str) -> str:
    """The inverse of gguf_name."""
    if not name.startswith("blk."):
        return next(theirs for theirs, ours in _TOP.items() if ours == name)
    _, layer, rest = name.split(".", 2)
    return f"layers.{layer}." + next(theirs for theirs, ours in _LAYER.items() if ours == rest)


def write(head: Head, path: Path, file_type: str = "f32", mrope: bool = False) -> Path:
    """Writes the GGUF. mrope: with the sections key of heads for M-RoPE targets, which changes no number."""
    target = head.of
    arch = "dflash"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny head")
    writer.add_context_length(targets.CONTEXT)
    writer.add_embedding_length(target.n_embd)
    writer.add_block_count(len(head.layers))
    writer.add_feed_forward_length(head.n_ff)
    writer.add_head_count(head.n_head)
    writer.add_head_count_kv(head.n_head_kv)
    writer.add_key_length(head.head_dim)
    writer.add_value_length(head.head_dim)
    writer.add_layer_norm_rms_eps(head.rms_eps)
    writer.add_rope_freq_base(head.rope_theta)
    n_rot = int(head.head_dim * (head.rotary_factor or 1.0))
    if head.rotary_factor is not None:
        writer.add_rope_dimension_count(n_rot)
    if head.yarn_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(head.yarn_factor)
        writer.add_rope_scaling_orig_ctx_len(int(targets.CONTEXT / head.yarn_factor))
    if mrope or target.architecture == "qwen35":
        writer.add_rope_dimension_sections([n_rot // 2, 0, 0, 0])
    if head.causal is not None:
        writer.add_causal_attention(head.causal)
    if head.window is not None and head.use_sliding_window:
        writer.add_sliding_window(head.window)
        writer.add_array(
            f"{arch}.attention.sliding_window_pattern", [kind == SLIDING for kind in head.layers]
        )
    elif SLIDING in head.layers and head.causal is None:  # the window is off, the rule it came with is not
        writer.add_array("pydflash2.attention.causal_pattern", [kind == SLIDING for kind in head.layers])
    writer.add_uint32(f"{arch}.block_size", head.block_size)
    writer.add_array(f"{arch}.target_layers", [tap + 1 for tap in head.taps])
    if head.version == 2:
        writer.add_uint32(f"{arch}.conv_kernel_size", head.conv_kernel)
        writer.add_uint32(f"{arch}.conv_group_size", head.conv_group)
        writer.add_uint32(f"{arch}.selector_rank", head.rank)
        writer.add_uint32(f"{arch}.selector_top_k", head.top_k)
    if head.output_multiplier is not None:
        writer.add_logit_scale(head.output_multiplier)
    if head.soft_cap is not None:
        writer.add_final_logit_softcapping(head.soft_cap)
    if head.embedding_scale is not None:
        writer.add_embedding_scale(head.embedding_scale)
    target.vocabulary.write(writer)
    writer.add_mask_token_id(target.vocabulary.mask)

    kind = gguf.GGMLQuantizationType[file_type.upper()]
    for name, weight in heads.tensors(head).items():
        if weight.ndim != 2:
            writer.add_tensor(gguf_name(name), weight)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(weight, kind), raw_dtype=kind)
    ids = heads.draft_vocabulary(head)
    if ids is not None:
        writer.add_tensor("d2t", ids.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
