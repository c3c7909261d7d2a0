"""Many texts decoded side by side: each becomes what it becomes alone."""

from __future__ import annotations

import functools
import gc
import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydflash2
from pydflash2.batch import Batch, Chosen
from pydflash2.native import TAPS, NativeEngine, SamplingStruct, ffi, lib
from pydflash2.settings import SAMPLING_DEFAULTS, Sampling
from tiny.files import TinyFiles
from tiny.native import Native
from tiny.numbers import token_ids
from tiny.targets import TARGETS

CONTEXT = 128


def native(target: Path, head: Path | None = None, **changes: Any) -> NativeEngine:
    settings: dict[str, Any] = {
        "context_size": CONTEXT,
        "batch_size": 16,
        "n_threads": 2,
        "n_gpu_layers": 0,
        "kv_type": "f32",
        "drafter_kv_type": "f32",
        "taps": TAPS["auto"],
        "use_mmap": True,
    }
    return NativeEngine(target, head, **settings | changes)


@pytest.fixture
def engine(tiny: TinyFiles) -> Iterator[NativeEngine]:
    engine = native(tiny.target("qwen3"))
    yield engine
    engine.close()


def sampling(engine: NativeEngine, seed: int = 0, **settings: Any) -> SamplingStruct:
    chosen: Any = SAMPLING_DEFAULTS | settings
    return engine.sampling(Sampling.of(chosen), seed, None)


def prompts(n: int, low: int = 1, high: int = 40) -> list[list[int]]:
    """Of lengths from `low` to `high`, all over."""
    return [token_ids(i, low + (17 * i) % (high - low + 1), 0, 256) for i in range(n)]


def alone(engine: NativeEngine, prompt: list[int], n: int, by: SamplingStruct) -> list[int]:
    """What the engine's own sequence adds to a prompt: n tokens, or up to an end token."""
    engine.begin(prompt, False, by)
    while engine.prefill() > 0:
        pass
    text = engine.tokens()[len(prompt) :]
    while len(text) < n and not engine.is_end(text[-1]):
        text += engine.verify_tokens([])[0]
    return text


def run(batch: Batch, slots: int) -> list[list[int]]:
    """Steps until all texts are finished; what was chosen in each slot."""
    texts: list[list[int]] = [[] for _ in range(slots)]
    live = set(range(slots))
    while live:
        for one in batch.step():
            texts[one.slot].append(one.token)
            if one.finished:
                live.remove(one.slot)
    return texts


# ---- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_greedy_texts_are_those_of_the_sequence(tiny: TinyFiles, name: str) -> None:
    engine = native(tiny.target(name))
    greedy = sampling(engine)
    texts = [[token % engine.target.n_vocab for token in prompt] for prompt in prompts(5)]
    size = 60
    with Batch(engine, len(texts), size) as batch:
        for slot, prompt in enumerate(texts):
            batch.begin(slot, prompt, greedy)
        found = run(batch, len(texts))
    assert found == [alone(engine, prompt, size - len(prompt), greedy) for prompt in texts]
    engine.close()


def test_slots_are_refilled_while_others_go_on(engine: NativeEngine) -> None:
    size, texts = 50, prompts(12)
    queue, now = list(range(len(texts))), dict[int, int]()
    found: dict[int, list[int]] = {i: [] for i in queue}
    with Batch(engine, 3, size) as batch:
        while queue or now:
            for slot in range(3):
                if slot not in now and queue:
                    now[slot] = queue.pop(0)
                    batch.begin(slot, texts[now[slot]], sampling(engine))
            for one in batch.step():
                found[now[one.slot]].append(one.token)
                if one.finished:
                    del now[one.slot]
    for i, prompt in enumerate(texts):
        assert found[i] == alone(engine, prompt, size - len(prompt), sampling(engine))


def test_a_text_can_be_replaced_or_ended_midway(engine: NativeEngine) -> None:
    greedy, texts = sampling(engine), prompts(3, 20, 40)
    with Batch(engine, 2, 60) as batch:
        batch.begin(0, texts[0], greedy)
        batch.begin(1, texts[1], greedy)
        for _ in range(6):
            batch.step()
        batch.end(1)
        batch.end(1)  # it is empty already
        assert [one.slot for one in batch.step()] == [0]
        batch.begin(0, texts[2], greedy)  # the prompt before may not have been read to its end
        assert run(batch, 1)[0] == alone(engine, texts[2], 60 - len(texts[2]), greedy)


def test_a_long_prompt_is_read_in_pieces(tiny: TinyFiles) -> None:
    engine = native(tiny.target("qwen3"), context_size=512)
    texts = [token_ids(1, 300, 0, 256), token_ids(2, 5, 0, 256)]
    with Batch(engine, 2, 310) as batch:
        for slot, prompt in enumerate(texts):
            batch.begin(slot, prompt, sampling(engine))
        assert batch.step() == []  # 64 tokens at most in a step
        texts_found = run(batch, 2)
    assert texts_found[0] == alone(engine, texts[0], 10, sampling(engine))
    assert len(texts_found[1]) == 305
    engine.close()


def test_the_engine_keeps_its_own_text(engine: NativeEngine) -> None:
    prompt, other = prompts(2, 20, 40)
    expected = alone(engine, prompt, 30, sampling(engine))
    text = alone(engine, prompt, 10, sampling(engine))
    with Batch(engine, 2, 90) as batch:
        batch.begin(0, other, sampling(engine))
        for _ in range(5):
            batch.step()
        while len(text) < 30:
            text += engine.verify_tokens([])[0]
            batch.step()
    assert text == expected


# ---- chance ------------------------------------------------------------------------------------------------


def test_draws_depend_on_the_seed_alone(engine: NativeEngine) -> None:
    prompt, others = prompts(1, 12, 12)[0], prompts(3)

    def drawn(slot: int, seed: int, n_slots: int) -> list[int]:
        with Batch(engine, n_slots, 60) as batch:
            for other in range(n_slots):
                if other != slot:
                    batch.begin(other, others[other % 3], sampling(engine, 99 + other, temperature=1.0))
            batch.step()  # the others are ahead
            batch.begin(slot, prompt, sampling(engine, seed, temperature=0.8, top_p=0.95))
            text: list[int] = []
            while True:
                for one in batch.step():
                    if one.slot == slot:
                        text.append(one.token)
                        if one.finished:
                            return text

    first = drawn(0, 7, 2)
    assert drawn(3, 7, 4) == drawn(1, 7, 3) == first
    assert drawn(0, 8, 2) != first


def test_the_first_draw_is_the_sequences(engine: NativeEngine) -> None:
    """The same logits, the same sampler, the same number out of the same source of chance."""
    prompt = prompts(1, 20, 20)[0]
    with Batch(engine, 16, 32) as batch:
        by = [sampling(engine, seed, temperature=3.0, top_k=50, min_p=0.001) for seed in range(16)]
        for slot in range(16):
            batch.begin(slot, prompt, by[slot])
        first: dict[int, int] = {}
        while len(first) < 16:
            for one in batch.step():
                first.setdefault(one.slot, one.token)
    assert len(set(first.values())) > 3
    for slot, token in first.items():
        assert [token] == alone(engine, prompt, 1, by[slot])


def test_penalties_and_bias_and_grammar(engine: NativeEngine) -> None:
    prompt = prompts(1, 20, 20)[0]
    settings: list[dict[str, Any]] = [
        {"repeat_penalty": 1.5, "frequency_penalty": 0.3},
        {"logit_bias": {65: 40.0, 66: 40.1}, "presence_penalty": 0.2},
        {"grammar": 'root ::= "abcabcabcabcabcabcabcabcabcabcabc"'},
    ]
    with Batch(engine, 3, 40) as batch:
        for slot, one in enumerate(settings):
            batch.begin(slot, prompt, sampling(engine, **one))
        found = run(batch, 3)
    assert found == [alone(engine, prompt, 20, sampling(engine, **one)) for one in settings]


def test_a_text_that_cannot_go_on_is_named(engine: NativeEngine) -> None:
    prompt, other = prompts(2, 20, 30)
    vocabulary = dict.fromkeys(range(engine.target.n_vocab), -math.inf)
    with Batch(engine, 2, 40) as batch:
        batch.begin(0, other, sampling(engine))
        begun: list[Chosen] = []
        while len(begun) < 3:
            begun += batch.step()
        batch.begin(1, prompt, sampling(engine, logit_bias=vocabulary))
        with pytest.raises(ValueError, match=r"^the text in slot 1 cannot go on: logit_bias left no token"):
            while True:
                begun += batch.step()
        batch.end(1)
        tokens = [one.token for one in begun] + run(batch, 1)[0]
    assert tokens == alone(engine, other, 40 - len(other), sampling(engine))  # the failure changed nothing


# ---- what is reported --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_top", [1, 5, 320])
def test_top_logprobs_are_a_log_softmax(tiny: TinyFiles, n_top: int) -> None:
    texts = prompts(3, 5, 12)
    engine = native(tiny.target("qwen3"))
    with Batch(engine, 3, 20, n_top) as batch:
        for slot, prompt in enumerate(texts):
            batch.begin(slot, prompt, sampling(engine, slot, temperature=0.9, logit_bias={3: 5.0}))
        chosen: list[Chosen] = []
        while len(chosen) < 9:
            chosen += batch.step()
    engine.close()
    with Native(tiny.target("qwen3")) as plain:
        for one in chosen:
            text = texts[one.slot]
            plain.prefill(text, drafting=False)
            logits = plain.logits()[-1].astype(np.float64)
            expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            best = np.argsort(-expected, kind="stable")[:n_top]
            assert one.top_tokens.dtype == np.int32 and one.top_logprobs.dtype == np.float32
            assert one.top_tokens.shape == one.top_logprobs.shape == (n_top,)
            np.testing.assert_allclose(one.top_logprobs, expected[best], atol=2e-5)
            np.testing.assert_allclose(one.top_logprobs, expected[one.top_tokens], atol=2e-5)
            text.append(one.token)


def test_no_top_tokens_unless_asked_for(engine: NativeEngine) -> None:
    with Batch(engine, 1, 20) as batch:
        batch.begin(0, [1, 2], sampling(engine))
        (one,) = batch.step()
    assert one.top_tokens.shape == one.top_logprobs.shape == (0,)


def test_a_text_ends_with_an_end_token_or_full(tiny: TinyFiles) -> None:
    engine = native(tiny.target("qwen3-ending"))
    end = TARGETS["qwen3-ending"].vocabulary.eos
    with Batch(engine, 2, 12) as batch:
        batch.begin(0, [65] * 4, sampling(engine, logit_bias={end: 100.0}))
        batch.begin(1, [65] * 4, sampling(engine, logit_bias={end: -100.0}))
        first = batch.step()
        assert [(one.slot, one.token == end, one.finished) for one in first] == [
            (0, True, True),
            (1, False, False),
        ]
        assert engine.is_end(first[0].token)
        rest = [one for _ in range(7) for one in batch.step()]
        assert [(one.slot, one.finished) for one in rest] == [(1, False)] * 6 + [(1, True)]
        assert not any(engine.is_end(one.token) for one in rest)
        with pytest.raises(ValueError, match=r"^no text is live: begin one first$"):
            batch.step()
    engine.close()


# ---- hostile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 50), "0 texts cannot be decoded side by side: give 1 to 256"),
        ((-1, 50), "-1 texts cannot be"),
        ((257, 50), "257 texts cannot be"),
        ((2**31 - 1, 50), "2147483647 texts cannot be"),
        ((1, 1), "texts of 1 tokens cannot be decoded"),
        ((1, -5), "texts of -5 tokens cannot be decoded"),
        ((1, 2**31 - 1), "texts of 2147483647 tokens cannot be decoded"),
        ((1, 50, -1), "the -1 likeliest tokens were asked for; 0 to 320 can be given"),
        ((1, 50, 321), "the 321 likeliest tokens"),
    ],
)
def test_a_batch_that_cannot_be(engine: NativeEngine, numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Batch(engine, *numbers)


def test_a_batch_too_large_for_the_machine(engine: NativeEngine) -> None:
    with pytest.raises(pydflash2.OutOfMemoryError, match=r"^256 texts of 8000000 tokens take \d+\.\d GB, "):
        Batch(engine, 256, 8_000_000)


def test_refused_texts_change_nothing(engine: NativeEngine) -> None:
    greedy, prompt = sampling(engine), prompts(1, 20, 20)[0]
    with Batch(engine, 2, 40) as batch:
        batch.begin(0, prompt, greedy)
        begun: list[Chosen] = []
        while len(begun) < 3:
            begun += batch.step()
        for slot in (-1, 2, 2**31 - 1):
            with pytest.raises(ValueError, match=rf"^there is no slot {slot}; this batch has 0 to 1"):
                batch.begin(slot, prompt, greedy)
            with pytest.raises(ValueError, match=rf"^there is no slot {slot};"):
                batch.end(slot)
        for refused, message in (
            ([], "the prompt has no tokens"),
            ([5, -1], "token 1 of the prompt is -1, the target's ids are 0..319"),
            ([320], "token 0 of the prompt is 320"),
        ):
            with pytest.raises(ValueError, match=f"^{message}"):
                batch.begin(0, refused, greedy)
        with pytest.raises(
            pydflash2.ContextOverflowError, match=r"^the prompt has 40 tokens, a text of this"
        ):
            batch.begin(0, [1] * 40, greedy)
        with pytest.raises(OverflowError):
            batch.begin(0, [2**40], greedy)
        wrong = sampling(engine)
        wrong.struct.temperature = math.nan
        with pytest.raises(ValueError, match=r"^temperature is nan"):
            batch.begin(0, prompt, wrong)
        tokens = [one.token for one in begun] + run(batch, 1)[0]
    assert tokens == alone(engine, prompt, 20, greedy)


def test_closing(tiny: TinyFiles) -> None:
    engine = native(tiny.target("qwen3"))
    batch, other = Batch(engine, 2, 40), Batch(engine, 1, 40)
    batch.begin(0, [1, 2, 3], sampling(engine))
    batch.close()
    batch.close()
    with pytest.raises(pydflash2.EngineClosedError, match=r"^the batch is closed: make a new one$"):
        batch.step()
    other.begin(0, [1, 2, 3], sampling(engine))
    other.step()
    engine.close()
    end, another = functools.partial(other.end, 0), functools.partial(Batch, engine, 1, 40)
    for call in (other.step, end, another):
        with pytest.raises(pydflash2.EngineClosedError, match=r"^the engine is closed"):
            call()
    other.close()
    del batch, other, end, another
    gc.collect()


def test_a_batch_that_is_dropped_is_freed(engine: NativeEngine) -> None:
    freed = []
    handles = engine._handles
    for _ in range(3):
        batch = Batch(engine, 1, 40)
        freed.append(batch._batch)
        del batch
        gc.collect()
    assert all(holder[0] == ffi.NULL for holder in freed)
    assert handles.batches == []


def test_a_finalizer_amid_a_call_waits(engine: NativeEngine) -> None:
    """The thread that is in the engine may collect garbage there, and a batch with it."""
    batches = [Batch(engine, 1, 40)]
    holder = batches[0]._batch
    engine.alone(batches.clear)
    assert holder[0] != ffi.NULL
    Batch(engine, 1, 40).close()
    assert holder[0] == ffi.NULL


def test_an_engine_closed_amid_a_step(engine: NativeEngine) -> None:
    batch = Batch(engine, 1, 40)
    batch.begin(0, [1, 2, 3], sampling(engine))

    def close_within() -> None:
        batch.step()

    with pytest.raises(pydflash2.EngineBusyError):
        engine.alone(close_within)
    thread = threading.Thread(target=engine.close)
    engine.alone(thread.start)
    thread.join()
    with pytest.raises(pydflash2.EngineClosedError):
        batch.step()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_refused(engine: NativeEngine) -> None:
    batch = Batch(engine, 1, 40)
    batch.begin(0, [1, 2, 3], sampling(engine))
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            batch.step()
        except pydflash2.EngineClosedError as error:
            status = 0 if "fork" in str(error) else 2
        batch.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(batch.step()) == 1
    batch.close()


# ---- features ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taps", ["auto", "callback"])
@pytest.mark.parametrize("name", ["plain", "five-taps", "last-tap", "taps-out-of-order", "tied-target"])
def test_features_are_those_of_a_head(tiny: TinyFiles, name: str, taps: str) -> None:
    target, head = tiny.pair(name)
    text = token_ids(3, 45, 0, 256)
    with Native(target, head, taps=TAPS[taps], batch_size=64) as pair:
        pair.prefill(text)
        expected = pair.features()
        layers = list(pair.head_info.taps)[: pair.head_info.n_taps]
    engine = native(target, taps=TAPS[taps], taps_read=layers)
    prompt = prompts(1, 20, 20)[0]
    before = alone(engine, prompt, 20, sampling(engine))
    features = engine.read_features(text)  # in chunks of 16
    assert features.shape == expected.shape and features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-4)
    assert engine.tokens() == []
    assert alone(engine, prompt, 20, sampling(engine)) == before
    np.testing.assert_array_equal(engine.read_features(text), features)
    engine.close()
    engine = native(target, head, taps=TAPS[taps])
    np.testing.assert_allclose(engine.read_features(text), expected, rtol=1e-4, atol=1e-4)
    engine.close()


def test_texts_that_have_no_features(tiny: TinyFiles) -> None:
    engine = native(tiny.target("gemma3"), taps_read=[1, 4])
    prompt = prompts(1, 20, 20)[0]
    alone(engine, prompt, 5, sampling(engine))
    before = engine.tokens()
    for text, error, message in (
        ([], ValueError, "the prompt has no tokens"),
        ([5, 320], ValueError, "token 1 of the prompt is 320"),
        (
            [1] * (CONTEXT + 1),
            pydflash2.ContextOverflowError,
            "the text has 129 tokens, the context holds 128",
        ),
    ):
        with pytest.raises(error, match=f"^{message}"):
            engine.read_features(text)
    assert engine.tokens() == before
    assert engine.read_features([1] * CONTEXT).shape == (CONTEXT, 2 * engine.target.n_embd)
    engine.close()


def test_an_engine_that_reads_no_features(engine: NativeEngine) -> None:
    with pytest.raises(
        ValueError, match=r"^this engine reads no features: load it with a head, or with taps_r"
    ):
        engine.read_features([1, 2, 3])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([5], "taps_read names layer 5, the target has layers 0 to 4"),
        ([1, -1], "taps_read names layer -1"),
        ([1, 2, 1], "taps_read names layer 1 twice: give each layer once"),
    ],
)
def test_layers_that_cannot_be_read(tiny: TinyFiles, layers: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        native(tiny.target("qwen3"), taps_read=layers)


def test_a_head_reads_its_own_layers(tiny: TinyFiles) -> None:
    with pytest.raises(
        ValueError, match=r"^a head reads its own layers: give head_path or taps_read, not both$"
    ):
        native(*tiny.pair("plain"), taps_read=[1])


def test_the_batch_of_an_engine_that_reads_features(tiny: TinyFiles) -> None:
    engine = native(tiny.target("gemma3"), taps_read=[1, 4])
    texts = prompts(3)
    with Batch(engine, 3, 60) as batch:
        for slot, prompt in enumerate(texts):
            batch.begin(slot, prompt, sampling(engine))
        found = run(batch, 3)
    assert found == [alone(engine, prompt, 60 - len(prompt), sampling(engine)) for prompt in texts]
    engine.close()


def test_lib_frees_nothing() -> None:
    lib.pd2_batch_free(ffi.NULL)
