"""Makes tests/golden/convert/: what llama.cpp's own converter writes for tiny checkpoints.

    python tests/golden/make_convert.py --llama-cpp PATH    # needs torch, transformers, sentencepiece

The checkpoints are those of tests/checkpoints.py. The target's folder is made here; its GGUF is kept too:
pydflash2 reads that in the folder's place.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from checkpoints import CONFIG_1, CONFIG_2, N_VOCAB, save_checkpoint, save_safetensors, values

HERE = Path(__file__).resolve().parent / "convert"
TEXT = "def add(first, second):\n    return first + second\nfor word in words: print(word)\n"

INTERLEAVED = {**CONFIG_1, "rope_is_neox_style": False}
DERIVED = {key: value for key, value in CONFIG_1.items() if key != "is_causal"} | {
    "rope_parameters": {
        "rope_theta": 9e4,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "layer_types": ["full_attention", "full_attention"],
}  # a window that no layer uses
# name of the head -> config, stored type, outtype, whether the target uses M-RoPE
HEADS: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    "two-bf16-to-f16": (CONFIG_2, "BF16", "f16", False),
    "two-f32-to-q8_0": (CONFIG_2, "F32", "q8_0", True),
    "one-bf16-auto": (DERIVED, "BF16", "auto", False),
    "one-f16-to-bf16": (INTERLEAVED, "F16", "bf16", True),
}


def save_target_folder(folder: Path, uses_mrope: bool) -> Path:
    """A Qwen3 that has a SentencePiece vocabulary, and hardly any weights."""
    import sentencepiece  # only the maker needs it, the tests read HEADS from here

    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 4),
        model_writer=model,
        vocab_size=N_VOCAB - 8,  # the rest is padding, as in most models
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    rope: dict[str, Any] = {"rope_theta": 10000.0, "rope_type": "default"}
    if uses_mrope:
        rope["mrope_section"] = [2, 1, 1]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": N_VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {
        "model.embed_tokens.weight": values("embed", (N_VOCAB, 32)),
        "model.norm.weight": values("norm", (32,)),
    }
    save_safetensors(folder / "model.safetensors", arrays, "F16")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with convert_hf_to_gguf.py")
    llama_cpp = parser.parse_args().llama_cpp

    def run(*arguments: object) -> None:
        command = [sys.executable, llama_cpp / "convert_hf_to_gguf.py", *arguments]
        subprocess.run([str(part) for part in command], check=True)

    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        targets = {}
        for name, uses_mrope in (("target", False), ("target-mrope", True)):
            targets[uses_mrope] = save_target_folder(Path(scratch) / name, uses_mrope)
            run(targets[uses_mrope], "--outtype", "f16", "--outfile", HERE / f"{name}.gguf")
        for name, (config, stored, outtype, uses_mrope) in HEADS.items():
            folder = save_checkpoint(Path(scratch) / name, config, dtype=stored)
            run(
                folder,
                "--target-model-dir",
                targets[uses_mrope],
                "--outtype",
                outtype,
                "--outfile",
                HERE / f"{name}.gguf",
            )


if __name__ == "__main__":
    main()
