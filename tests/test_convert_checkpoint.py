"""Checkpoints on disk: every tensor claimed or refused by name, and damaged files told from whole ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import (
    CONFIG_1,
    CONFIG_2,
    N_VOCAB,
    save_checkpoint,
    save_safetensors,
    save_target,
    tensors,
    values,
)
from pydflash2.convert import convert
from pydflash2.convert.checkpoint import read_checkpoint
from pydflash2.errors import HeadFormatError, PyDFlash2Error

Arrays = dict[str, np.ndarray[Any, Any]]


def without(*names: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        for name in names:
            del arrays[name]

    return change


def with_shape(name: str, *shape: int) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = values(name, shape)

    return change


def with_table(distances: list[int]) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays["d2t"] = np.array(distances, np.int64)
        arrays["lm_head.weight"] = values("lm_head", (len(distances), 32))

    return change


REFUSED: dict[str, tuple[dict[str, Any], Callable[[Arrays], None]]] = {
    "lacks 1 of a DFlash 2 head's tensors, the first is fc.weight": (CONFIG_2, without("fc.weight")),
    "lacks 2 of a DFlash 2 head's tensors, the first is candidate_selector.predecessor_codebook": (
        CONFIG_2,
        without("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"),
    ),
    "fc.weight has the shape [32, 96]; config.json makes it [32, 64] (n_embd, n_feature)": (
        CONFIG_2,
        with_shape("fc.weight", 32, 96),
    ),
    "layers.1.mlp_conv.base_kernel has the shape [2, 3, 32]; config.json makes it [2, 2, 32]": (
        CONFIG_2,
        with_shape("layers.1.mlp_conv.base_kernel", 2, 3, 32),
    ),
    "layers.0.self_attn.q_norm.weight has the shape [8]": (
        CONFIG_1,
        with_shape("layers.0.self_attn.q_norm.weight", 8),
    ),
    "model.safetensors holds layers.0.self_attn.sinks, which would be lost: no part of a DFlash head": (
        CONFIG_1,
        with_shape("layers.0.self_attn.sinks", 3),
    ),
    "layers.0.self_attn.q_proj.bias, which would be lost: a DFlash head's projections have no bias": (
        CONFIG_1,
        with_shape("layers.0.self_attn.q_proj.bias", 48),
    ),
    "layers.2.mlp.up_proj.weight, which would be lost: num_hidden_layers says 2": (
        CONFIG_1,
        with_shape("layers.2.mlp.up_proj.weight", 48, 32),
    ),
    "candidate_selector.hidden_projection.weight, which would be lost: it belongs to DFlash 2": (
        CONFIG_1,
        with_shape("candidate_selector.hidden_projection.weight", 8, 32),
    ),
    "markov_head.markov_w1.weight, which would be lost": (
        CONFIG_1,
        with_shape("markov_head.markov_w1.weight", 4, 4),
    ),
    "draft_t2d, which would be lost": (CONFIG_1, with_shape("draft_t2d", 4)),
    "names differ only in a leading 'model.'": (CONFIG_1, with_shape("model.fc.weight", 32, 64)),
    "embed_tokens.weight without lm_head.weight, and tie_word_embeddings is not true": (
        CONFIG_1,
        with_shape("embed_tokens.weight", N_VOCAB, 32),
    ),
    "lm_head.weight has the shape [70, 32]; config.json makes it [72, 32]": (
        CONFIG_1,
        with_shape("lm_head.weight", 70, 32),
    ),
    "draft_vocab_size is 12 and vocab_size 72, but the checkpoint has no d2t": (
        {**CONFIG_1, "draft_vocab_size": 12},
        with_shape("lm_head.weight", 12, 32),
    ),
    "d2t names tokens 0 to 102; vocab_size is 72": (CONFIG_1, with_table([0, 1, 100])),
    "d2t names a target token twice": (CONFIG_1, with_table([3, 2, 1])),
    "d2t is stored as BF16: it must hold whole numbers": (CONFIG_1, with_shape("d2t", 12)),
    "head_dim is 15: rope turns pairs": ({**CONFIG_1, "head_dim": 15}, lambda arrays: None),
}


@pytest.mark.parametrize("message", REFUSED)
def test_tensors_that_do_not_fit_are_refused_by_name(message: str, tmp_path: Path) -> None:
    config, change = REFUSED[message]
    arrays = tensors({**config, "head_dim": 16})
    change(arrays)
    if "d2t" in arrays and "lm_head.weight" not in arrays:
        arrays["lm_head.weight"] = values("lm_head", (12, 32))
    folder = save_checkpoint(tmp_path / "head", config, arrays)
    with pytest.raises(HeadFormatError) as caught:
        convert(folder, save_target(tmp_path / "target.gguf"))
    assert message in str(caught.value)


def test_a_reduced_vocabulary_needs_an_output_head(tmp_path: Path) -> None:
    arrays = tensors(CONFIG_1) | {"d2t": np.zeros(12, np.int64)}
    folder = save_checkpoint(tmp_path / "head", CONFIG_1, arrays)
    with pytest.raises(HeadFormatError, match=r"reduced vocabulary, d2t, without lm_head\.weight"):
        convert(folder, save_target(tmp_path / "target.gguf"))


def test_the_head_size_may_come_from_the_tensors(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG_1.items() if key != "head_dim"}
    folder = save_checkpoint(tmp_path / "head", config, tensors(CONFIG_1))
    assert convert(folder, save_target(tmp_path / "target.gguf")).is_file()


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(HeadFormatError, match=r"has no model.safetensors\. Give the folder"):
        read_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        HeadFormatError, match=r"weights in .bin files are not read: save them as safetensors"
    ):
        read_checkpoint(tmp_path)


def test_a_mask_embedding_beside_the_weights_is_not_lost(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_1)
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(HeadFormatError, match=r"holds mask_embedding\.pt, which would be lost"):
        read_checkpoint(folder)


def test_shards_that_do_not_match_their_index(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "model-1.safetensors", {"a": values("a", (2,))}, "F32")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))
    with pytest.raises(HeadFormatError, match="tensor b is in the index, but not in the files"):
        read_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    with pytest.raises(HeadFormatError, match=r"model-2.safetensors can't be read: .*Download it again"):
        read_checkpoint(tmp_path)
    for content in (
        "{",
        "[]",
        '{"weight_map": 1}',
        '{"weight_map": {"a": "../secret"}}',
        '{"weight_map": {"a": 1}}',
    ):
        index.write_text(content)
        with pytest.raises(HeadFormatError, match="is no index of shards"):
            read_checkpoint(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for number in (1, 2):
        save_safetensors(tmp_path / f"model-{number}.safetensors", {"a": values("a", (2,))}, "F32")
    with pytest.raises(HeadFormatError, match=r"a is in model-1.safetensors and in model-2.safetensors"):
        read_checkpoint(tmp_path)


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    table = json.dumps({"fc.weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(table).to_bytes(8, "little") + table + b"ab")
    with pytest.raises(
        HeadFormatError, match=r"fc.weight is stored as F8_E4M3; only F32, .* convert the one it was made"
    ):
        read_checkpoint(tmp_path)


@given(st.data())
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut off or with bytes changed anywhere: never another exception than our own."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    save_safetensors(path, {"a": values("a", (3, 4)), "b": values("b", (5,))}, "F16")
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_checkpoint(folder)
    except PyDFlash2Error as error:
        assert str(path) in str(error) or "stored as" in str(error)
        return
    for tensor in found:
        assert sum(piece.size for piece in tensor.pieces(7)) == tensor.n_elements


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "model.safetensors", {"a": values("a", (100,))}, "F32")
    (tensor,) = read_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(HeadFormatError, match="ended while a was read"):
        list(tensor.pieces(10))
