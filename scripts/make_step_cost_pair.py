#!/usr/bin/env python3
"""Write a pair of random weights in the dimensions of a published one, to time rounds with.

    python scripts/make_step_cost_pair.py FOLDER

The target has the dimensions of Qwen3-0.6B, the head those of a DFlash 2 head for it: 5 layers, window 2048,
selector rank 256 and 16 candidates, block 8. Each is written as FOLDER/{target,head}-{q4_k_m,q8_0}.gguf,
1.3 GB in all. Acceptance means nothing with them, times do. The head goes through pydflash2's own converter.
Needs the test extra (safetensors).
"""

import argparse
import json
import string
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from requantize import MATRICES, matrix_type
from safetensors.numpy import save_file

from pydflash2.convert import convert, keys, quantize
from pydflash2.convert.writer import OutTensor, new_writer, write_file

FILE_TYPES = ("q4_k_m", "q8_0")
BYTES = 256
ROPE_BASE, RMS_EPSILON, CONTEXT = 1e6, 1e-6, 40960
PIECE_ROWS = 8192  # of one tensor, in memory at a time
EMBEDDING_STD = 0.02
# What a sublayer adds to the residual stream. The embedding is small beside it, else a tied output head
# would find its own row again and every text would be one token repeated.
SUBLAYER_GAIN = 0.3


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a pair; the defaults are Qwen3-0.6B's and its head's."""

    n_layer: int = 28
    n_embd: int = 1024
    n_ff: int = 3072
    n_head: int = 16
    n_head_kv: int = 8
    head_dim: int = 128
    n_merges: int = 151_387  # n_vocab is these, 256 bytes, 26 special tokens and the padding
    n_vocab: int = 151_936
    head_layers: int = 5
    taps: tuple[int, ...] = (1, 7, 13, 19, 25)
    window: int = 2048
    block_size: int = 8
    rank: int = 256
    top_k: int = 16
    conv_kernel: int = 2
    conv_group: int = 16

    @property
    def first_special(self) -> int:
        return BYTES + self.n_merges


# ---- numbers -------------------------------------------------------------------------------------


def normal(name: str, shape: tuple[int, ...], std: float) -> npt.NDArray[np.float32]:
    """Each name has a stream of its own, so that both file types quantise the same weights."""
    generator = np.random.default_rng([7, zlib.crc32(name.encode())])
    values: npt.NDArray[np.float32] = generator.standard_normal(shape, np.float32) * np.float32(std)
    return values


def std_of(name: str, n_columns: int) -> float:
    """Keeps a stream of variance 1 at variance 1 behind each matrix."""
    if name.startswith("token_embd"):
        return EMBEDDING_STD
    if "codebook" in name:
        return float((2.0 / n_columns**0.5) ** 0.5)  # a score of the selector has the spread of a logit
    outgoing = ("attn_output", "ffn_down", "o_proj", "down_proj", "kernel_projection")
    return (SUBLAYER_GAIN if any(part in name for part in outgoing) else 1.0) / float(n_columns**0.5)


# ---- vocabulary ----------------------------------------------------------------------------------


def vocabulary(sizes: Sizes) -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges of a byte-level BPE: all pairs of small letters, then fours made of two pairs.

    The order within both is shuffled: like a real one, the frequent half of this vocabulary has no alphabet.
    """
    letters = list(string.ascii_lowercase)
    pairs = [f"{a} {b}" for a in ["Ġ", *letters] for b in letters]
    order = np.random.default_rng(1)
    pairs = [pairs[i] for i in order.permutation(len(pairs))][: sizes.n_merges]
    joined = [pair.replace(" ", "") for pair in pairs if not pair.startswith("Ġ")]
    firsts = [pair.replace(" ", "") for pair in pairs]
    chosen = order.choice(len(firsts) * len(joined), sizes.n_merges - len(pairs), replace=False)
    fours = [f"{firsts[i // len(joined)]} {joined[i % len(joined)]}" for i in chosen.tolist()]
    merges = pairs + fours

    tokens = byte_letters() + [merge.replace(" ", "") for merge in merges]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|special_{i}|>" for i in range(23)]
    tokens += [*specials, "<|mask|>"]
    types += [gguf.TokenType.CONTROL] * (len(specials) + 1)
    padding = sizes.n_vocab - len(tokens)
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(padding)]
    types += [gguf.TokenType.UNUSED] * padding
    return tokens, [int(kind) for kind in types], merges


def byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where it is visible, else a letter from 256 up."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in visible else next(spare)) for byte in range(BYTES)]


# ---- target --------------------------------------------------------------------------------------


def target_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """GGUF name -> shape in torch's order. The output head is the embedding, as Qwen3-0.6B has it."""
    n_query, n_key = sizes.n_head * sizes.head_dim, sizes.n_head_kv * sizes.head_dim
    n_embd, n_ff = sizes.n_embd, sizes.n_ff
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (sizes.n_vocab, n_embd), "output_norm": (n_embd,)}
    for layer in range(sizes.n_layer):
        layer_shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (n_embd,),
            "attn_q": (n_query, n_embd),
            "attn_k": (n_key, n_embd),
            "attn_v": (n_key, n_embd),
            "attn_output": (n_embd, n_query),
            "attn_q_norm": (sizes.head_dim,),
            "attn_k_norm": (sizes.head_dim,),
            "ffn_norm": (n_embd,),
            "ffn_gate": (n_ff, n_embd),
            "ffn_up": (n_ff, n_embd),
            "ffn_down": (n_embd, n_ff),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def target_tensor(name: str, shape: tuple[int, ...], file_type: str, sizes: Sizes) -> OutTensor:
    if len(shape) == 1:
        ones = np.ones(shape, np.float32)
        return OutTensor(name, shape, Type.F32, ones.nbytes, lambda: iter([ones]))
    part = name.removesuffix(".weight").split(".")
    assert part[-1] in (*MATRICES, "token_embd")
    kind = matrix_type(part[-1], file_type, int(part[1]) if part[0] == "blk" else -1, sizes.n_layer)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_bytes = shape[0] * (shape[1] // block * block_bytes)
    silent = range(sizes.first_special, sizes.n_vocab) if part[-1] == "token_embd" else range(0)
    return OutTensor(name, shape, kind, n_bytes, partial(quantised, name, shape, kind, silent))


def quantised(
    name: str, shape: tuple[int, ...], kind: Type, silent: range
) -> Iterator[npt.NDArray[np.uint8]]:
    """The rows of a tensor, some thousands at a time. Those in `silent` are nearly 0: tokens never chosen, so
    that no text ends before it is as long as asked for.
    """
    for first in range(0, shape[0], PIECE_ROWS):
        n_rows = min(PIECE_ROWS, shape[0] - first)
        rows = normal(f"{name} {first}", (n_rows, shape[1]), std_of(name, shape[1]))
        rows[max(0, silent.start - first) : max(0, silent.stop - first)] *= np.float32(0.01)
        yield quantize.rows(kind, rows, name)


def write_target(sizes: Sizes, path: Path, file_type: str) -> None:
    tensors = [target_tensor(name, shape, file_type, sizes) for name, shape in target_shapes(sizes).items()]
    writer = new_writer(tensors, "qwen3")
    writer.add_name("step-cost target, random weights")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(sizes.n_embd)
    writer.add_block_count(sizes.n_layer)
    writer.add_feed_forward_length(sizes.n_ff)
    writer.add_head_count(sizes.n_head)
    writer.add_head_count_kv(sizes.n_head_kv)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file_type.upper()}"])
    tokens, types, merges = vocabulary(sizes)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    write_file(writer, tensors, path, progress=None)


# ---- head ----------------------------------------------------------------------------------------


def head_config(sizes: Sizes) -> dict[str, Any]:
    """config.json as heads are published with."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "float16",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": sizes.n_embd,
        "intermediate_size": sizes.n_ff,
        "num_hidden_layers": sizes.head_layers,
        "num_attention_heads": sizes.n_head,
        "num_key_value_heads": sizes.n_head_kv,
        "head_dim": sizes.head_dim,
        "num_target_layers": sizes.n_layer,
        "vocab_size": sizes.n_vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": RMS_EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "layer_types": ["sliding_attention"] * sizes.head_layers,
        "use_sliding_window": True,
        "sliding_window": sizes.window,
        "max_window_layers": sizes.head_layers,
        "tie_word_embeddings": False,
        "is_causal": False,
        "dflash_config": {
            "block_size": sizes.block_size,
            "mask_token_id": sizes.first_special + 26,
            "target_layer_ids": list(sizes.taps),
            "conv_kernel_size": sizes.conv_kernel,
            "conv_group_size": sizes.conv_group,
            "selector_rank": sizes.rank,
            "selector_top_k": sizes.top_k,
        },
    }


def head_tensors(sizes: Sizes) -> dict[str, npt.NDArray[np.float16]]:
    """A checkpoint's tensors by name; which there are, and their shapes, is the converter's own table."""
    sides = {
        "n_embd": sizes.n_embd,
        "n_ff": sizes.n_ff,
        "n_feature": len(sizes.taps) * sizes.n_embd,
        "n_query": sizes.n_head * sizes.head_dim,
        "n_key": sizes.n_head_kv * sizes.head_dim,
        "head_dim": sizes.head_dim,
        "kernel": sizes.conv_kernel,
        "n_dynamic": 2 * sizes.conv_kernel * (sizes.n_embd // sizes.conv_group),
        "rank": sizes.rank,
        "n_vocab": sizes.n_vocab,
    }
    tensors = {}
    for rule in keys.TENSORS:
        if rule.optional:
            continue
        shape = tuple(side if isinstance(side, int) else sides[side] for side in rule.shape)
        for layer in range(sizes.head_layers if "{layer}" in rule.source else 1):
            name = rule.source.format(layer=layer)
            if len(shape) == 1:
                values = np.ones(shape, np.float32)
            elif name.endswith("base_kernel"):  # [in and out, kernel, n_embd]: mostly the row itself
                values = normal(name, shape, 0.1)
                values[:, 0] += 1
            else:
                values = normal(name, shape, std_of(name, shape[-1]))
            tensors[name] = values.astype(np.float16)
    return tensors


# ---- both ----------------------------------------------------------------------------------------


def make(folder: Path, sizes: Sizes | None = None, file_types: tuple[str, ...] = FILE_TYPES) -> list[Path]:
    """Writes both files in each type and returns their paths: target, head, target, head."""
    sizes = sizes or Sizes()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".checkpoint-") as work:
        checkpoint = Path(work, "step-cost-head")  # its name goes into the file
        checkpoint.mkdir()
        save_file(head_tensors(sizes), checkpoint / "model.safetensors")
        (checkpoint / "config.json").write_text(json.dumps(head_config(sizes)), encoding="utf-8")
        for file_type in file_types:
            target, head = folder / f"target-{file_type}.gguf", folder / f"head-{file_type}.gguf"
            write_target(sizes, target, file_type)
            convert(checkpoint, target, head, outtype=file_type)
            written += [target, head]
    return written


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", default=",".join(FILE_TYPES), help="q4_k_m, q8_0 or both (default)")
    args = parser.parse_args()
    types = tuple(args.types.lower().split(","))
    if unknown := set(types) - set(FILE_TYPES):
        parser.error(f"--types has {', '.join(sorted(unknown))}: use {', '.join(FILE_TYPES)}")
    for path in make(args.folder, file_types=types):
        print(path)


if __name__ == "__main__":
    main()
