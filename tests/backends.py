"""What three of ggml's back ends demand of the operations that the drafter's graphs are made of.

Read from llama.cpp at the pin (cmake/llama_cpp_pin.txt). `ACCEPTS` holds what the functions that answer
`ggml_backend_dev_supports_op` ask: `ggml_backend_cuda_device_supports_op` in ggml-cuda.cu,
`ggml_metal_device_supports_op` in ggml-metal-device.m, `ggml_backend_vk_device_supports_op` in
ggml-vulkan.cpp, and those that they call, named beside what was read there. `RUNS` holds what is not asked
but taken for granted when the operation runs: it ends the process there, or gives wrong numbers.

Devices meant: CUDA 11.7 or later with its CUB library, any of its GPUs; Apple silicon (M1 or later); Vulkan
devices with subgroup shuffle and vote. A rule maps sentences to whether they hold.
"""

from __future__ import annotations

from collections.abc import Callable

from tiny.operations import Operation, Tensor, block_of

Rule = Callable[[Operation], dict[str, bool]]

CUDA, METAL, VULKAN = "CUDA", "Metal", "Vulkan"

FLOATS = {"f32", "f16"}
LEGACY_QUANTS = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}
K_QUANTS = {"q2_K", "q3_K", "q4_K", "q5_K", "q6_K"}
I_QUANTS = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "iq4_nl"}
QUANTS = LEGACY_QUANTS | K_QUANTS | I_QUANTS | {"q1_0", "q2_0"}
GATES = {"REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP"}

# Vulkan's maxStorageBufferRange, as NVIDIA and AMD report it: the widest that 32 bits can say. And Intel's
# minStorageBufferOffsetAlignment, the largest of desktop GPUs'; the specification allows 256.
VULKAN_RANGE = 2**32 - 1
VULKAN_ALIGNMENT = 64

# Here tensors must begin where a descriptor can: ggml_vk_tensor_subbuffer asserts it for ggml_vk_mul_mat*,
# ggml_vk_flash_attn and ggml_vk_topk. The other shaders take an offset to that.
VULKAN_ALIGNED = {"MUL_MAT", "FLASH_ATTN_EXT", "TOP_K"}


def nothing(_: Operation) -> dict[str, bool]:
    return {}


# ---- CUDA --------------------------------------------------------------------------------------------------


def _cuda_binary(o: Operation) -> dict[str, bool]:
    types = {o.source(0).type, o.source(1).type, o.result.type}
    with_bf16 = (
        o.source(0).type == o.result.type == "bf16" and o.source(1).type in ("bf16", "f32")
        if "bf16" in types
        else types <= FLOATS
    )
    return {"f32 and f16, or bf16 with a second operand in bf16 or f32": with_bf16}


def _cuda_product(o: Operation) -> dict[str, bool]:
    a, b = o.source(0), o.source(1)
    return {
        "elements of the first operand beside each other": a.nb[0] == block_of(a.type)[1],
        "elements of the second operand beside each other": b.nb[0] == block_of(b.type)[1],
        "a second operand in f16 only for a first one in f16": b.type != "f16" or a.type == "f16",
        "a first operand that there are kernels for": a.type
        in FLOATS | {"bf16", "q8_K", "mxfp4", "nvfp4"} | QUANTS,
    }


def _cuda_rows(o: Operation) -> dict[str, bool]:
    table = o.source(0)
    return {
        "a table that there are kernels for": table.type in FLOATS | {"bf16", "i32", "mxfp4"} | QUANTS,
        "rows of whole blocks of 256": table.type not in ("iq4_nl", "mxfp4") or table.ne[0] % 256 == 0,
    }


def _cuda_set_rows(o: Operation) -> dict[str, bool]:
    kept = FLOATS | {"bf16", "iq4_nl"} | LEGACY_QUANTS
    rows, to = o.source(0).type, o.result.type
    return {
        "rows in f32 for a table that is written to, or both in f16": (rows == "f32" and to in kept)
        or rows == to == "f16",
        "indices in i32 or i64": o.source(1).type in ("i32", "i64"),
    }


def _cuda_concat(o: Operation) -> dict[str, bool]:
    a, b = o.source(0), o.source(1)
    # Quantised ones have more rules; the drafter puts no such tensors together.
    return {
        "one type": a.type == b.type == o.result.type,
        "not quantised": not a.quantised and not b.quantised,
    }


def _cuda_attention(o: Operation) -> dict[str, bool]:
    """ggml_cuda_get_best_fattn_kernel, ggml_cuda_fattn_kv_type_supported; both in fattn.cu."""
    q, k, v = o.source(0), o.source(1), o.source(2)
    mask = o.source(3) if o.has(3) else None
    ratio = q.ne[2] // k.ne[2]
    strided = [t for t in (q, k, v, mask) if t is not None and not t.quantised]
    grouped = (
        ratio >= 2
        and mask is not None
        and o.real(1) == 0
        and k.ne[1] % 256 == 0
        and all(stride % 16 == 0 for t in strided for stride in t.nb[1:])
    )
    size, of_v = k.ne[0], v.ne[0]
    known = (
        (size in (40, 64, 72, 80, 96, 112, 128, 256) and of_v == size)
        or (size == 512 and of_v == size and grouped)
        or (size == 192 and of_v == 128 and grouped and ratio % 8 == 0)
        or (size == 320 and of_v == 256 and grouped and ratio % 32 == 0)
        or (size == 576 and of_v == 512 and grouped)
    )
    cached = {"f32", "f16", "bf16"} | LEGACY_QUANTS
    return {
        "a head size that there are kernels for": known,
        "K and V in a type that there are kernels for": k.type in cached and v.type in cached,
        "one mask for all heads": mask is None or mask.ne[2] == 1,
    }


def _cuda_top_k_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_op_top_k in top-k.cu
    a = o.source(0)
    return {"f32": a.type == "f32", "contiguous": a.contiguous, "ids in i32": o.result.type == "i32"}


def _cuda_rows_run(
    o: Operation,
) -> dict[str, bool]:  # ggml_cuda_op_get_rows in getrows.cu, and its kernels' launches
    table, ids = o.source(0), o.source(1)
    return {
        "indices in i32, beside each other": ids.type == "i32" and ids.nb[0] == 4,
        "three axes of indices at most": ids.ne[3] == 1,
        "elements beside each other": table.nb[0] == block_of(table.type)[1],
        "an even number of elements in a quantised row": not table.quantised or table.ne[0] % 2 == 0,
    }


def _cuda_rope_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_op_rope_impl in rope.cu
    a = o.source(0)
    sections = o.params[11:14]
    return {
        "f32 or f16": {a.type, o.result.type} <= FLOATS,
        "an even head size": a.ne[0] % 2 == 0,
        "a section for M-RoPE": not o.params[2] & 8 or any(section > 0 for section in sections),
    }


def _cuda_norm_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_op_rms_norm in norm.cu
    return {"f32": o.source(0).type == o.result.type == "f32", "eps not negative": o.real(0) >= 0}


def _cuda_scale_runs(o: Operation) -> dict[str, bool]:  # scale_f32 in scale.cu counts elements, not strides
    return {"contiguous": o.source(0).contiguous}


def _cuda_gate_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_op_unary_gated in unary.cu
    tensors = [o.source(i) for i in range(2) if o.has(i)]
    return {
        "rows beside each other, f32 or f16": all(
            t.type in FLOATS and t.contiguous_from(1) and t.nb[0] == block_of(t.type)[1] for t in tensors
        ),
        "one type": {t.type for t in tensors} == {o.result.type},
    }


def _cuda_binary_runs(o: Operation) -> dict[str, bool]:  # launch_bin_bcast_pack in binbcast.cu
    return {
        "strides of whole elements": all(
            stride % block_of(t.type)[1] == 0 for t in (o.source(0), o.source(1), o.result) for stride in t.nb
        )
    }


def _cuda_softmax_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_op_soft_max in softmax.cu
    return {
        "f32, contiguous": o.source(0).type == o.result.type == "f32" and o.source(0).contiguous,
        "a mask in f32 or f16": not o.has(1) or o.source(1).type in FLOATS,
    }


def _cuda_copy_runs(o: Operation) -> dict[str, bool]:  # ggml_cuda_cpy in cpy.cu, which ggml_cuda_dup calls
    a = o.source(0)
    return {
        "one type that strides can be followed in": a.type == o.result.type
        and (a.type in {"f32", "f16", "bf16", "i32", "i16"} or a.contiguous)
    }


def _cuda_attention_runs(o: Operation) -> dict[str, bool]:  # launch_fattn in fattn-common.cuh
    q, k, v = o.source(0), o.source(1), o.source(2)
    return {
        "queries and result in f32": q.type == o.result.type == "f32",
        "elements beside each other": all(t.nb[0] == block_of(t.type)[1] for t in (q, k, v)),
        "a mask in f16": not o.has(3) or o.source(3).type == "f16",
        "a multiple of K/V heads": q.ne[2] % k.ne[2] == 0,
    }


# ---- Metal -------------------------------------------------------------------------------------------------


def _metal_rowwise(o: Operation) -> dict[str, bool]:
    return {"rows without gaps": o.source(0).rows, "f32 or f16": o.source(0).type in FLOATS}


def _metal_reduced(o: Operation) -> dict[str, bool]:
    return {"rows without gaps": o.source(0).rows}


def _metal_binary(o: Operation) -> dict[str, bool]:
    a, b = o.source(0), o.source(1)
    return {
        "rows without gaps": a.rows and b.rows,
        "f32 or f16": a.type in FLOATS,
        "one type": a.type == b.type,
    }


def _metal_product(o: Operation) -> dict[str, bool]:
    """ggml_metal_supports_mul_mat_op; ggml_metal_op_mul_mat_use_mm in ggml-metal-common.cpp."""
    a, b = o.source(0), o.source(1)
    tiled = not (a.nb[0] > a.nb[1] or b.nb[0] > b.nb[1]) and a.ne[0] >= 64 and b.ne[1] > 8
    return {
        "a first operand that there are kernels for": a.type not in ("nvfp4", "tq1_0"),
        "a second operand in f16 only for f16, or many rows": b.type != "f16"
        or (a.type != "bf16" and (a.type == "f16" or tiled)),
    }


def _metal_gate(o: Operation) -> dict[str, bool]:
    return {
        "a known gate": o.kind in GATES,
        "rows beside each other": o.source(0).contiguous_from(1),
        "f32 or f16": o.source(0).type in FLOATS,
    }


def _metal_concat(o: Operation) -> dict[str, bool]:
    a, b = o.source(0), o.source(1)
    joined = FLOATS | {"bf16", "i8", "i16", "i32", "i64"} | LEGACY_QUANTS
    return {"one type": a.type == b.type == o.result.type, "a type that is put together": a.type in joined}


def _metal_rows(o: Operation) -> dict[str, bool]:
    return {"a table that there are kernels for": o.source(0).type not in ("nvfp4", "tq1_0")}


def _metal_set_rows(o: Operation) -> dict[str, bool]:
    kept = FLOATS | {"bf16", "iq4_nl", "tq2_0"} | LEGACY_QUANTS
    rows, to = o.source(0).type, o.result.type
    return {
        "rows in f32 for a table that is written to, or both in f16": (rows == "f32" and to in kept)
        or rows == to == "f16"
    }


def _metal_copy(o: Operation) -> dict[str, bool]:
    packed = LEGACY_QUANTS | {"q1_0", "q2_0", "tq2_0"}
    to = {
        "f32": FLOATS | {"bf16", "i32", "iq4_nl"} | packed,
        "f16": FLOATS,
        "bf16": {"f32", "bf16"},
        "i32": {"f32", "i32"},
        **dict.fromkeys(packed, FLOATS),
    }
    return {"types that are copied": o.result.type in to.get(o.source(0).type, set())}


def _metal_attention(o: Operation) -> dict[str, bool]:
    q, k, v = o.source(0), o.source(1), o.source(2)
    sizes = {32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576}
    return {
        "a head size that there are kernels for": q.ne[0] in sizes
        and k.ne[0] >= v.ne[0]
        and (k.ne[0] != 72 or v.ne[0] == 72),
        "K and V in one type that there are kernels for": k.type == v.type
        and k.type in FLOATS | {"bf16"} | LEGACY_QUANTS,
    }


def _metal_rows_run(o: Operation) -> dict[str, bool]:  # the kernels of kernels/quantize.metal
    kernels = FLOATS | {"bf16", "i32", "mxfp4", "tq2_0"} | QUANTS
    return {
        "a kernel for the table": o.source(0).type in kernels,
        "indices in i32": o.source(1).type == "i32",
    }


def _metal_rope_runs(o: Operation) -> dict[str, bool]:  # ggml_metal_op_rope
    n, rows = o.source(1).ne[0], o.source(0).ne[2]
    return {"whole sets of positions": n >= rows and n % rows == 0}


def _metal_attention_runs(o: Operation) -> dict[str, bool]:  # ggml_metal_op_flash_attn_ext
    q, k, v = o.source(0), o.source(1), o.source(2)
    mask = o.source(3) if o.has(3) else None
    return {
        "queries in f32, of a size that 4 divides": q.type == "f32" and q.ne[0] % 4 == 0,
        "K and V of as many cells and heads": k.ne[1:3] == v.ne[1:3],
        "a mask in f16 with a row for each query": mask is None
        or (mask.type == "f16" and mask.ne[1] >= q.ne[1]),
    }


def _metal_gate_runs(o: Operation) -> dict[str, bool]:  # ggml_metal_op_glu
    return {"two operands of one shape": not o.has(1) or o.source(0).ne == o.source(1).ne}


# ---- Vulkan ------------------------------------------------------------------------------------------------


def _vulkan_floats(o: Operation) -> dict[str, bool]:
    return {"f32 or f16 in and out": o.source(0).type in FLOATS and o.source(0).type == o.result.type}


def _vulkan_binary(o: Operation) -> dict[str, bool]:
    return {"f32 or f16": {o.source(0).type, o.source(1).type, o.result.type} <= FLOATS}


def _vulkan_gate(o: Operation) -> dict[str, bool]:
    return {
        "a known gate": o.kind in GATES,
        **_vulkan_floats(o),
        "one type": not o.has(1) or o.source(0).type == o.source(1).type,
    }


def _vulkan_flat(t: Tensor) -> bool:
    """ggml_vk_dim01_contiguous."""
    block, size = block_of(t.type)
    return (
        t.nb[0] == size
        and t.nb[1] == size * t.ne[0] // block
        and (t.ne[3] == 1 or t.nb[3] == t.nb[2] * t.ne[2])
    )


def _vulkan_product(o: Operation) -> dict[str, bool]:
    a, b = o.source(0), o.source(1)
    known = FLOATS | {"bf16", "mxfp4", "nvfp4", "tq1_0", "tq2_0"} | QUANTS
    return {
        "a first operand that there are kernels for": a.type in known,
        "as many matrices along the last axis": a.ne[3] == b.ne[3],
        "matrices without gaps, or floats": (_vulkan_flat(a) or a.type in FLOATS | {"bf16"})
        and (_vulkan_flat(b) or b.type in FLOATS),
        "no bf16 with f16": (a.type, b.type) != ("bf16", "f16"),
        "a second operand in bf16 only for a first one in bf16": b.type != "bf16" or a.type == "bf16",
    }


def _vulkan_rows(o: Operation) -> dict[str, bool]:
    known = FLOATS | {"bf16", "i32", "mxfp4", "nvfp4", "tq1_0", "tq2_0"} | QUANTS
    return {"a table that there are kernels for": o.source(0).type in known}


def _vulkan_set_rows(o: Operation) -> dict[str, bool]:
    kept = FLOATS | {"bf16", "iq4_nl", "q1_0", "q2_0"} | LEGACY_QUANTS
    return {
        "rows in f32 or f16": o.source(0).type in FLOATS,
        "indices in i32 or i64": o.source(1).type in ("i32", "i64"),
        "a table that is written to": o.result.type in kept,
    }


def _vulkan_concat(o: Operation) -> dict[str, bool]:
    """ggml_vk_concat_supported."""
    tensors = (o.source(0), o.source(1), o.result)
    return {
        "one type": len({t.type for t in tensors}) == 1,
        "rows without gaps, where they are quantised": all(t.rows or not t.quantised for t in tensors),
    }


def _vulkan_copy(o: Operation) -> dict[str, bool]:
    a, to = o.source(0), o.result
    packed = LEGACY_QUANTS | {"q1_0", "q2_0", "iq4_nl", "bf16", "f16"}
    same = a.type == to.type and (not a.quantised or (a.contiguous and to.contiguous))
    return {
        "types that are copied": (a.type == "f32" and to.type in packed | {"f32", "i32"})
        or (to.type == "f32" and a.type in packed | {"i32"})
        or (same and block_of(a.type)[1] % 2 == 0)
    }


def _vulkan_softmax(o: Operation) -> dict[str, bool]:
    return {
        "contiguous, f32": o.source(0).contiguous and o.source(0).type == "f32",
        "a mask in f32 or f16": not o.has(1) or o.source(1).type in FLOATS,
    }


def _vulkan_attention(o: Operation) -> dict[str, bool]:
    q, k, v = o.source(0), o.source(1), o.source(2)
    cached = FLOATS | {"bf16", "iq4_nl"} | LEGACY_QUANTS
    return {
        "head sizes that 8 divides": k.ne[0] % 8 == 0 and v.ne[0] % 8 == 0,
        "queries and result in f32": q.type == o.result.type == "f32",
        "sinks in f32": not o.has(4) or o.source(4).type == "f32",
        "a mask in f16": not o.has(3) or o.source(3).type == "f16",
        "K and V in a type that there are kernels for": k.type in cached and v.type in cached,
        "both or neither in bf16": (k.type == "bf16") == (v.type == "bf16"),
    }


def _vulkan_whole(o: Operation) -> dict[str, bool]:
    return {"contiguous": o.source(0).contiguous and o.result.contiguous}


def _vulkan_norm_runs(o: Operation) -> dict[str, bool]:  # ggml_vk_op_get_pipeline
    return {"f32": o.source(0).type == o.result.type == "f32"}


def _vulkan_rows_run(o: Operation) -> dict[str, bool]:  # ggml_vk_op_get_pipeline
    return {"indices in i32": o.source(1).type == "i32"}


# ---- the table ---------------------------------------------------------------------------------------------

ACCEPTS: dict[str, dict[str, Rule]] = {
    CUDA: {
        "ADD": _cuda_binary,
        "MUL": _cuda_binary,
        "SCALE": lambda o: {"f32 or bf16": o.source(0).type == o.result.type in ("f32", "bf16")},
        "UNARY": lambda o: {"known": o.kind == "TANH", "contiguous": o.source(0).contiguous},
        "GLU": lambda o: {
            "a known gate": o.kind in GATES,
            "rows beside each other": o.source(0).contiguous_from(1),
        },
        "MUL_MAT": _cuda_product,
        "GET_ROWS": _cuda_rows,
        "SET_ROWS": _cuda_set_rows,
        "CONCAT": _cuda_concat,
        "CONT": nothing,
        "RMS_NORM": lambda o: {"rows without gaps": o.source(0).rows},
        "ROPE": lambda o: {
            "elements beside each other": o.source(0).nb[0] == block_of(o.source(0).type)[1],
            "rows in order": o.source(0).contiguous_from(2),
        },
        "SOFT_MAX": nothing,
        "TOP_K": nothing,
        "FLASH_ATTN_EXT": _cuda_attention,
    },
    METAL: {
        "ADD": _metal_binary,
        "MUL": _metal_binary,
        "SCALE": _metal_rowwise,
        "UNARY": lambda o: {"known": o.kind == "TANH", **_metal_rowwise(o)},
        "GLU": _metal_gate,
        "MUL_MAT": _metal_product,
        "GET_ROWS": _metal_rows,
        "SET_ROWS": _metal_set_rows,
        "CONCAT": _metal_concat,
        "CONT": _metal_copy,
        "RMS_NORM": _metal_reduced,
        "ROPE": nothing,
        "SOFT_MAX": _metal_reduced,
        "TOP_K": nothing,
        "FLASH_ATTN_EXT": _metal_attention,
    },
    VULKAN: {
        "ADD": _vulkan_binary,
        "MUL": _vulkan_binary,
        "SCALE": lambda o: {"contiguous, f32": o.source(0).contiguous and o.source(0).type == "f32"},
        "UNARY": lambda o: {"known": o.kind == "TANH", **_vulkan_floats(o)},
        "GLU": _vulkan_gate,
        "MUL_MAT": _vulkan_product,
        "GET_ROWS": _vulkan_rows,
        "SET_ROWS": _vulkan_set_rows,
        "CONCAT": _vulkan_concat,
        "CONT": _vulkan_copy,
        "RMS_NORM": nothing,
        "ROPE": lambda o: {"rows without gaps": o.result.rows and o.source(0).rows},
        "SOFT_MAX": _vulkan_softmax,
        "TOP_K": _vulkan_whole,
        "FLASH_ATTN_EXT": _vulkan_attention,
    },
}

RUNS: dict[str, dict[str, Rule]] = {
    CUDA: {
        "ADD": _cuda_binary_runs,
        "MUL": _cuda_binary_runs,
        "SCALE": _cuda_scale_runs,
        "GLU": _cuda_gate_runs,
        "GET_ROWS": _cuda_rows_run,
        "CONT": _cuda_copy_runs,
        "RMS_NORM": _cuda_norm_runs,
        "ROPE": _cuda_rope_runs,
        "SOFT_MAX": _cuda_softmax_runs,
        "TOP_K": _cuda_top_k_runs,
        "FLASH_ATTN_EXT": _cuda_attention_runs,
    },
    METAL: {
        "GLU": _metal_gate_runs,
        "GET_ROWS": _metal_rows_run,
        "ROPE": _metal_rope_runs,
        "TOP_K": _metal_reduced,  # ggml_metal_op_top_k_bitonic, ggml_metal_op_top_k_radix
        "FLASH_ATTN_EXT": _metal_attention_runs,
    },
    VULKAN: {
        "GET_ROWS": _vulkan_rows_run,
        "RMS_NORM": _vulkan_norm_runs,
    },
}

BACKENDS = tuple(ACCEPTS)


def refused(backend: str, operation: Operation, vulkan_range: int = VULKAN_RANGE) -> list[str]:
    """Why the back end's answer to `ggml_backend_dev_supports_op` is no; empty: it is yes."""
    rule = ACCEPTS[backend].get(operation.op)
    if rule is None:
        return [f"nobody has read what {backend} demands of {operation.op}"]
    unmet = [sentence for sentence, holds in rule(operation).items() if not holds]
    if backend == VULKAN:
        tensors = [t for t in (*operation.sources, operation.result) if t is not None]
        if any(t.n_bytes > vulkan_range for t in tensors):
            unmet.append("tensors that a shader can reach")
    return unmet


def broken(backend: str, operation: Operation, vulkan_alignment: int = VULKAN_ALIGNMENT) -> list[str]:
    """What the back end takes for granted when it runs the operation, and which doesn't hold."""
    rule = RUNS[backend].get(operation.op, nothing)
    unmet = [sentence for sentence, holds in rule(operation).items() if not holds]
    if backend == VULKAN and operation.op in VULKAN_ALIGNED:
        tensors = [t for t in (*operation.sources, operation.result) if t is not None]
        if any(t.offset % vulkan_alignment for t in tensors):
            unmet.append(f"views at multiples of {vulkan_alignment} bytes")
    return unmet
