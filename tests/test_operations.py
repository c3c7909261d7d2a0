"""Each operation of the drafter's graphs is one that CUDA, Metal and Vulkan accept, see tests/backends.py."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from backends import ACCEPTS, BACKENDS, CUDA, METAL, VULKAN, VULKAN_ALIGNMENT, broken, refused
from tiny.files import TinyFiles
from tiny.heads import HEADS
from tiny.operations import GRAPH_OPS, Operation, Tensor, asked, listed, params
from tiny.outline import Outline

pytestmark = pytest.mark.skipif(
    not GRAPH_OPS.exists(),
    reason=f"no {GRAPH_OPS}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build graph_ops",
)

QWEN3_8B = Outline()
GEMMA_270M = Outline(
    n_embd=640,
    n_layer=4,
    n_head=4,
    n_head_kv=1,
    head_dim=256,
    n_ff=2048,
    n_vocab=262144,
    conv_group=64,
    rank=128,
)
# A real head's shape in small: its types, candidates and options vary here.
SMALL = Outline(n_embd=512, n_layer=3, n_head=8, n_head_kv=2, n_ff=1024, n_vocab=4096, n_taps=3, rank=256)

TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q5_0, Type.IQ4_NL]
TYPES += [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]

OUTLINES = {
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-8B, rank 256, K 32": dataclasses.replace(QWEN3_8B, rank=256, top_k=32, n_layer=1),
    "Qwen3-8B, block 16": dataclasses.replace(QWEN3_8B, block_size=16, top_k=16, n_layer=1, conv_kernel=4),
    "Qwen3-8B, q4_k": dataclasses.replace(QWEN3_8B, type=Type.Q4_K, rank=256),
    "Qwen3-8B, f16": dataclasses.replace(QWEN3_8B, type=Type.F16, n_layer=2, n_full=1),
    "Qwen3-8B, M-RoPE, K/V as in Qwen3.5": dataclasses.replace(
        QWEN3_8B, mrope=True, n_layer=2, n_head=16, n_head_kv=4, head_dim=256
    ),
    "Qwen3-8B, DFlash 1": dataclasses.replace(QWEN3_8B, version=1, n_layer=2, block_size=16),
    "Gemma 3 270M": GEMMA_270M,
    "Gemma 3 270M, soft cap": dataclasses.replace(GEMMA_270M, soft_cap=30.0, logit_scale=0.5, gelu=True),
    "heads of 64": dataclasses.replace(SMALL, head_dim=64),
    "heads of 80": dataclasses.replace(SMALL, head_dim=80),
    "heads of 96": dataclasses.replace(SMALL, head_dim=96),
    "heads of 512": dataclasses.replace(SMALL, head_dim=512),
    "no window": dataclasses.replace(SMALL, window=None),
    "some layers without a window": dataclasses.replace(SMALL, window=100, n_full=1),
    "convolution over 1 row": dataclasses.replace(SMALL, conv_kernel=1),
    "convolution over 3 rows": dataclasses.replace(SMALL, conv_kernel=3, conv_group=32),
    "convolution over 4 rows": dataclasses.replace(SMALL, conv_kernel=4),
    "up of another type": dataclasses.replace(SMALL, up_type=Type.Q6_K),
    "up of another type, gelu": dataclasses.replace(SMALL, up_type=Type.Q6_K, gelu=True),
    "values scaled": dataclasses.replace(SMALL, value_scale=0.5, logit_scale=2.0),
    "own output": dataclasses.replace(SMALL, own_output=True),
    "M-RoPE": dataclasses.replace(SMALL, mrope=True),
    "DFlash 1": dataclasses.replace(SMALL, version=1),
    **{f"{k} candidates": dataclasses.replace(SMALL, top_k=k) for k in (1, 2, 7, 16, 32)},
    **{type.name.lower(): dataclasses.replace(SMALL, type=type) for type in TYPES},
}


@functools.cache
def graphs(head: Path, attention: str, *options: object) -> dict[str, list[Operation]]:
    return listed(head, "--attention", attention, *options)


def as_run_on(backend: str, head: Path, *options: object) -> dict[str, list[Operation]]:
    """The graphs that a device of the back end would get: attention in steps where it refuses it whole."""
    whole = graphs(head, "whole", *options)
    attention = [o for graph in whole.values() for o in graph if o.op == "FLASH_ATTN_EXT"]
    assert attention
    return graphs(head, "steps", *options) if any(refused(backend, o) for o in attention) else whole


def shapes(block_size: int, *, prompt: int = 512) -> list[object]:
    """Few and many rows injected; short, middle and full drafts; before and after the window slides."""
    options: list[object] = ["--context", 4096]
    for rows in (1, 2, 32, prompt):
        options += ["--inject", rows]
    for width in sorted({1, 2, block_size // 2, block_size - 1} - {0}):
        for end in (10, 1000, 4000):
            options += ["--round", width, block_size, end]
    return options


def assert_accepted(
    backend: str, head: Path, *options: object, vulkan_alignment: int = VULKAN_ALIGNMENT
) -> None:
    for name, operations in as_run_on(backend, head, *options).items():
        assert operations
        for operation in operations:
            unmet = refused(backend, operation) + broken(backend, operation, vulkan_alignment)
            assert not unmet, f"{backend}, {name}: {operation}\n    lacks: {'; '.join(unmet)}"


def lent(head_vocabulary: int, type: str = "q8_0") -> list[object]:
    return ["--output", type, head_vocabulary]


# ---- our graphs ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def outlines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outlines")


def outline(folder: Path, name: str) -> Path:
    path = folder / f"{list(OUTLINES).index(name)}.gguf"
    return path if path.exists() else OUTLINES[name].write(path)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HEADS)
def test_tiny_heads(tiny: TinyFiles, name: str, backend: str) -> None:
    head = HEADS[name]
    options = ["--context", 512]
    for rows in (1, 4, 64):
        options += ["--inject", rows]
    for width in {1, head.block_size - 1}:
        options += ["--round", width, head.block_size, 300]
    options += lent(head.of.n_vocab, "f32")
    # One K/V head of 16 dimensions is 32 bytes: the next layer's begins where only some devices can read.
    assert_accepted(backend, tiny.head(name), *options, vulkan_alignment=16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OUTLINES)
def test_heads_of_real_sizes(outlines: Path, name: str, backend: str) -> None:
    """With the target's whole output head."""
    shape = OUTLINES[name]
    assert_accepted(backend, outline(outlines, name), *shapes(shape.block_size), *lent(shape.n_vocab))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_xs"])
def test_what_a_target_lends(outlines: Path, type: str, backend: str) -> None:
    """A draft vocabulary's rows and ids; scale and bias, which some targets have."""
    options = ["--draft-ids", "--output-scale", "--output-bias", *shapes(8), *lent(32768, type)]
    assert_accepted(backend, outline(outlines, "Qwen3-8B"), *options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("name", ["Qwen3-8B", "Gemma 3 270M", "heads of 80", "heads of 512"])
def test_types_of_the_cache(outlines: Path, name: str, kv: str, backend: str) -> None:
    vocabulary = OUTLINES[name].n_vocab
    assert_accepted(backend, outline(outlines, name), "--kv", kv, *shapes(8), *lent(vocabulary))


@pytest.mark.parametrize("name", ["Qwen3-8B", "Gemma 3 270M", "Qwen3-8B, M-RoPE, K/V as in Qwen3.5"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_real_heads_have_their_attention_as_one_operation(outlines: Path, name: str, backend: str) -> None:
    options = [*shapes(8), *lent(OUTLINES[name].n_vocab)]
    for graph, operations in as_run_on(backend, outline(outlines, name), *options).items():
        names = {o.op for o in operations}
        assert "SOFT_MAX" not in names
        assert graph.startswith("inject") or "FLASH_ATTN_EXT" in names


@pytest.mark.parametrize("attention", ["whole", "steps"])
def test_strides_are_read_as_ggml_reads_them(outlines: Path, attention: str) -> None:
    kinds = set()
    for operations in graphs(outline(outlines, "Qwen3-8B"), attention, *shapes(8), *lent(151936)).values():
        for operation in operations:
            tensors = (operation.result, *operation.sources)
            for tensor, says in zip(tensors, operation.says, strict=True):
                if tensor is not None:
                    ours = (*(tensor.contiguous_from(axis) for axis in range(3)), tensor.rows)
                    assert ours == says, operation
                    kinds.add(ours)
    assert len(kinds) >= 3  # the graphs have more than whole tensors


def test_the_table_has_a_rule_for_each_operation_and_no_other(outlines: Path, tiny: TinyFiles) -> None:
    found = set()
    for attention in ("whole", "steps"):
        for name in ("Gemma 3 270M, soft cap", "convolution over 1 row"):
            options = [*shapes(8), *lent(OUTLINES[name].n_vocab)]
            for operations in graphs(outline(outlines, name), attention, *options).values():
                found |= {o.op for o in operations}
    for backend in BACKENDS:
        assert set(ACCEPTS[backend]) == found


# ---- operations that are not ours ------------------------------------------------------------------


def attention(
    head_size: int, *, cells: int = 256, kv: str = "f16", n_head: int = 8, n_head_kv: int = 2
) -> Operation:
    rows = 8
    q = Tensor.make("f32", head_size, n_head, rows).permuted(0, 2, 1, 3)
    k = Tensor.make(kv, head_size, n_head_kv, cells).permuted(0, 2, 1, 3)
    result = Tensor.make("f32", head_size, n_head, rows)
    return Operation(
        "FLASH_ATTN_EXT", result, (q, k, k, Tensor.make("f16", cells, rows)), "", params(0.125, 0.0)
    )


def product(weight: Tensor, rows: Tensor) -> Operation:
    return Operation(
        "MUL_MAT", Tensor.make("f32", weight.ne[1], rows.ne[1], rows.ne[2], rows.ne[3]), (weight, rows)
    )


def top_k(values: Tensor, k: int) -> Operation:
    return Operation("TOP_K", Tensor.make("i32", k, *values.ne[1:]), (values,))


def rows_of(table: Tensor, n: int = 4) -> Operation:
    return Operation("GET_ROWS", Tensor.make("f32", table.ne[0], n), (table, Tensor.make("i32", n)))


def binary(op: str, a: Tensor, b: Tensor) -> Operation:
    return Operation(op, Tensor.make(a.type, *a.ne), (a, b))


def written(to: str, rows: str = "f32", ids: str = "i64") -> Operation:
    table = Tensor.make(to, 256, 64)
    return Operation("SET_ROWS", table, (Tensor.make(rows, 256, 4), Tensor.make(ids, 4), table))


F32 = functools.partial(Tensor.make, "f32")
TURNED = F32(8, 256).permuted(1, 0, 2, 3)  # [256, 8], columns lie in memory

# What each refuses of them when asked. No graph of ours has any.
NOT_OURS: dict[str, tuple[Operation, set[str]]] = {
    "attention, heads of 24": (attention(24), {CUDA, METAL}),
    "attention, heads of 32": (attention(32), {CUDA}),
    "attention, heads of 60": (attention(60), {CUDA, METAL, VULKAN}),
    "attention, heads of 128": (attention(128), set()),
    "attention, heads of 192": (attention(192), {CUDA}),
    "attention, heads of 512": (attention(512), set()),
    "attention, heads of 512, 200 cells": (attention(512, cells=200), {CUDA}),
    "attention, heads of 512, one head a K/V head": (attention(512, n_head_kv=8), {CUDA}),
    "attention, iq4_nl in the cache": (attention(128, kv="iq4_nl"), {CUDA, METAL}),
    "attention, q8_0 in the cache": (attention(128, kv="q8_0"), set()),
    "attention, q6_K in the cache": (attention(256, kv="q6_K"), {CUDA, METAL, VULKAN}),
    "the best of turned values": (top_k(TURNED, 8), {VULKAN}),
    "the best 300 of 1,000": (top_k(F32(1000, 7), 300), set()),
    "the best 8 of a vocabulary": (top_k(F32(151936, 7), 8), set()),
    "product of turned f32": (product(TURNED, F32(256, 4)), {CUDA}),
    "product of a quantised view": (
        product(Tensor.make("q8_0", 256, 8, 16).permuted(0, 2, 1, 3), F32(256, 4, 8)),
        {VULKAN},
    ),
    "product of f32 with f16": (product(F32(256, 64), Tensor.make("f16", 256, 4)), {CUDA, METAL}),
    "product of bf16 with f16": (
        product(Tensor.make("bf16", 256, 64), Tensor.make("f16", 256, 4)),
        {CUDA, METAL, VULKAN},
    ),
    "product of i32": (product(Tensor.make("i32", 256, 64), F32(256, 4)), {CUDA, VULKAN}),
    "product of nvfp4": (product(Tensor.make("nvfp4", 256, 64), F32(256, 4)), {METAL}),
    "product of tq1_0": (product(Tensor.make("tq1_0", 256, 64), F32(256, 4)), {CUDA, METAL}),
    "product of one matrix with several": (product(F32(256, 64), F32(256, 4, 1, 2)), {VULKAN}),
    "rows of iq4_nl, 320 wide": (rows_of(Tensor.make("iq4_nl", 320, 64)), {CUDA}),
    "rows of nvfp4": (rows_of(Tensor.make("nvfp4", 256, 64)), {CUDA, METAL}),
    "rows of i64": (rows_of(Tensor.make("i64", 256, 64)), {CUDA, VULKAN}),
    "rows into q6_K": (written("q6_K"), {CUDA, METAL, VULKAN}),
    "rows of f16 into f32": (written("f32", rows="f16"), {CUDA, METAL}),
    "rows at f32": (written("f16", ids="f32"), {CUDA, VULKAN}),
    "sum of f32 and f16": (binary("ADD", F32(256, 4), Tensor.make("f16", 256, 4)), {METAL}),
    "sum of f32 and bf16": (binary("ADD", F32(256, 4), Tensor.make("bf16", 256, 4)), {CUDA, METAL, VULKAN}),
    "sum of i32": (
        binary("ADD", Tensor.make("i32", 256, 4), Tensor.make("i32", 256, 4)),
        {CUDA, METAL, VULKAN},
    ),
    "product by element, one turned": (binary("MUL", F32(256, 8), TURNED), {METAL}),
    "norm of turned rows": (Operation("RMS_NORM", F32(256, 8), (TURNED,), "", params(1e-6)), {CUDA, METAL}),
    "scale of turned rows": (Operation("SCALE", F32(256, 8), (TURNED,), "", params(2.0)), {METAL, VULKAN}),
    "scale of f16": (
        Operation("SCALE", Tensor.make("f16", 256), (Tensor.make("f16", 256),), "", params(2.0)),
        {CUDA, VULKAN},
    ),
    "tanh of turned rows": (Operation("UNARY", F32(256, 8), (TURNED,), "TANH", params(4)), {CUDA, METAL}),
    "rope of turned heads": (
        Operation(
            "ROPE",
            F32(128, 4, 8),
            (F32(4, 128, 8).permuted(1, 0, 2, 3), Tensor.make("i32", 8)),
            "",
            params(0, 128, 2, 0, 0, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0),
        ),
        {CUDA, VULKAN},
    ),
    "gate of turned rows": (
        Operation("GLU", F32(256, 8), (TURNED, TURNED), "SWIGLU", params(2)),
        {CUDA, METAL},
    ),
    "softmax of turned rows": (
        Operation("SOFT_MAX", F32(256, 8), (TURNED,), "", params(1.0, 0.0)),
        {METAL, VULKAN},
    ),
    "two types put together": (
        Operation("CONCAT", F32(256, 8), (F32(256, 4), Tensor.make("f16", 256, 4)), "", params(1)),
        {CUDA, METAL, VULKAN},
    ),
    "q8_0 laid out anew": (
        Operation(
            "CONT", Tensor.make("q8_0", 256, 8, 16), (Tensor.make("q8_0", 256, 16, 8).permuted(0, 2, 1, 3),)
        ),
        {METAL, VULKAN},
    ),
}

# Accepted when asked, and then run wrong or not at all.
BREAKING: dict[str, tuple[Operation, set[str]]] = {
    "the best of turned values": (top_k(TURNED, 8), {CUDA, METAL}),
    "scale of turned rows": (Operation("SCALE", F32(256, 8), (TURNED,), "", params(2.0)), {CUDA}),
    "q8_0 laid out anew": (NOT_OURS["q8_0 laid out anew"][0], {CUDA}),
    "attention, fewer rows of the mask than queries": (
        dataclasses.replace(
            attention(128), sources=(*attention(128).sources[:3], Tensor.make("f16", 256, 4))
        ),
        {METAL},
    ),
    "product with a view at an odd place": (
        product(F32(256, 64), dataclasses.replace(F32(256, 4), offset=4)),
        {VULKAN},
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NOT_OURS)
def test_the_table_notices_what_a_back_end_refuses(name: str, backend: str) -> None:
    operation, by = NOT_OURS[name]
    assert bool(refused(backend, operation)) == (backend in by)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BREAKING)
def test_the_table_notices_what_would_break(name: str, backend: str) -> None:
    operation, by = BREAKING[name]
    assert bool(broken(backend, operation)) == (backend in by)


def test_an_operation_nobody_has_read_about_is_refused() -> None:
    for backend in BACKENDS:
        assert refused(backend, Operation("ARGSORT", Tensor.make("i32", 64), (F32(64),)))


# ---- the table beside a device ---------------------------------------------------------------------


def test_a_vulkan_device_says_what_the_table_says(outlines: Path, tiny: TinyFiles) -> None:
    """Our operations and those that are not. Needs a build with GGML_VULKAN=ON and a device for it."""
    if asked("Vulkan0", []) is None:
        pytest.skip("no Vulkan device in this build")
    operations = [operation for operation, _ in NOT_OURS.values()]
    for name in ("plain", "mixed", "scaled", "reduced-vocabulary", "dflash-1", "qwen35"):
        for kind in ("whole", "steps"):
            options = ["--inject", 4, "--round", 3, 8, 300, *lent(HEADS[name].of.n_vocab, "f32")]
            operations += [o for graph in graphs(tiny.head(name), kind, *options).values() for o in graph]
    for name in ("heads of 80", "q4_k", "bf16", "iq4_nl"):
        for kind in ("whole", "steps"):
            for kv in ("f16", "f32", "bf16"):
                options = ["--kv", kv, *shapes(8), *lent(OUTLINES[name].n_vocab)]
                operations += [
                    o for graph in graphs(outline(outlines, name), kind, *options).values() for o in graph
                ]
    answers = asked("Vulkan0", operations)
    assert answers is not None
    for operation, accepted in zip(operations, answers, strict=True):
        assert accepted == (not refused(VULKAN, operation)), operation
