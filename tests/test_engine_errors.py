"""What an engine refuses, and that each message says what, why, and what to do."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydflash2
from pydflash2 import errors
from pydflash2._native import lib
from tiny import head_file
from tiny.files import TinyFiles
from tiny.heads import HEADS

PROMPT = "the cat sat on"


@pytest.fixture(scope="module")
def chain(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1, context_size=128) as engine:
        yield engine


def test_every_native_status_has_its_class() -> None:
    expected = {
        lib.PD2_ERROR_ARGUMENT: ValueError,
        lib.PD2_ERROR_MODEL_FILE: errors.ModelFileError,
        lib.PD2_ERROR_HEAD_FORMAT: errors.HeadFormatError,
        lib.PD2_ERROR_HEAD_MISMATCH: errors.HeadMismatchError,
        lib.PD2_ERROR_BACKEND: errors.BackendUnavailableError,
        lib.PD2_ERROR_CONTEXT_OVERFLOW: errors.ContextOverflowError,
        lib.PD2_ERROR_MEMORY: errors.OutOfMemoryError,
        lib.PD2_ERROR_NATIVE: errors.NativeError,
        99: errors.NativeError,
    }
    for status, kind in expected.items():
        error = errors.error_from_status(status, "why")
        assert type(error) is kind
        assert str(error) == "why"
        assert kind is ValueError or isinstance(error, pydflash2.PyDFlash2Error)


# ---- arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens is 0: it must lie between 1 and"),
        ({"max_tokens": -5}, ValueError, "max_tokens is -5"),
        ({"max_tokens": 2.5}, TypeError, "max_tokens is 2.5: give a whole number, 1 or more"),
        ({"max_tokens": True}, TypeError, "max_tokens is True: give a whole number"),
        ({"max_tokens": "7"}, TypeError, "max_tokens is '7'"),
        ({"max_draft_tokens": -1}, ValueError, "max_draft_tokens is -1: it must lie between 0 and"),
        ({"max_draft_tokens": 2.0}, TypeError, "max_draft_tokens is 2.0: give a whole number"),
        ({"max_draft_tokens": True}, TypeError, "max_draft_tokens is True"),
        ({"max_draft_tokens": "all"}, ValueError, "max_draft_tokens is 'all': give a number or \"auto\""),
        ({"max_draft_tokens": None}, TypeError, "max_draft_tokens is None"),
        ({"max_draft_tokens": 2**40}, ValueError, f"max_draft_tokens is {2**40}: it must lie between"),
        (
            {"temperature": -0.1},
            ValueError,
            "temperature is -0.1: give 0 for the likeliest token, or a positive",
        ),
        ({"temperature": math.nan}, ValueError, "temperature is nan: it must be a finite number"),
        ({"temperature": math.inf}, ValueError, "temperature is inf"),
        ({"temperature": "hot"}, TypeError, "temperature is 'hot': give a number"),
        ({"temprature": 0.7}, TypeError, "there is no setting 'temprature': did you mean temperature?"),
        ({"top_k": -1}, ValueError, "top_k is -1"),
        ({"top_p": 0}, ValueError, "top_p is 0: give a number above 0 and up to 1"),
        (
            {"min_p": 1.5},
            ValueError,
            "min_p is 1.5: give a share of the likeliest token's probability, 0 to 1",
        ),
        ({"typical_p": -1}, ValueError, "typical_p is -1"),
        ({"repeat_penalty": 0}, ValueError, "repeat_penalty is 0: give a positive number, 1 for none"),
        ({"presence_penalty": math.inf}, ValueError, "presence_penalty is inf"),
        ({"frequency_penalty": 1e300}, ValueError, "frequency_penalty is inf"),
        ({"penalty_last_n": -2}, ValueError, "penalty_last_n is -2"),
        ({"logit_bias": {320: 1}}, ValueError, "logit_bias names token 320, the target's ids are 0..319"),
        ({"logit_bias": {3: math.inf}}, ValueError, "logit_bias of token 3 is inf"),
        ({"logit_bias": [3]}, TypeError, "logit_bias is list: give a dict"),
        ({"logprobs": -1}, ValueError, "logprobs is -1: it must lie between 0 and"),
        (
            {"logprobs": 321},
            ValueError,
            "321 log-probabilities a token were asked for; 0 to 320 can be given",
        ),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": 2**64}, ValueError, f"seed is {2**64}"),
        ({"seed": 1.5}, TypeError, "seed is 1.5"),
        ({"min_draft_probability": 1.1}, ValueError, "min_draft_probability is 1.1"),
        ({"draft_temperature": "cold"}, ValueError, "draft_temperature is 'cold': give a number or \"auto\""),
        ({"draft_temperature": -1}, ValueError, "draft_temperature is -1"),
        (
            {"stop": ""},
            ValueError,
            "stop has an empty string, which would end every text at once: leave it out",
        ),
        ({"stop": ["a", ""]}, ValueError, "stop has an empty string"),
        ({"stop": ["a", 3]}, TypeError, "stop has 3: give strings"),
    ],
)
def test_bad_arguments(
    chain: pydflash2.Engine, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    for call in (chain.generate, chain.stream):  # a stream checks before its first piece
        with pytest.raises(kind, match=re.escape(message)):
            call(PROMPT, **arguments)


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [
        ("", ValueError, "the prompt is empty, and the target adds no token before a text: give some text"),
        ([], ValueError, "the prompt has no tokens: give one at least"),
        ([1, 2, 320], ValueError, "tokens[2] is 320: the target's ids are 0 to 319"),
        ([1, -1], ValueError, "tokens[1] is -1"),
        ([1, 2.0], TypeError, "tokens[1] is 2.0: give a whole number"),
        ([True], TypeError, "tokens[0] is True"),
        (["the"], TypeError, "tokens[0] is 'the'"),
        (b"bytes", TypeError, "tokens is bytes: give a list of token ids"),
        ("a\ud83d", ValueError, "the text has half a surrogate pair at character 1"),
    ],
)
def test_bad_prompts(chain: pydflash2.Engine, prompt: Any, kind: type[Exception], message: str) -> None:
    for call in (chain.generate, chain.stream, chain.prefill):
        with pytest.raises(kind, match=re.escape(message)):
            call(prompt)


def test_numbers_of_numpy_are_numbers(chain: pydflash2.Engine) -> None:
    tokens = np.array(chain.tokenize(PROMPT), dtype=np.int64)
    limits: Any = {"max_tokens": np.int32(5), "max_draft_tokens": np.uint8(3)}
    result = chain.generate(tokens, **limits)
    assert result.tokens == chain.generate(PROMPT, max_tokens=5).tokens


def test_text_is_text(chain: pydflash2.Engine) -> None:
    with pytest.raises(TypeError, match="text is list: give a str"):
        chain.tokenize([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tokens\[0\] is 320"):
        chain.detokenize([320])
    with pytest.raises(TypeError, match="tokens is str: give a list of token ids"):
        chain.detokenize("the")  # type: ignore[arg-type]


def test_steps_out_of_order(tiny: TinyFiles) -> None:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
        with pytest.raises(ValueError, match="no draft is possible: the prompt has not been decoded yet"):
            engine.draft()
        with pytest.raises(ValueError, match="nothing to verify; prefill a prompt first"):
            engine.verify([])
        assert engine.tokens == []
        engine.generate(PROMPT, max_tokens=3, speculate=False)
        with pytest.raises(ValueError, match="no draft is possible: this text was begun without drafting"):
            engine.draft()
        with pytest.raises(ValueError, match="temperature is -1"):
            engine.draft(temperature=-1)
        with pytest.raises(ValueError, match=r"nothing can be drafted \(off: max_draft_tokens=0\)"):
            engine.draft(0)


def test_a_draft_needs_a_head(tiny: TinyFiles) -> None:
    with pydflash2.load(tiny.target("qwen3-chain"), None, n_threads=1) as engine:
        engine.prefill(PROMPT)
        with pytest.raises(
            ValueError, match=r"nothing can be drafted \(off: loaded with head=None\); verify\(\[\]\)"
        ):
            engine.draft()
        assert len(engine.verify([]).tokens) == 1


def test_a_bad_draft_changes_nothing(chain: pydflash2.Engine) -> None:
    chain.prefill(PROMPT)
    before = chain.tokens
    for draft, message in [([1, 320], r"tokens\[1\] is 320"), ([-1], r"tokens\[0\] is -1")]:
        with pytest.raises(ValueError, match=message):
            chain.verify(draft)
    with pytest.raises(TypeError, match="tokens is str"):
        chain.verify("abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a draft of 200 tokens; 0 to 127 can be verified at once"):
        chain.verify([1] * 200)
    assert chain.tokens == before
    verdict = chain.verify(chain.draft())
    assert verdict.tokens == chain.generate(PROMPT, max_tokens=20).tokens[1 : 1 + len(verdict.tokens)]


# ---- the context -----------------------------------------------------------------------------------------


def test_what_cannot_fit_is_refused_before_anything_is_lost(chain: pydflash2.Engine) -> None:
    chain.prefill(PROMPT)
    before = chain.tokens
    prompt = [65] * 100
    message = (
        "the prompt's 100 tokens and max_tokens=29 need 129 places, but the context has 128: "
        "load with context_size=129 or ask for 28 tokens at most"
    )
    for call in (chain.generate, chain.stream):
        with pytest.raises(pydflash2.ContextOverflowError, match=f"^{re.escape(message)}$"):
            call(prompt, max_tokens=29)
    assert chain.tokens == before
    assert chain.verify(chain.draft()).tokens  # the text goes on
    assert len(chain.generate(prompt, max_tokens=28).tokens) == 28


def test_a_prompt_longer_than_the_context(chain: pydflash2.Engine) -> None:
    message = (
        "the prompt's 128 tokens and the token to be generated need 129 places, but the context has 128: "
        "load with context_size=129 or shorten the prompt"
    )
    for call in (chain.generate, chain.stream, chain.prefill):
        with pytest.raises(pydflash2.ContextOverflowError, match=f"^{re.escape(message)}$"):
            call([65] * 128)
    assert len(chain.generate([65] * 127).tokens) == 1


def test_by_hand_the_context_ends_with_an_error_too(chain: pydflash2.Engine) -> None:
    chain.prefill([65] * 120)
    while len(chain.tokens) < 128:
        draft = chain.draft()
        assert len(draft) <= 128 - len(chain.tokens)
        chain.verify(draft)
    before = chain.tokens
    message = (
        "12[89] tokens are committed and 1 drafted, the context holds 128; load with a larger context_size"
    )
    with pytest.raises(pydflash2.ContextOverflowError, match=message):
        chain.verify([1])
    assert chain.tokens == before


# ---- loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"context_size": -1}, ValueError, "context_size is -1: it must lie between 0 and"),
        ({"context_size": "8k"}, TypeError, "context_size is '8k': give a whole number"),
        ({"n_threads": 0}, ValueError, "n_threads is 0: it must lie between 1 and 512"),
        ({"n_threads": 513}, ValueError, "n_threads is 513: it must lie between 1 and 512"),
        ({"n_gpu_layers": -2}, ValueError, "n_gpu_layers is -2"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        (
            {"batch_size": 7},
            ValueError,
            "batch_size is 7, but a block of this head has 8 rows: give as many at least",
        ),
        ({"kv_type": None}, TypeError, 'kv_type is None: give a name, such as "f16"'),
        ({"use_mmap": "yes"}, TypeError, "use_mmap is 'yes': give True or False"),
        ({"taps": ["auto"]}, ValueError, "taps is ['auto']: use \"auto\", "),
        ({"kv_type": "f17"}, ValueError, "kv_type is 'f17'; possible are f16, f32, bf16, q8_0"),
        ({"drafter_kv_type": "q8_0"}, ValueError, "drafter_kv_type is 'q8_0'; possible are f16, f32, bf16"),
        ({"taps": "both"}, ValueError, 'taps is \'both\': use "auto", "wired" or "callback"'),
    ],
)
def test_bad_load_options(
    tiny: TinyFiles, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        pydflash2.load(*tiny.pair("chain"), **options)


def test_a_head_without_a_target(tiny: TinyFiles) -> None:
    with pytest.raises(ValueError, match=r"head is '.* without a target: name the one it was made for"):
        pydflash2.load(head=tiny.head("chain"))


Damage = Callable[[Path], None]


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def _no_gguf(path: Path) -> None:
    path.write_bytes(b"this is no model" * 100)


@pytest.mark.parametrize("damage", [_cut, _no_gguf, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("role", ["target", "head"])
def test_damaged_files(tiny: TinyFiles, tmp_path: Path, role: str, damage: Damage) -> None:
    target, head = (Path(shutil.copy(file, tmp_path / file.name)) for file in tiny.pair("chain"))
    broken = target if role == "target" else head
    damage(broken)
    with pytest.raises(pydflash2.ModelFileError, match=re.escape(broken.name)):
        pydflash2.load(target, head)


def test_swapped_files(tiny: TinyFiles) -> None:
    target, head = tiny.pair("chain")
    with pytest.raises(pydflash2.ModelFileError, match=re.escape(head.name)):
        pydflash2.load(head, None)
    with pytest.raises(pydflash2.HeadFormatError, match=re.escape(target.name)):
        pydflash2.load(target, target)


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({"taps": (0, 9)}, "qwen3", "the head taps layer 9, the target has layers 0..4"),
        ({}, "qwen3-wide", "2 taps of hidden size 64, the target's hidden size is 256"),
    ],
)
def test_a_head_for_another_target(
    tiny: TinyFiles, tmp_path: Path, change: dict[str, Any], target: str, message: str
) -> None:
    head = head_file.write(replace(HEADS["plain"], **change), tmp_path / "head.gguf")
    with pytest.raises(pydflash2.HeadMismatchError, match=re.escape(message)):
        pydflash2.load(tiny.target(target), head)
