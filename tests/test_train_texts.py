"""Texts of a target: what is kept, that they depend on the seed alone, and that nothing written is lost."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pydflash2.settings import Sampling
from pydflash2.train import files, writing
from pydflash2.train.prompts import Prompt, Prompts
from pydflash2.train.texts import Texts, TextStore
from pydflash2.train.writing import Plan, Progress, Writer

END = 999
N_TOP = 3


class Chosen(NamedTuple):
    slot: int
    token: int
    finished: bool
    top_tokens: Any
    top_logprobs: Any


class Sampled(NamedTuple):
    temperature: float
    seed: int


class FakeTarget:
    """Next tokens are a digest of the text; the prompt's first token says how it goes on.

    0: it never ends; 1: it ends after 40 tokens; 2: it repeats itself, period 5, from 30 on; 3: from 5 on.
    """

    def __init__(self, delay: float = 0.0, fail_at: int = -1) -> None:
        self.delay = delay
        self.fail_at = fail_at
        self.live: dict[int, tuple[list[int], int, Sampled]] = {}
        self.begun: list[int] = []
        self.n_steps = 0

    def sampling(self, chosen: Sampling, seed: int, logprobs: int | None) -> Sampled:
        return Sampled(chosen.temperature, 0 if chosen.temperature == 0 else seed)

    def begin(self, slot: int, tokens: Sequence[int], sampling: Sampled) -> None:
        assert slot not in self.live
        self.begun.append(tokens[1])
        self.live[slot] = (list(tokens), len(tokens), sampling)

    def end(self, slot: int) -> None:
        del self.live[slot]

    def step(self) -> list[Chosen]:
        if self.delay:
            time.sleep(self.delay)
        self.n_steps += 1
        if self.n_steps == self.fail_at:
            raise KeyboardInterrupt
        return [self._next(slot, *text) for slot, text in reversed(self.live.items())]

    def _next(self, slot: int, tokens: list[int], n_prompt: int, sampling: Sampled) -> Chosen:
        n, kind = len(tokens) - n_prompt, tokens[0]
        digest = hashlib.sha256(f"{tokens[:2]} {n} {tokens[-3:]} {sampling}".encode()).digest()
        token = int.from_bytes(digest[:2], "little") % 900
        if kind == 1 and n == 39:
            token = END
        if (kind == 2 and n >= 30) or (kind == 3 and n >= 5):
            token = tokens[-5]
        tokens.append(token)
        top = np.arange(token, token + N_TOP, dtype=np.int32)
        return Chosen(slot, token, token == END, top, -np.arange(N_TOP, dtype=np.float32))


def prompts(n: int, kinds: Sequence[int] = (0, 1, 2, 3)) -> Prompts:
    return Prompts(
        [
            Prompt(np.array([kinds[i % len(kinds)], i, 7, 7], np.int32), f"list:{i}", held_out=i % 10 == 5)
            for i in range(n)
        ]
    )


PLAN = Plan(seed=3, max_tokens=100, text_size=200, n_top=N_TOP)


@pytest.fixture(scope="module")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("target") / "target.gguf"
    file.write_bytes(b"weights")
    return file


class Desk:
    """Writers of one target in folders of a test."""

    def __init__(self, target_file: Path, folder: Path) -> None:
        self.target_file = target_file
        self.folder = folder

    def writer(
        self,
        n: int = 60,
        name: str = "texts",
        n_slots: int = 8,
        plan: Plan = PLAN,
        target: FakeTarget | None = None,
        kinds: Sequence[int] = (0, 1, 2, 3),
    ) -> Writer:
        fake = target or FakeTarget()
        given = prompts(n, kinds)
        return Writer(fake, fake, n_slots, self.target_file, given, plan, self.folder / name)


@pytest.fixture
def desk(target_file: Path, tmp_path: Path) -> Desk:
    return Desk(target_file, tmp_path)


def same(some: Texts, others: Texts) -> bool:
    def fields(texts: Texts) -> list[Any]:
        return [
            [x.tolist() for x in (t.tokens, t.top_tokens, t.top_logprobs)]
            + [t.n_prompt, t.temperature, t.held_out, t.source]
            for t in [*texts.training, *texts.held_out]
        ]

    return fields(some) == fields(others)


# ---- what is kept --------------------------------------------------------------------------------------


def test_texts_end_where_the_target_ends_them_or_loops(desk: Desk) -> None:
    texts = desk.writer(n=40).write()
    written: dict[int, set[int]] = {}
    for text in [*texts.training, *texts.held_out]:
        assert text.n_prompt == 4
        assert text.top_tokens.shape == text.top_logprobs.shape == (text.n_written, N_TOP)
        assert np.array_equal(text.top_tokens[:, 0], text.tokens[4:])
        assert text.top_logprobs.dtype == np.float16 and text.top_logprobs[0].tolist() == [0, -1, -2]
        written.setdefault(int(text.tokens[0]), set()).add(text.n_written)
        assert (text.tokens[-1] == END) == (text.tokens[0] == 1)
    assert written == {0: {100}, 1: {40}, 2: {30}}  # kind 3 is too short
    assert texts.n_dropped == 10
    assert texts.n_greedy_loops + texts.n_sampled_loops == 20
    assert "dropped as too short: 10" in texts.summary()


def test_loops_are_not_written_to_their_end(desk: Desk) -> None:
    target = FakeTarget()
    desk.writer(n=1, kinds=(2,), plan=Plan(max_tokens=1000, n_top=N_TOP), target=target).write()
    assert target.n_steps == 64  # 30 and 32 that repeat; it is looked at every 32


def test_half_is_greedy_and_what_is_held_out_is(desk: Desk) -> None:
    texts = desk.writer(n=600, kinds=(1,), n_slots=64).write()
    assert len(texts.held_out) == 60 and not any(text.temperature for text in texts.held_out)
    sampled = [text.temperature for text in texts.training if text.temperature]
    assert 0.42 < len(sampled) / len(texts.training) < 0.58
    assert 0.7 <= min(sampled) < 0.73 and 0.97 < max(sampled) <= 1
    assert (texts.n_greedy, texts.n_sampled) == (600 - len(sampled), len(sampled))
    assert {text.source for text in texts.training}.isdisjoint(text.source for text in texts.held_out)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_greedy_share_can_be_all_or_nothing(desk: Desk, share: float) -> None:
    plan = Plan(greedy_share=share, max_tokens=50, n_top=N_TOP)
    texts = desk.writer(n=40, kinds=(1,), plan=plan).write()
    assert {text.temperature == 0 for text in texts.training} == {share == 1}


def test_prompts_without_room_are_dropped(desk: Desk) -> None:
    plan = Plan(max_tokens=18, text_size=19, n_top=N_TOP)
    target = FakeTarget()
    texts = desk.writer(n=10, plan=plan, target=target).write()
    assert not target.begun and texts.n_dropped == 10 and not texts.training


@pytest.mark.parametrize(
    "wrong",
    [
        {"greedy_share": 1.1},
        {"temperatures": (0.0, 1.0)},
        {"temperatures": (1.0, 0.7)},
        {"shortest": 300},
        {"text_size": 256},
    ],
)
def test_plans_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give|must"):
        Plan(**wrong)


# ---- they depend on the seed alone ---------------------------------------------------------------------


def test_slots_and_their_order_change_nothing(desk: Desk) -> None:
    one = desk.writer(name="one", n_slots=1).write()
    many = desk.writer(name="many", n_slots=50).write()
    assert same(one, many)
    other = desk.writer(name="other", plan=Plan(seed=4, max_tokens=100, text_size=200, n_top=N_TOP)).write()
    assert not same(one, other)


def test_enough_tokens_are_the_first_prompts_tokens(desk: Desk) -> None:
    some = desk.writer(name="some", n_slots=3).write(n_tokens=900)
    others = desk.writer(name="others", n_slots=17).write(n_tokens=900)
    assert same(some, others)
    assert 900 <= some.n_tokens < 1000
    target = FakeTarget()
    all_of_it = desk.writer(name="some", target=target).write()  # goes on
    assert same(all_of_it, desk.writer(name="all").write())
    assert 0 < len(target.begun) < 55
    assert same(desk.writer(name="some").write(n_tokens=900), some)


def test_time_ends_the_writing(desk: Desk) -> None:
    seen: list[Progress] = []
    texts = desk.writer(n=500, target=FakeTarget(0.003)).write(minutes=1.2 / 60, progress=seen.append)
    assert 0 < len(texts.training) < 400
    assert seen[-1].n_tokens == texts.n_tokens and seen[-1].n_prompts == 500
    assert len(seen) >= 2 and seen[0].n_tokens < seen[-1].n_tokens
    assert seen[-1].tokens_per_second > 10 and 1 < seen[-1].seconds < 60
    assert seen[-1].n_loops == texts.n_greedy_loops + texts.n_sampled_loops


# ---- nothing is lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_at", [1, 60, 150, 400])
def test_an_interrupted_run_goes_on(desk: Desk, fail_at: int) -> None:
    stopped = FakeTarget(fail_at=fail_at)
    with pytest.raises(KeyboardInterrupt):
        desk.writer(target=stopped).write()
    assert not stopped.live
    again = FakeTarget()
    assert same(desk.writer(target=again).write(), desk.writer(name="whole").write())
    assert len(again.begun) <= 60
    if fail_at > 100:
        assert len(again.begun) < 60


def _write_slowly(target_file: Path, folder: Path) -> None:
    writing._SHARD_TEXTS = 4
    fake = FakeTarget(0.002)
    Writer(fake, fake, 8, target_file, prompts(60), PLAN, folder).write()


def test_a_killed_run_goes_on(desk: Desk, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_write_slowly, args=(desk.target_file, tmp_path / "texts"))
    process.start()
    while len(list((tmp_path / "texts").glob("texts-*.npz"))) < 3:
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (tmp_path / "texts" / ".texts-00009.npz.1.part").write_bytes(b"half")
    target = FakeTarget()
    assert same(desk.writer(target=target).write(), desk.writer(name="whole").write())
    assert len(target.begun) <= 48
    assert not list((tmp_path / "texts").glob(".*.part"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "noise"])
def test_a_damaged_shard_is_written_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    monkeypatch.setattr(writing, "_SHARD_TEXTS", 10)
    whole = desk.writer().write()
    shard = sorted(desk.folder.glob("texts/texts-*.npz"))[2]
    data = bytearray(shard.read_bytes())
    if damage == "flip":
        place = data.index(b"tokens.npy") + 400
        data[place] ^= 1
    shard.write_bytes({"cut": data[:-100], "flip": data, "empty": b"", "noise": b"x" * 500}[damage])
    target = FakeTarget()
    assert same(desk.writer(target=target).write(), whole)
    assert 10 <= len(target.begun) <= 20
    assert "damaged" in caplog.text
    target = FakeTarget()
    assert same(desk.writer(target=target).write(), whole) and not target.begun


def test_a_full_disk_loses_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_SHARD_TEXTS", 10)
    writer = desk.writer()

    def full(descriptor: int) -> None:
        if writer.store._next == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"disk is full: texts-00003\.npz can't be written") as caught:
        writer.write()
    assert caught.value.errno == errno.ENOSPC
    assert not list(desk.folder.glob("texts/.*"))
    monkeypatch.undo()
    target = FakeTarget()
    assert same(desk.writer(target=target).write(), desk.writer(name="whole").write())
    assert len(target.begun) <= 30
    # and the same writer can go on, once there is space
    assert same(writer.write(), desk.writer(name="whole").write())


def test_another_run_in_the_same_folder_is_refused(desk: Desk, tmp_path: Path) -> None:
    desk.writer().write(n_tokens=100)
    other = Plan(seed=4, max_tokens=90, text_size=200, n_top=N_TOP)
    with pytest.raises(ValueError, match=r"max_tokens \(100 there, 90 now\), seed \(3 there, 4 now\)"):
        desk.writer(plan=other)
    with pytest.raises(ValueError, match="differs: the prompts"):
        desk.writer(n=61)
    (file := tmp_path / "other.gguf").write_bytes(b"other weights")
    with pytest.raises(ValueError, match="differs: the target"):
        Desk(file, desk.folder).writer()
    (moved := tmp_path / "moved.gguf").write_bytes(desk.target_file.read_bytes())
    assert Desk(moved, desk.folder).writer().store.n_tokens >= 100
    (desk.folder / "texts" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        desk.writer()


def test_the_manifest_can_be_read(desk: Desk) -> None:
    desk.writer()
    manifest = json.loads((desk.folder / "texts" / "manifest.json").read_text())
    assert manifest["seed"] == 3 and manifest["greedy_share"] == 0.5
    assert len(TextStore(desk.folder / "texts", manifest)) == 0
