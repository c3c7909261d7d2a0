#!/usr/bin/env python3
"""Rewrite a target's GGUF with its matrices in another type, to see what that type's kernels do.

    python scripts/requantize.py pydflash2/demo/target.gguf OUTPUT.gguf q4_k_m

TYPE is f32, f16, bf16, a quantised type that all matrices get (q8_0, q4_0, q4_k, iq4_nl, ...), or q4_k_m, a
mix like llama-quantize's. Rows whose length a type's block doesn't divide get the neighbour that
llama-quantize takes then. Quantising what was quantised before costs quality and nothing else.
"""

import argparse
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Type

from pydflash2.convert import quantize

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NEIGHBOUR = {  # for rows that are no multiple of 256
    Type.Q2_K: Type.IQ4_NL,
    Type.Q3_K: Type.IQ4_NL,
    Type.IQ4_XS: Type.IQ4_NL,
    Type.Q4_K: Type.Q5_0,
    Type.Q5_K: Type.Q5_1,
    Type.Q6_K: Type.Q8_0,
}


def matrix_type(name: str, file_type: str, layer: int, n_layer: int) -> Type:
    if file_type != "q4_k_m":
        return Type[file_type.upper()]
    outer = layer < n_layer // 8 or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2
    better = name in ("output", "token_embd") or (name in ("attn_v", "attn_qkv", "ffn_down") and outer)
    return Type.Q6_K if better else Type.Q4_K


def requantize(source: Path, output: Path, file_type: str) -> Path:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    n_layer = int(reader.fields[f"{architecture}.block_count"].contents())
    writer = gguf.GGUFWriter(output, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    name = "ALL_F32" if file_type == "f32" else f"MOSTLY_{file_type.upper()}"
    writer.add_file_type(getattr(gguf.LlamaFileType, name, gguf.LlamaFileType.GUESSED))
    for tensor in reader.tensors:
        part = tensor.name.removesuffix(".weight").split(".")
        if tensor.name.endswith(".weight") and part[-1] in (*MATRICES, "output", "token_embd"):
            layer = int(part[1]) if part[0] == "blk" else -1
            type = matrix_type(part[-1], file_type, layer, n_layer)
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if values.shape[-1] % gguf.GGML_QUANT_SIZES[type][0]:
                type = NEIGHBOUR[type]
            if type in (Type.F32, Type.F16, Type.BF16):
                data = gguf.quants.quantize(values, type)
            else:
                data = quantize.rows(type, values, tensor.name)
            writer.add_tensor(tensor.name, data, raw_dtype=type)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("type", type=str.lower)
    args = parser.parse_args()
    print(requantize(args.source, args.output, args.type))


if __name__ == "__main__":
    main()
