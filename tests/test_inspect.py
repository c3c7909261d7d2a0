"""Reading GGUF files, saying what they are, and whether a head fits a target."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import CONFIG_1, CONFIG_2, N_VOCAB, save_checkpoint, save_target, tensors, values
from golden.make_convert import HERE as GOLDEN
from pydflash2.convert import convert
from pydflash2.convert.fit import Line
from pydflash2.errors import HeadFormatError, ModelFileError
from pydflash2.gguf_file import GGUFFile
from pydflash2.inspection import check_pair, inspect


def write_gguf(path: Path, architecture: str, fields: dict[str, Any] | None = None, *names: str) -> Path:
    """A GGUF with whole numbers, lists and strings as keys, and small tensors of those names."""
    writer = GGUFWriter(path, architecture)
    for key, value in (fields or {}).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for name in names:
        writer.add_tensor(name, values(name, (4, 8)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


HEAD_FIELDS: dict[str, Any] = {
    "dflash.block_count": 2,
    "dflash.embedding_length": 32,
    "dflash.attention.head_count": 4,
    "dflash.target_layers": [2, 5],
}


# ---- what a file is ----


def test_a_dflash_2_head(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG_2)
    path = convert(
        save_checkpoint(tmp_path / "head", config), save_target(tmp_path / "t.gguf"), outtype="q8_0"
    )
    found = inspect(path)
    assert (found.kind, found.format, found.architecture, found.name) == (
        "DFlash 2 head",
        "GGUF",
        "dflash",
        "Head",
    )
    assert found.n_bytes == path.stat().st_size
    assert found.n_params == 23680
    assert (found.n_tensors, found.types) == (36, {"Q8_0": 16, "F16": 6, "F32": 14})
    assert found.warnings == []
    head = found.head
    assert head is not None
    assert (head.version, head.block_size, head.taps, head.mask_token) == (2, 6, [1, 4], 5)
    assert (head.window, head.sliding_layers, head.causal) == (24, [0], False)
    assert (head.conv_kernel, head.conv_group, head.selector_rank, head.selector_top_k) == (2, 8, 8, 4)
    assert (head.output_multiplier, head.soft_cap, head.embedding_scale) == (0.25, 20.0, 1.5)
    assert (head.n_vocab, head.n_draft_vocab, head.own_embedding, head.own_output) == (72, None, False, False)
    assert (head.rope_base, head.rope_sections) == (50000.0, None)


def test_a_checkpoint_and_its_gguf_say_the_same(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_2)
    path = convert(folder, save_target(tmp_path / "t.gguf"))
    before, after = inspect(folder).to_dict(), inspect(path).to_dict()
    assert (before["kind"], before["format"], before["types"]) == (
        "DFlash 2 head",
        "checkpoint",
        {"BF16": 36},
    )
    assert before["head"].pop("n_target_layers") == 6  # a GGUF has no key for it
    assert after["head"].pop("n_target_layers") is None
    assert before["head"] == after["head"]
    assert before["n_params"] == after["n_params"]


def test_files_that_llama_cpp_wrote() -> None:
    assert inspect(GOLDEN / "one-bf16-auto.gguf").kind == "DFlash 1 head"
    head = inspect(GOLDEN / "two-f32-to-q8_0.gguf").head
    assert head is not None
    assert head.rope_sections == [8, 0, 0, 0]
    target = inspect(GOLDEN / "target-mrope.gguf")
    assert (target.kind, target.architecture) == ("target", "qwen3")
    assert target.target is not None
    assert (target.target.n_vocab, target.target.n_true_vocab, target.target.uses_mrope) == (72, 64, True)


def test_all_of_it_is_json(tmp_path: Path) -> None:
    for path in (
        GOLDEN / "two-f32-to-q8_0.gguf",
        GOLDEN / "target.gguf",
        save_checkpoint(tmp_path / "h", CONFIG_1),
    ):
        assert json.loads(json.dumps(inspect(path).to_dict()))["path"] == str(path)


def test_a_forks_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "fork.gguf", "dflash-draft", {"dflash-draft.block_count": 2}, "fc.weight")
    found = inspect(path)
    assert found.kind == "fork's head"
    assert "convert the checkpoint again" in found.warnings[0]
    with pytest.raises(
        HeadFormatError, match=r"in the format of a fork \(dflash-draft\).*Convert its checkpoint"
    ):
        check_pair(save_target(tmp_path / "t.gguf"), path)


def test_a_dspark_head(tmp_path: Path) -> None:
    found = inspect(write_gguf(tmp_path / "h.gguf", "dflash", HEAD_FIELDS, "fc.weight", "markov_w1.weight"))
    assert found.kind == "DSpark head"
    assert "Markov head is beyond this build" in found.warnings[0]


def test_another_gguf(tmp_path: Path) -> None:
    found = inspect(
        write_gguf(tmp_path / "clip.gguf", "clip", {"clip.vision.block_count": 2, "split.count": 3})
    )
    assert (found.kind, found.head, found.target) == ("other", None, None)
    assert found.warnings == [
        "no language model: it has no geometry or no vocabulary",
        "one of 3 parts: sizes and tensors are this part's",
    ]


def test_an_old_file_is_recognised(tmp_path: Path) -> None:
    found = inspect(
        write_gguf(tmp_path / "old.gguf", "dflash", {**HEAD_FIELDS, "tokenizer.ggml.pre": "qwen35"})
    )
    assert "an old file, from before 2026-08-27, without rope sections" in found.warnings[-1]
    assert "pydflash2 convert HEAD --target TARGET" in found.warnings[-1]


def test_what_a_file_lacks_is_said(tmp_path: Path) -> None:
    warnings = inspect(write_gguf(tmp_path / "h.gguf", "dflash", HEAD_FIELDS)).warnings
    assert "dflash.block_size is missing: llama.cpp would take 16" in warnings[0]
    assert "tokenizer.ggml.mask_token_id is missing: no block can be drafted" in warnings[1]


@pytest.mark.parametrize("key", HEAD_FIELDS)
def test_a_head_that_lacks_what_all_have(key: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in HEAD_FIELDS.items() if name != key}
    with pytest.raises(HeadFormatError, match=f"lacks {key}.* Convert the head's checkpoint again"):
        inspect(write_gguf(tmp_path / "h.gguf", "dflash", fields))


def test_a_target_given_for_a_head(tmp_path: Path) -> None:
    target = save_target(tmp_path / "t.gguf")
    with pytest.raises(HeadFormatError, match="is no head: its architecture is qwen3, a head's is dflash"):
        check_pair(target, target)


# ---- whether a pair fits ----


def lines(target: Path, head: Path) -> dict[str, Line]:
    return {line.name: line for line in check_pair(target, head)}


def test_a_pair_that_fits(tmp_path: Path) -> None:
    target = save_target(tmp_path / "t.gguf")
    folder = save_checkpoint(tmp_path / "head", CONFIG_2)
    found = lines(target, convert(folder, target))
    assert all(line.ok for line in found.values())
    assert found["hidden size"].detail == "head 32, target 32"
    assert found["taps"].detail == "head reads layers 1, 4; the target has 6 (0 to 5)"
    assert found["vocabulary"].detail == "head 72, target 72 tokens"
    assert found["mask token"].detail == "head 5, target's tokens are 0 to 71"
    assert found["block size"].detail == "6 rows, 5 drafted tokens"
    assert found["tokenizer"].detail == "the same 72 tokens"
    assert found["embedding scale"].detail == "1.5"
    assert found["rope sections"].detail == "not needed: the target has none"
    assert all(line.ok for line in check_pair(target, folder))


@pytest.mark.parametrize(
    ("fields", "name", "detail"),
    [
        ({"n_embd": 48}, "hidden size", "head 32, target 48"),
        ({"n_layer": 4}, "taps", "head reads layers 1, 4; the target has 4 (0 to 3)"),
        (
            {"n_vocab": 90},
            "vocabulary",
            "head 72, target 90 tokens; the head's tokens are 72 without padding",
        ),
    ],
)
def test_a_pair_that_does_not_fit(fields: dict[str, Any], name: str, detail: str, tmp_path: Path) -> None:
    head = convert(save_checkpoint(tmp_path / "head", CONFIG_2), save_target(tmp_path / "t.gguf"))
    line = lines(save_target(tmp_path / "other.gguf", **fields), head)[name]
    assert not line.ok
    assert line.detail == detail


def test_padding_does_not_count_as_vocabulary(tmp_path: Path) -> None:
    """The same tokens, padded to different sizes."""
    folder = save_checkpoint(tmp_path / "head", {**CONFIG_2, "vocab_size": 80})
    head = convert(folder, save_target(tmp_path / "t.gguf", n_vocab=72, n_unused=8))
    assert all(line.ok for line in check_pair(tmp_path / "t.gguf", head))
    assert lines(tmp_path / "t.gguf", head)["tokenizer"].detail == "the same 64 tokens"


def test_an_output_head_of_its_own_must_not_name_tokens_the_target_lacks(tmp_path: Path) -> None:
    arrays = tensors(CONFIG_2) | {"lm_head.weight": values("lm_head", (N_VOCAB, 32))}
    folder = save_checkpoint(tmp_path / "head", CONFIG_2, arrays)
    for n_vocab, fits in ((72, True), (70, False)):
        target = save_target(tmp_path / "t.gguf", n_vocab=n_vocab)
        line = next(line for line in check_pair(target, folder) if line.name == "vocabulary")
        assert line == ("vocabulary", fits, f"head 72, target {n_vocab} tokens")


def test_tokens_that_differ_are_named(tmp_path: Path) -> None:
    target = save_target(tmp_path / "t.gguf")
    head = convert(save_checkpoint(tmp_path / "head", CONFIG_2), target)
    head.write_bytes(head.read_bytes().replace(b"token33", b"TOKEN33").replace(b"token40", b"TOKEN40"))
    line = lines(target, head)["tokenizer"]
    assert not line.ok
    assert line.detail == "2 of 72 tokens differ, first 33: head 'TOKEN33', target 'token33'"


def test_mask_token_and_block_size_must_be_there(tmp_path: Path) -> None:
    found = lines(save_target(tmp_path / "t.gguf"), write_gguf(tmp_path / "h.gguf", "dflash", HEAD_FIELDS))
    assert found["mask token"] == (
        "mask token",
        False,
        "head names none; a block can't be drafted without it",
    )
    assert found["block size"] == (
        "block size",
        False,
        "head names none; llama.cpp would take 16, which may be wrong",
    )


def test_a_mask_token_beyond_the_vocabulary(tmp_path: Path) -> None:
    fields = {**HEAD_FIELDS, "tokenizer.ggml.mask_token_id": N_VOCAB, "dflash.block_size": 1}
    found = lines(save_target(tmp_path / "t.gguf"), write_gguf(tmp_path / "h.gguf", "dflash", fields))
    assert found["mask token"] == ("mask token", False, "head 72, target's tokens are 0 to 71")
    assert not found["block size"].ok


def test_sections_and_scale_that_a_llama_cpp_file_lacks(tmp_path: Path) -> None:
    head = convert(save_checkpoint(tmp_path / "head", CONFIG_1), save_target(tmp_path / "t.gguf"))
    mrope = save_target(tmp_path / "m.gguf", rope_sections=[4, 2, 2, 0])
    assert "images need the head mended with pydflash2 convert" in lines(mrope, head)["rope sections"].detail
    assert lines(mrope, convert(head, mrope))["rope sections"].detail == "in both"
    gemma = save_target(tmp_path / "g.gguf", architecture="gemma3")
    assert "gemma3 scales its own by 5.657" in lines(gemma, head)["embedding scale"].detail


def test_taps_beside_extra_prediction_layers_are_out_of_range(tmp_path: Path) -> None:
    """Layers that only predict further tokens count in block_count, but have no output a head could read."""
    tokens = [f"t{i}" for i in range(N_VOCAB)]
    fields = {
        "q.block_count": 6,
        "q.nextn_predict_layers": 2,
        "q.embedding_length": 32,
        "tokenizer.ggml.tokens": tokens,
    }
    head = convert(save_checkpoint(tmp_path / "head", CONFIG_2), save_target(tmp_path / "t.gguf"))
    line = lines(write_gguf(tmp_path / "q.gguf", "q", fields), head)["taps"]
    assert (line.ok, line.detail) == (False, "head reads layers 1, 4; the target has 4 (0 to 3)")


# ---- damaged files ----


def gguf_bytes(n_tensors: int, n_fields: int, rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields) + rest


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def field(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def row(name: bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


UINT32, STRING, ARRAY = 4, 8, 9
Q8_0, NEWER = int(GGMLQuantizationType.Q8_0), 250
DAMAGED = {
    "is no GGUF file: it has 0 bytes": b"",
    "is no GGUF file: it starts with b'PK": b"PK\x03\x04" + bytes(40),
    "is GGUF version 1; this build reads versions 2 and 3": gguf_bytes(0, 0, b"", version=1),
    "is made for big-endian machines": gguf_bytes(0, 0, b"", version=0x03000000),
    "its head ends at byte 10, within a value that ends at 16": gguf_bytes(0, 0, b"")[:10],
    "it announces 1000000000000 tensors": gguf_bytes(10**12, 0, b""),
    "it announces 18446744073709551615 keys": gguf_bytes(0, 2**64 - 1, b""),
    "it announces 4294967296 characters": gguf_bytes(0, 1, struct.pack("<Q", 2**32) + bytes(20)),
    "it announces 1099511627776 numbers": gguf_bytes(
        0, 1, field(b"k", ARRAY, struct.pack("<IQ", UINT32, 2**40))
    ),
    "it announces 1048576 strings": gguf_bytes(0, 1, field(b"k", ARRAY, struct.pack("<IQ", STRING, 2**20))),
    "within a value that ends at": gguf_bytes(0, 1, field(b"k", ARRAY, struct.pack("<IQQ", STRING, 1, 999))),
    "key k has the unknown type 99": gguf_bytes(0, 1, field(b"k", 99, bytes(8))),
    "key k is an array of arrays": gguf_bytes(0, 1, field(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1))),
    r"a key's name is not UTF-8: b'\xff\xfe'": gguf_bytes(0, 1, field(b"\xff\xfe", UINT32, bytes(4))),
    r"a tensor's name is not UTF-8: b'\xff'": gguf_bytes(1, 0, row(b"\xff", [1]) + bytes(64)),
    "key k comes twice": gguf_bytes(0, 2, field(b"k", UINT32, bytes(4)) * 2),
    "tensor t comes twice": gguf_bytes(2, 0, row(b"t", [1]) * 2 + bytes(64)),
    "tensor t has 5 dimensions": gguf_bytes(1, 0, row(b"t", [1] * 5)),
    "tensor t has 0 dimensions": gguf_bytes(1, 0, row(b"t", []) + bytes(64)),
    "tensor t has the shape [0]": gguf_bytes(1, 0, row(b"t", [0]) + bytes(64)),
    "tensor t has the shape [4294967296, 4294967296]": gguf_bytes(1, 0, row(b"t", [2**32, 2**32])),
    "tensor t starts at byte 72, not at a multiple of 32": gguf_bytes(
        1, 0, row(b"t", [1], offset=8) + bytes(96)
    ),
    "tensor t has rows of 33 values, not a multiple of 32": gguf_bytes(
        1, 0, row(b"t", [33], Q8_0) + bytes(96)
    ),
    "tensor t ends at byte 4064, the file at": gguf_bytes(1, 0, row(b"t", [1000]) + bytes(96)),
    "general.alignment is 24, not a power of two": gguf_bytes(
        0, 1, field(b"general.alignment", UINT32, struct.pack("<I", 24))
    ),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_damaged_file_is_told(message: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGED[message])
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"nothing.gguf can't be read: No such file or directory. Check the path"
    ):
        inspect(tmp_path / "nothing.gguf")


def test_a_newer_weight_type_does_not_hide_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(gguf_bytes(1, 0, row(b"t", [7], NEWER) + bytes(96)))
    assert inspect(path).types == {"type 250": 1}


WHOLE = (GOLDEN / "two-f32-to-q8_0.gguf").read_bytes()
HEAD_END = 4000  # bytes: keys, vocabulary and tensor table end somewhat further


@settings(max_examples=300)
@given(data=st.data())
def test_any_damage_is_an_answer_or_our_own_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(WHOLE)
    for place in data.draw(st.lists(st.integers(0, HEAD_END), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    target = GOLDEN / "target-mrope.gguf"
    for call in (lambda: inspect(path), lambda: check_pair(target, path), lambda: check_pair(path, target)):
        try:
            call()
        except ModelFileError as error:
            assert str(error)


def test_a_vocabulary_whose_parts_differ_in_length_is_refused(tmp_path: Path) -> None:
    fields = {"q.block_count": 6, "q.embedding_length": 32, "tokenizer.ggml.tokens": ["a", "b", "c"]}
    path = write_gguf(tmp_path / "q.gguf", "q", {**fields, "tokenizer.ggml.token_type": [1, 1]})
    with pytest.raises(ModelFileError, match="token_type does not have one entry for each of the 3 tokens"):
        check_pair(path, GOLDEN / "one-bf16-auto.gguf")
