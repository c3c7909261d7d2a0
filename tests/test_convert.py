"""Converting whole heads: against llama.cpp's own converter, and against what the checkpoint holds."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

from checkpoints import (
    CONFIG_1,
    CONFIG_2,
    N_VOCAB,
    save_checkpoint,
    save_safetensors,
    save_target,
    shapes,
    tensors,
    values,
)
from golden.make_convert import HEADS
from golden.make_convert import HERE as GOLDEN
from pydflash2.convert import convert
from pydflash2.convert.checkpoint import StoredTensor, read_checkpoint
from pydflash2.convert.config import HeadConfig
from pydflash2.convert.encode import choose_types
from pydflash2.convert.tensors import HeadTensors
from pydflash2.errors import HeadFormatError, HeadMismatchError, ModelFileError
from pydflash2.gguf_file import GGUFFile
from pydflash2.inspection import check_pair
from tiny.files import TinyFiles
from tiny.heads import HEADS as TINY_HEADS


def changed(config: dict[str, Any], **drafting: Any) -> dict[str, Any]:
    """The config with other settings in dflash_config."""
    result = copy.deepcopy(config)
    result["dflash_config"].update(drafting)
    return result


def data(file: GGUFFile, name: str) -> bytes:
    tensor = file.tensors[name]
    assert tensor.n_bytes is not None
    return file.path.read_bytes()[tensor.offset :][: tensor.n_bytes]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_target(tmp_path / "Tiny-1M-Q8_0.gguf")


# ---- against llama.cpp ----


@pytest.mark.parametrize("name", HEADS)
def test_every_byte_is_as_llama_cpp_writes_it(name: str, tmp_path: Path) -> None:
    config, stored, outtype, uses_mrope = HEADS[name]
    folder = save_checkpoint(tmp_path / name, config, dtype=stored)
    target = GOLDEN / ("target-mrope.gguf" if uses_mrope else "target.gguf")
    ours = convert(folder, target, tmp_path / "ours.gguf", outtype)
    assert GGUFFile.open(ours).fields == GGUFFile.open(GOLDEN / f"{name}.gguf").fields
    assert ours.read_bytes() == (GOLDEN / f"{name}.gguf").read_bytes()


@pytest.mark.parametrize("name", TINY_HEADS)
def test_every_variant_is_as_the_engines_tests_write_it(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    """tests/tiny writes its GGUF heads straight from their numbers: two writers, one format."""
    output = convert(
        tiny.checkpoint(name), tiny.target(TINY_HEADS[name].target), tmp_path / "out.gguf", "f32"
    )
    ours, theirs = GGUFFile.open(output), GGUFFile.open(tiny.head(name))
    settings = [
        {key: field for key, field in file.fields.items() if key.startswith(("dflash.", "pydflash2."))}
        for file in (ours, theirs)
    ]
    assert settings[0] == settings[1]
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(data(ours, tensor) == data(theirs, tensor) for tensor in ours.tensors)


def published_geometry(tmp_path: Path) -> tuple[HeadConfig, HeadTensors]:
    """Config and tensor table of the published 1.9 B head; no weights are needed to choose their types."""
    config = copy.deepcopy(CONFIG_2) | {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 248320,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
    }
    config["dflash_config"] |= {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_group_size": 16,
        "selector_rank": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = [
        StoredTensor(name, "BF16", shape, tmp_path, 0) for name, shape in sorted(shapes(config).items())
    ]
    read = HeadConfig.read(tmp_path)
    return read, HeadTensors.claim(read, stored)


@pytest.mark.parametrize(
    ("outtype", "counts"),
    [
        ("q4_k_m", {"Q4_K": 45, "Q6_K": 4, "F32": 32}),
        ("q6_k", {"Q6_K": 49, "F32": 32}),
        ("q2_k", {"Q2_K": 34, "Q3_K": 10, "Q4_K": 5, "F32": 32}),
        ("q4_0", {"Q4_0": 49, "F32": 32}),
        ("q8_0", {"Q8_0": 49, "F32": 32}),
        ("bf16", {"BF16": 49, "F32": 32}),
    ],
)
def test_types_of_the_published_geometry(outtype: str, counts: dict[str, int], tmp_path: Path) -> None:
    config, claimed = published_geometry(tmp_path)
    types = choose_types(outtype, config, claimed.head_dim, claimed.tensors)
    assert Counter(kind.name for kind in types) == counts


def test_more_bits_go_to_the_layers_llama_quantize_gives_them_to(tmp_path: Path) -> None:
    """Its rule goes by the layer's number, not by names' order, where layer 10 comes before 2."""
    config = changed({**CONFIG_1, "num_hidden_layers": 12, "layer_types": ["full_attention"] * 12})
    config |= {"hidden_size": 256, "intermediate_size": 256}
    folder = save_checkpoint(tmp_path / "head", config)
    read = HeadConfig.read(folder)
    claimed = HeadTensors.claim(read, read_checkpoint(folder))
    types = choose_types("q4_k_m", read, claimed.head_dim, claimed.tensors)
    named = {tensor.name: kind.name for tensor, kind in zip(claimed.tensors, types, strict=True)}
    high = [layer for layer in range(12) if named[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert high == [0, 3, 6, 9, 10, 11]


def test_rows_that_no_k_quant_fits_fall_back(target: Path, tmp_path: Path) -> None:
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "head", CONFIG_2), target, outtype="q4_k_m"))
    assert file.tensors["fc.weight"].type_name == "Q5_0"  # rows of 64
    assert file.tensors["blk.0.attn_output.weight"].type_name == "F16"  # rows of 48
    assert file.tensors["blk.1.attn_v.weight"].type_name == "Q8_0"  # llama-quantize would give it Q6_K


# ---- against the checkpoint ----


@pytest.mark.parametrize(
    ("outtype", "step"),
    [("f32", 0), ("f16", 2e-4), ("bf16", 2e-3), ("q8_0", 4e-3), ("q6_k", 0.03), ("q4_k_m", 0.06)],
)
def test_weights_keep_their_values(outtype: str, step: float, tmp_path: Path) -> None:
    config = changed({**CONFIG_2, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64})
    arrays = tensors(config)
    target = save_target(tmp_path / "target.gguf", n_embd=256)
    file = GGUFFile.open(
        convert(save_checkpoint(tmp_path / "head", config, arrays, "F32"), target, outtype=outtype)
    )
    for source, name in {
        "fc.weight": "fc.weight",
        "layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "layers.0.mlp_conv.base_kernel": "blk.0.ffn_conv_base",
        "candidate_selector.successor_codebook": "selector_successor.weight",
    }.items():
        tensor = file.tensors[name]
        raw = np.frombuffer(data(file, name), np.uint8)
        read = dequantize(raw.reshape(int(np.prod(tensor.shape[1:])), -1), GGMLQuantizationType(tensor.type))
        assert tensor.shape == tuple(reversed(arrays[source].shape))
        assert np.abs(read.reshape(arrays[source].shape) - arrays[source]).max() <= step, name


def test_bf16_becomes_the_nearest_f16(target: Path, tmp_path: Path) -> None:
    """All magnitudes F16 has, subnormal ones too, through the table."""
    arrays = tensors(CONFIG_1)
    bits = np.arange(0x3000, 0x477F, dtype=np.uint32)  # from 4.7e-10 to 65280
    spread = np.resize(bits << 16, arrays["fc.weight"].shape).view(np.float32)
    arrays["fc.weight"] = spread
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "head", CONFIG_1, arrays), target, outtype="f16"))
    assert data(file, "fc.weight") == spread.astype(np.float16).tobytes()


@pytest.mark.parametrize("bad", [65536.0, -1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_what_f16_cannot_hold_is_refused(bad: float, dtype: str, target: Path, tmp_path: Path) -> None:
    arrays = tensors(CONFIG_1)
    arrays["fc.weight"][3, 7] = bad
    folder = save_checkpoint(tmp_path / "head", CONFIG_1, arrays, dtype)
    with pytest.raises(HeadFormatError, match=r"fc.weight holds values that F16 can't .* Use --outtype bf16"):
        convert(folder, target, tmp_path / "out.gguf", "f16")
    assert not list(tmp_path.glob("*out.gguf*"))


@pytest.mark.parametrize("outtype", ["q8_0", "q4_0"])
def test_what_no_quantised_type_can_hold_is_refused(outtype: str, target: Path, tmp_path: Path) -> None:
    arrays = tensors(CONFIG_1)
    arrays["fc.weight"][3, 7] = np.inf
    folder = save_checkpoint(tmp_path / "head", CONFIG_1, arrays, "F32")
    with pytest.raises(HeadFormatError, match=r"fc\.weight can't be quantised: .* (inf|not finite)"):
        convert(folder, target, outtype=outtype)


def test_interleaved_rope_is_reordered_head_by_head(target: Path, tmp_path: Path) -> None:
    arrays = tensors(CONFIG_1)
    folder = save_checkpoint(tmp_path / "head", {**CONFIG_1, "rope_is_neox_style": False}, arrays, "F32")
    file = GGUFFile.open(convert(folder, target, outtype="f32"))
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    query = arrays["layers.1.self_attn.q_proj.weight"].reshape(3, 16, 32)[:, order]
    assert data(file, "blk.1.attn_q.weight") == query.tobytes()
    assert (
        data(file, "blk.0.attn_k_norm.weight") == arrays["layers.0.self_attn.k_norm.weight"][order].tobytes()
    )
    assert data(file, "blk.0.attn_v.weight") == arrays["layers.0.self_attn.v_proj.weight"].tobytes()


def test_shards_and_names_that_only_some_checkpoints_write(target: Path, tmp_path: Path) -> None:
    whole = convert(save_checkpoint(tmp_path / "head", CONFIG_2), target, tmp_path / "whole.gguf")
    folder = tmp_path / "shards" / "head"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG_2))
    arrays = {
        f"model.{name}" + (".weight" if name.endswith("codebook") else ""): array
        for name, array in tensors(CONFIG_2).items()
    } | {"model.rotary_emb.inv_freq": values("inv_freq", (8,))}
    names = sorted(arrays)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_safetensors(folder / file, {name: arrays[name] for name in part}, "BF16")
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    one, two = GGUFFile.open(whole), GGUFFile.open(convert(folder, target, tmp_path / "two.gguf"))
    assert one.fields == two.fields
    assert one.tensors.keys() == two.tensors.keys()
    assert all(data(one, name) == data(two, name) for name in one.tensors)


def test_a_reduced_vocabulary_maps_to_target_tokens(target: Path, tmp_path: Path) -> None:
    arrays = tensors(CONFIG_2)
    arrays["lm_head.weight"] = values("lm_head.weight", (12, 32))
    arrays["d2t"] = np.arange(12, dtype=np.int64) * 4  # distances: draft token i is target token i + 4 i
    folder = save_checkpoint(tmp_path / "head", {**CONFIG_2, "draft_vocab_size": 12}, arrays)
    file = GGUFFile.open(convert(folder, target))
    assert file.tensors["d2t"].type_name == "I64"
    assert np.frombuffer(data(file, "d2t"), np.int64).tolist() == [5 * token for token in range(12)]
    assert file.tensors["output.weight"].shape == (32, 12)
    assert list(file.tensors)[-1] == "d2t"


def test_own_embedding_and_output_head_are_kept(target: Path, tmp_path: Path) -> None:
    arrays = tensors(CONFIG_2) | {
        "lm_head.weight": values("a", (72, 32)),
        "embed_tokens.weight": values("b", (72, 32)),
    }
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "own", CONFIG_2, arrays), target))
    assert {"token_embd.weight", "output.weight"} <= file.tensors.keys()

    borrowed = {**CONFIG_2, "has_embed_tokens": False}
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "borrowed", borrowed, arrays), target))
    assert "token_embd.weight" not in file.tensors


# ---- what comes from the target ----


@pytest.mark.parametrize(
    ("architecture", "scale"), [("gemma3", 32**0.5), ("gemma", 32**0.5), ("qwen3", None)]
)
def test_gemma_targets_give_their_embedding_scale(
    architecture: str, scale: float | None, tmp_path: Path
) -> None:
    target = save_target(tmp_path / "target.gguf", architecture=architecture)
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "head", CONFIG_1), target))
    assert file.number("dflash.embedding_scale") == (None if scale is None else pytest.approx(scale))


def test_a_scale_of_the_heads_own_beats_gemmas(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target.gguf", architecture="gemma3")
    file = GGUFFile.open(convert(save_checkpoint(tmp_path / "head", CONFIG_2), target))
    assert file.number("dflash.embedding_scale") == 1.5


def test_the_vocabulary_is_padded_to_the_heads(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target.gguf", n_vocab=70)
    output = convert(save_checkpoint(tmp_path / "head", CONFIG_2), target)
    file = GGUFFile.open(output)
    assert file.value("tokenizer.ggml.tokens")[-3:] == [b"token69", b"[PAD70]", b"[PAD71]"]
    assert file.value("tokenizer.ggml.token_type")[-3:] == [1, 5, 5]
    assert all(line.ok for line in check_pair(target, output))


def test_only_the_target_decides_on_rope_sections(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_1)
    for sections, written in (([4, 2, 2, 0], [8, 0, 0, 0]), ([0, 0, 0, 0], None), (None, None)):
        target = save_target(tmp_path / "target.gguf", rope_sections=sections)
        file = GGUFFile.open(convert(folder, target, tmp_path / "out.gguf"))
        assert file.array("dflash.rope.dimension_sections") == written


MISFITS = {
    "hidden size: head 32, target 64": {"n_embd": 64},
    "head reads layers 1, 4; the target has 4 (0 to 3)": {"n_layer": 4},
    "made for one with 6": {"n_layer": 7},
    "vocabulary: head 72, target 80 tokens, 78 without padding": {"n_vocab": 80, "n_unused": 2},
}


@pytest.mark.parametrize("message", MISFITS)
def test_a_head_for_another_target_is_refused_with_the_numbers_of_both(message: str, tmp_path: Path) -> None:
    target = save_target(tmp_path / "target.gguf", **MISFITS[message])
    with pytest.raises(HeadMismatchError) as caught:
        convert(save_checkpoint(tmp_path / "head", CONFIG_2), target)
    assert message in str(caught.value)
    assert "Give the target it was made for" in str(caught.value)


def test_a_mask_token_outside_the_vocabulary_is_refused(target: Path, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", changed(CONFIG_1, mask_token_id=N_VOCAB))
    with pytest.raises(HeadMismatchError, match="mask token: head 72, target's tokens are 0 to 71"):
        convert(folder, target)


def test_a_hugging_face_folder_as_target_names_the_gguf_way(tmp_path: Path) -> None:
    head = save_checkpoint(tmp_path / "head", CONFIG_1)
    with pytest.raises(
        ModelFileError, match=r"is a folder, .* Give the target's .gguf file, or make it with llama.cpp's"
    ):
        convert(head, head)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "dflash"}, "is a head, not a target"),
        ({"n_vocab": 0}, "has no vocabulary"),
    ],
)
def test_a_target_that_is_none_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "target.gguf"
    writer = GGUFWriter(path, fields.get("architecture", "qwen3"))
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=message):
        convert(save_checkpoint(tmp_path / "head", CONFIG_1), path)


# ---- files ----


def test_the_output_lies_beside_the_target_by_default(target: Path, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_1)
    assert convert(folder, target) == tmp_path / "dflash-Tiny-1M-BF16.gguf"
    assert convert(folder, target, outtype="q4_0") == tmp_path / "dflash-Tiny-1M-Q4_0.gguf"


def test_a_failed_conversion_leaves_the_old_file(target: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"old")
    arrays = tensors(CONFIG_1)
    arrays["layers.1.mlp.up_proj.weight"][0, 0] = 1e20  # met after most of the file is written
    with pytest.raises(HeadFormatError):
        convert(save_checkpoint(tmp_path / "head", CONFIG_1, arrays), target, output, "f16")
    assert output.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_output_that_cannot_be_written_is_named(target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        ModelFileError, match=r"out.gguf can't be written: .* Name another file with --output"
    ):
        convert(save_checkpoint(tmp_path / "head", CONFIG_1), target, tmp_path / "file" / "out.gguf")


def test_arguments_are_checked(target: Path, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_1)
    with pytest.raises(ValueError, match=r"outtype must be auto, f32, f16, .*got 'q5'"):
        convert(folder, target, outtype="q5")
    with pytest.raises(ValueError, match="would overwrite what is converted"):
        convert(folder, target, target)
    with pytest.raises(ModelFileError, match=r"there is no folder or file .*/nowhere"):
        convert(tmp_path / "nowhere", target)
    with pytest.raises(HeadFormatError, match=r"is no GGUF head. Give a checkpoint's folder"):
        convert(folder / "model.safetensors", target)


def test_a_repository_is_fetched_and_gives_the_name(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path / "0c1e57098", CONFIG_1)  # a download's folder is named for its commit
    asked = []

    def fetch(repository: str, allow_patterns: list[str]) -> str:
        asked.append(repository)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    file = GGUFFile.open(convert("someone/Tiny-1M-DFlash", target))
    assert asked == ["someone/Tiny-1M-DFlash"]
    assert file.text("general.name") == "Tiny 1M DFlash"
    assert file.text("general.basename") == "Tiny"


def test_a_repository_that_cannot_be_fetched_is_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto the Hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        ModelFileError, match=r"someone/head is no folder here and could not be fetched .*: no route\. "
    ):
        convert("someone/head", target)


def test_a_bar_is_drawn_only_where_wanted(
    target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_1)
    convert(folder, target)  # stderr is no terminal here
    assert capfd.readouterr() == ("", "")
    convert(folder, target, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "dflash-Tiny-1M-BF16.gguf: 100%" in shown.err


PEAK = """
import resource, sys
from pydflash2.convert import convert
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.fixture(scope="module")
def large_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint whose largest tensor takes 64 MB, and its target."""
    folder = tmp_path_factory.mktemp("large")
    config = {**CONFIG_1, "hidden_size": 2048, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    config["dflash_config"] = {**CONFIG_1["dflash_config"], "target_layer_ids": [0, 1, 2, 3, 4, 5, 0, 1]}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes(config).items()}
    return save_checkpoint(folder / "head", config, arrays), save_target(folder / "target.gguf", n_embd=2048)


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0", "q4_0"])
def test_memory_does_not_grow_with_the_tensor(
    outtype: str, large_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *large_pair, tmp_path / "out.gguf", outtype],
        capture_output=True,
        text=True,
        check=True,
    )
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    assert int(done.stdout) * unit < 40e6


# ---- old files ----


def old_head(tmp_path: Path, outtype: str = "q8_0") -> tuple[Path, Path]:
    """A head as it was written before 2026-08-27 for a target with M-RoPE, and that target."""
    folder = save_checkpoint(tmp_path / "head", CONFIG_2)
    old = convert(folder, save_target(tmp_path / "plain.gguf"), tmp_path / "old.gguf", outtype)
    return old, save_target(tmp_path / "mrope.gguf", rope_sections=[4, 2, 2, 0])


def test_an_old_file_is_mended(tmp_path: Path) -> None:
    old, target = old_head(tmp_path)
    mended = convert(old, target)
    assert mended == tmp_path / "old-mended.gguf"
    before, after = GGUFFile.open(old), GGUFFile.open(mended)
    assert after.array("dflash.rope.dimension_sections") == [8, 0, 0, 0]
    fresh = convert(tmp_path / "head", target, tmp_path / "fresh.gguf", "q8_0")
    assert after.fields == GGUFFile.open(fresh).fields
    assert before.tensors.keys() == after.tensors.keys()
    assert all(data(before, name) == data(after, name) for name in before.tensors)


def test_a_file_that_needs_no_mending_is_left_alone(tmp_path: Path) -> None:
    old, target = old_head(tmp_path)
    mended = convert(old, target)
    with pytest.raises(HeadFormatError, match=r"has its rope sections. There is nothing to mend"):
        convert(mended, target)
    with pytest.raises(HeadFormatError, match=r"needs no rope sections: plain.gguf has none"):
        convert(old, tmp_path / "plain.gguf")
    with pytest.raises(ValueError, match="a GGUF head keeps its types"):
        convert(old, target, outtype="f16")


def test_an_old_file_for_another_target_is_not_mended(tmp_path: Path) -> None:
    old, _ = old_head(tmp_path)
    other = save_target(tmp_path / "other.gguf", n_embd=64, rope_sections=[4, 2, 2, 0])
    with pytest.raises(HeadMismatchError, match="hidden size: head 32, target 64"):
        convert(old, other)
