"""Every tiny head through the converter: the same tensors and keys as in the file written straight from its
numbers, and the reference's drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from golden.cases import CASES, load
from pydflash2.convert import convert
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.lattice import assert_same_lattice
from tiny.native import Native

# Told apart from the numbers that decide drafts: where the file came from, and how it lists what it holds.
BESIDE = ("general.", "GGUF.", "split.")


def read(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith(BESIDE)}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


@pytest.mark.parametrize("name", HEADS)
def test_converted_file_says_the_same(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    converted = convert(tiny.checkpoint(name), tiny.pair(name)[0], tmp_path / "head.gguf", "f32")
    keys, tensors = read(converted)
    expected_keys, expected_tensors = read(tiny.head(name))
    assert keys == expected_keys
    assert set(tensors) == set(expected_tensors)
    for tensor, expected in expected_tensors.items():
        assert tensors[tensor].tensor_type == expected.tensor_type
        np.testing.assert_array_equal(tensors[tensor].data, expected.data, err_msg=tensor)


@pytest.mark.parametrize(
    "name", ["plain", "mixed", "window-off", "block-16", "scaled", "reduced-vocabulary", "chain"]
)
def test_converted_head_drafts_as_the_reference(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    golden, case = load(name), CASES[name]
    target, _ = tiny.pair(case.head)
    head = convert(tiny.checkpoint(case.head), target, tmp_path / "head.gguf", "f32")
    with Native(target, head) as engine:
        text = [engine.prefill(golden.prompt)]
        for index, turn in enumerate(golden.rounds):
            if turn.drafted:
                draft = engine.draft(len(turn.drafted))
                assert draft.tokens == turn.drafted
                if index in golden.lattices:
                    assert_same_lattice(draft, golden.lattices[index])
            text += engine.verify(turn.drafted, case.n_tokens - len(text)).tokens
        assert text == golden.committed
