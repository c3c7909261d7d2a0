"""What a caller can pass: values absurd for any argument; for each, what it is meant to be or nearly is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np


class _Index:
    """A whole number of somebody else's making."""

    def __index__(self) -> int:
        return 3


class _Shy:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not for you")


def _endless() -> Iterator[int]:
    while True:
        yield 2**40


# fmt: off
ABSURD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, -(2**63), 2**64, 10**30,
    10**5000, 0.5, -0.0, -1.5, 1.0, math.nan, math.inf, -math.inf, 1e308, 1e-320, 1j, Decimal("0.7"),
    Decimal("sNaN"), Fraction(1, 3), "", "auto", "7", "x", "\ud800", "a\0b", "x" * 50000, "\U0001f600",
    b"bytes", b"\xff", bytearray(b"a"), [], [[]], [1, 2, 3], [-1], [2**31], [2**70], ["a"], [""], [None],
    [1.5], [True], ["\ud800"], [b"x"], [5] * 300, (), (5,), {}, {"a": 1}, {5: 1.0}, {5: math.nan}, {-1:
    1.0}, {2**70: 1.0}, {"5": 1.0}, {5: "x"}, {5: None}, set(), {5}, object(), int, len, Ellipsis,
    NotImplemented, range(3), range(0), range(2**40, 2**40 + 2), _Index(), _Shy(), np.int64(3),
    np.int8(-1), np.uint64(2**64 - 1), np.float32(0.5), np.float64(math.nan), np.bool_(True), np.array([1,
    2]), np.array([]), np.array(3), np.array([1.5]), np.array([[1, 2]]), np.array(["a"]), [np.int64(5)],
    [np.float32(5)], np.datetime64("NaT"), Path("."), Path("nowhere.gguf"), Path("~nobody/x"),
    Exception("x"),
]
# Used up by whoever reads them.
ABSURD_ITERATORS: list[Callable[[], Any]] = [
    lambda: iter([1, 2]), _endless, lambda: (x for x in "ab"), lambda: iter([]),
]

NEAR: dict[str, tuple[Any, ...]] = {
    "prompt": ("def f(", [5, 6, 7], [5] * 127, [5] * 128, "x", np.array([5, 6]), "<|im_end|>", [319], [320]),
    "tokens": ([5, 6, 7], [5], np.array([5, 6]), [319], [320], (7,)),
    "text": ("def f(", "", "ünïcödé", "<|im_end|>"),
    "draft": ([], [5], [5] * 7, [5] * 60, [5] * 200, [319], [320]),
    "max_tokens": (1, 3, 8, 200, np.int64(4)),
    "n": (1, 2, 3),
    "temperature": (0.0, 0.7, 1, 2.5, 1e-9, 1e9, np.float32(0.8)),
    "top_k": (0, 1, 40, 320, 321, 10**6),
    "top_p": (0.0, 0.5, 0.95, 1.0, 1.1),
    "min_p": (0.0, 0.05, 1.0, 1.5),
    "typical_p": (0.0, 0.5, 1.0, 2),
    "repeat_penalty": (0.0, 1.0, 1.3, -1.0, 1e30),
    "presence_penalty": (0.0, 0.5, -2, 1e30),
    "frequency_penalty": (0.0, 0.5, -2, 1e30),
    "penalty_last_n": (0, 1, 64, -1, 10**9),
    "logit_bias": (
        {5: -math.inf}, {5: 1.5, 6: -2}, {5: math.inf}, {319: 1e30}, {320: 1.0},
        dict.fromkeys(range(320), -math.inf),
    ),
    "grammar": (
        'root ::= "a" | "b"', "root ::= [a-z]+", "root ::= (", "root ::= root", "root ::= nowhere",
        'x ::= "a"', 'root ::= ""', 'root ::= ("a"?)*', "root ::= [^\x00-\U0010ffff]", "root ::= [z-a]",
        'root ::= "a"{1000000000}', 'root ::= "' + "(" * 5000 + '"', "root ::= " + "(" * 5000,
        "root ::= a\na ::= b\nb ::= a", "\ud800",
    ),
    "json_schema": (
        {"type": "integer"}, {"type": "nonsense"}, '{"type":', '{"type": "string"}', {"$ref": "#/nowhere"},
        {"$ref": "#"}, {"type": "string", "pattern": "("}, {"enum": []}, True,
        {"type": "array", "items": {"type": "boolean"}, "minItems": 10**9},
    ),
    "seed": (0, 1, 2**32 - 1, 2**64 - 1),
    "logprobs": (0, 1, 5, 320, 321),
    "stop": ("a", ["a", "b"], ["\n\n"], [""]),
    "speculate": (True, False),
    "max_draft_tokens": ("auto", 0, 1, 3, 7, 8, 100, "many"),
    "lookup": ("auto", "map-k4v", "mod", "off", "on"),
    "draft_vocabulary": ("auto", "full", 1, 30, 319, 320, 10**6, 0, "half"),
    "runs": (1, 2),
    "min_draft_probability": (0.0, 0.5, 1.0, 1.5),
    "draft_temperature": ("auto", 0.0, 0.7, 1e-9, 1e9, "many"),
    "min_probability": (0.0, 0.5, 1.0, 1.5),
    "context_size": (None, 1, 2, 16, 128, 4096, 10**6, 2**31 - 1),
    "batch_size": (None, 1, 2, 8, 64, 2**31 - 1),
    "n_threads": (None, 1, 2, 512, 513),
    "n_gpu_layers": (-1, 0, 1, 99),
    "device": (
        "auto", "cpu", "CPU", "cpu:0", "cpu:1", ["cpu"], ["cpu", "cpu"], "cuda:0", "tpu",
        "rpc:localhost:1", "x:", "",
    ),
    "draft_device": (None, "auto", "cpu", "cuda", "rpc:localhost:1", ":0"),
    "split_mode": ("layer", "none", "row", "tensor", "rows"),
    "tensor_split": (None, [], [1], [3, 1], [0, 0], [-1], [1e308, 1e308], "1"),
    "kv_type": ("f16", "f32", "q8_0", "q4_0", "iq4_nl", "bf16", "q9", "F16"),
    "drafter_kv_type": ("f16", "f32", "q8_0"),
    "taps": ("auto", "wired", "callback", "x"),
    "use_mmap": (True, False),
    "exact": (True, False),
}
# fmt: on
