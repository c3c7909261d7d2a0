"""Weight types and ranges of a head: the lattice is that of the same weights in F32."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Type

from pydflash2._native import ffi, lib
from tiny import head_file
from tiny.files import TinyFiles
from tiny.gguf_edit import EditableFile, Tensor
from tiny.heads import HEADS
from tiny.native import Draft, Native, NativeFailure
from tiny.numbers import token_ids
from tiny.vocabulary import N_VOCAB

# Every row is a whole number of K-quant blocks, and all ids are candidates: no tie decides what is compared.
WIDE = dataclasses.replace(HEADS["chain-wide"], rank=256, top_k=N_VOCAB, block_size=4, follows_chain=False)
PROMPT = token_ids(5, 40, 0, 256)

# What remains is the rounding of activations, to the weight's type where it is a float, else to 8 bits.
TOLERANCE = {Type.F32: 1e-6, Type.F16: 2e-3, Type.BF16: 2e-2}
QUANTISED = 0.08  # a head read wrongly differs by about 1
TYPES = [
    *TOLERANCE,
    Type.Q8_0,
    Type.Q4_0,
    Type.Q4_1,
    Type.Q5_0,
    Type.Q5_1,
    Type.IQ4_NL,
    Type.Q2_K,
    Type.Q3_K,
    Type.Q4_K,
    Type.Q5_K,
    Type.Q6_K,
]


def quantise(weight: npt.NDArray[np.float32], type: Type) -> npt.NDArray[np.uint8]:
    """[rows, columns] to [rows, bytes a row], with ggml's own arithmetic."""
    block, size = gguf.GGML_QUANT_SIZES[type]
    rows, columns = weight.shape
    out = np.empty((rows, columns // block * size), np.uint8)
    name = type.name.lower().replace("_k", "_K").encode()
    source = np.ascontiguousarray(weight)
    status = lib.pd2_quantize(
        name, ffi.from_buffer("float[]", source), ffi.from_buffer(out), rows, columns, ffi.new("uint64_t *")
    )
    assert status == lib.PD2_OK, ffi.string(lib.pd2_last_error())
    return out


def draft(target: Path, head: Path) -> Draft:
    with Native(target, head, context_size=128) as engine:
        engine.prefill(PROMPT)
        return engine.draft(3)


def difference(ours: Draft, theirs: Draft) -> float:
    """Root mean square over all scores [n, V, V] by token id, relative to theirs."""

    def by_id(draft: Draft) -> npt.NDArray[np.float32]:
        order = np.argsort(draft.candidates, axis=1)
        scores = np.take_along_axis(draft.scores, order[:, None, :], 2)
        before = np.concatenate([order[:1], order[:-1]])
        return np.take_along_axis(scores, before[:, :, None], 1)

    a, b = by_id(ours), by_id(theirs)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_every_weight_type_computes(type: Type, tiny: TinyFiles, tmp_path: Path) -> None:
    target = tiny.target("qwen3-wide")
    stored = EditableFile(head_file.write(WIDE, tmp_path / "f32.gguf"))
    plain = EditableFile(tmp_path / "f32.gguf")
    for name, tensor in stored.tensors.items():
        if tensor.data.ndim == 2:
            data = quantise(tensor.data, type)
            stored.tensors[name] = Tensor(data, type)
            plain.tensors[name] = Tensor(gguf.quants.dequantize(data, type), Type.F32)
    ours = draft(target, stored.write(tmp_path / "stored.gguf"))
    theirs = draft(target, plain.write(tmp_path / "plain.gguf"))
    assert difference(ours, theirs) < TOLERANCE.get(type, QUANTISED)


def test_a_tied_quantised_embedding(tiny: TinyFiles, tmp_path: Path) -> None:
    """One tensor, read by rows for the block and as a matrix for the logits."""
    stored, plain = (EditableFile(tiny.head("own-embedding")) for _ in range(2))
    for head in (stored, plain):
        del head.tensors["output.weight"]
    data = quantise(stored.tensors["token_embd.weight"].data, Type.Q8_0)
    stored.tensors["token_embd.weight"] = Tensor(data, Type.Q8_0)
    plain.tensors["token_embd.weight"].data = gguf.quants.dequantize(data, Type.Q8_0)
    target = tiny.target("qwen3")
    ours = draft(target, stored.write(tmp_path / "stored.gguf"))
    theirs = draft(target, plain.write(tmp_path / "plain.gguf"))
    np.testing.assert_array_equal(np.sort(ours.candidates, 1), np.sort(theirs.candidates, 1))
    np.testing.assert_allclose(
        np.sort(ours.unary, 1), np.sort(theirs.unary, 1), atol=QUANTISED * np.abs(theirs.unary).max()
    )


@pytest.mark.parametrize("where", ["features", "gated product", "attention output"])
def test_f16_weights_stand_activations_beyond_f16(where: str, tiny: TinyFiles, tmp_path: Path) -> None:
    """Gemma 3 270M's features reach 1.0e5: ggml would round them to F16, whose largest number is 65,504."""
    target = EditableFile(tiny.target("qwen3"))
    plain = EditableFile(
        head_file.write(dataclasses.replace(HEADS["plain"], top_k=N_VOCAB), tmp_path / "f32.gguf")
    )
    if where == "features":
        target.tensors["token_embd.weight"].data *= np.float32(1e5)
    elif where == "gated product":
        plain.tensors["blk.0.ffn_up.weight"].data *= np.float32(1e5)
    else:
        plain.tensors["blk.0.attn_v.weight"].data *= np.float32(3e4)
        plain.tensors["enc.output_norm.weight"].data *= np.float32(10)
        plain.tensors["blk.0.attn_norm.weight"].data *= np.float32(10)
    stored = EditableFile(tmp_path / "f32.gguf")
    for name, tensor in plain.tensors.items():
        stored.tensors[name] = tensor
        if tensor.data.ndim == 2:
            data = tensor.data.astype(np.float16)
            stored.tensors[name] = Tensor(data, Type.F16)
            tensor.data = data.astype(np.float32)
    target_path = target.write(tmp_path / "target.gguf")
    if where == "features":
        with Native(target_path, tmp_path / "f32.gguf") as engine:
            engine.prefill(PROMPT)
            engine.verify([])
            assert np.abs(engine.features()).max() > 65504
    ours = draft(target_path, stored.write(tmp_path / "stored.gguf"))
    theirs = draft(target_path, plain.write(tmp_path / "plain.gguf"))
    assert difference(ours, theirs) < 1e-2


# ---- what cannot compute -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fc.weight", "blk.0.attn_conv_proj.weight", "output_norm.weight"])
@pytest.mark.parametrize("type", [Type.I8, Type.I16, Type.I32, Type.I64, Type.F64, Type.Q8_K])
def test_a_type_that_cannot_compute(type: Type, name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("chain-wide")
    file = EditableFile(head)
    block, size = gguf.GGML_QUANT_SIZES[type]
    *rows, columns = file.tensors[name].data.shape
    file.tensors[name] = Tensor(np.zeros((*rows, columns // block * size), np.uint8), type)
    advice = "f32" if "norm" in name else "f16 or q8_0"
    ggml_name = type.name.lower().replace("_k", "_K")
    message = f"{name} has type {ggml_name}, which cannot be computed with here; convert it to {advice}"
    with pytest.raises(NativeFailure, match=re.escape(message)) as failure:
        Native(target, file.write(tmp_path / "head.gguf"))
    assert failure.value.status == lib.PD2_ERROR_HEAD_FORMAT


@pytest.mark.parametrize(
    "name", ["enc.output_norm.weight", "blk.1.attn_k_norm.weight", "blk.0.attn_conv_base"]
)
def test_norms_and_kernels_must_be_f32(name: str, tiny: TinyFiles, tmp_path: Path) -> None:
    target, head = tiny.pair("plain")
    file = EditableFile(head)
    file.tensors[name] = Tensor(file.tensors[name].data.astype(np.float16), Type.F16)
    message = f"{name} has type f16, which cannot be computed with here; convert it to f32"
    with pytest.raises(NativeFailure, match=re.escape(message)):
        Native(target, file.write(tmp_path / "head.gguf"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("fc.weight", np.nan), ("output_norm.weight", np.inf), ("selector_hidden.weight", 1e38)],
)
def test_weights_that_are_no_numbers(name: str, value: float, tiny: TinyFiles, tmp_path: Path) -> None:
    """Without a word such a head would just be slow. Plain decoding still works."""
    target, head = tiny.pair("plain")
    file = EditableFile(head)
    file.tensors[name].data[:] = value
    with Native(target, file.write(tmp_path / "head.gguf"), context_size=128) as engine:
        engine.prefill(PROMPT)
        with pytest.raises(NativeFailure, match="the head computed scores that are not finite") as failure:
            engine.draft(3)
        assert failure.value.status == lib.PD2_ERROR_HEAD_FORMAT
        assert len(engine.verify([]).tokens) == 1


def test_a_target_whose_logits_are_no_numbers(tiny: TinyFiles, tmp_path: Path) -> None:
    file = EditableFile(tiny.target("qwen3"))
    file.tensors["output_norm.weight"].data[:] = np.nan
    with Native(file.write(tmp_path / "target.gguf"), context_size=128) as engine:
        with pytest.raises(NativeFailure, match="the target's logits are not finite numbers; its file"):
            engine.prefill(PROMPT, drafting=False)
        assert engine.tokens == PROMPT  # still to be read
