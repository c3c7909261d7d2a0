"""Features on disk: the same as computed, within the budget, and never half written."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from pydflash2.errors import NativeError  # noqa: E402
from pydflash2.train import features, files  # noqa: E402
from pydflash2.train.features import Features, estimate  # noqa: E402
from pydflash2.train.texts import Text  # noqa: E402

WIDTH = 24
IDENTITY = {"target": [7, "digest"], "taps": [1, 2]}


class FakeEngine:
    """A feature is the running sum of tokens, times the channel: causal, and known."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.n_read = 0
        self._inside = threading.Lock()

    def read_features(self, tokens: Sequence[int]) -> Any:
        assert self._inside.acquire(blocking=False), "two threads at once"
        try:
            if self.delay:
                time.sleep(self.delay)
            self.n_read += 1
            return (np.cumsum(tokens)[:, None] * np.arange(WIDTH)).astype(np.float32)
        finally:
            self._inside.release()


def text(tokens: Sequence[int], held_out: bool = False) -> Text:
    top = np.empty((len(tokens) - 1, 0))
    ids = np.array(tokens, np.int32)
    return Text(ids, 1, 0.0, top.astype(np.int32), top.astype(np.float16), held_out, "a source")


def some_texts(n: int = 40) -> list[Text]:
    generator = np.random.default_rng(5)
    return [text(generator.integers(0, 50, generator.integers(2, 60))) for _ in range(n)]


TEXTS = some_texts()
N_ROWS = sum(len(one.tokens) - 1 for one in TEXTS)
ALL_BYTES = N_ROWS * WIDTH * 2


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_SHARD_BYTES", ALL_BYTES // 8)


def of(folder: Path, engine: FakeEngine, budget: int = ALL_BYTES, texts: list[Text] = TEXTS) -> Features:
    return Features(engine, texts, WIDTH, folder / "features", budget, IDENTITY)


def check(found: Features, texts: list[Text] = TEXTS) -> None:
    for index, one in enumerate(texts):
        rows = found[index]
        assert rows.dtype == torch.bfloat16
        wanted = torch.from_numpy(FakeEngine().read_features(one.tokens[:-1])).to(torch.bfloat16)
        assert torch.equal(rows, wanted)


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "features").glob("*.safetensors"))


def test_stored_features_are_the_computed_ones(tmp_path: Path) -> None:
    engine = FakeEngine()
    told: list[tuple[int, int]] = []
    with of(tmp_path, engine) as found:
        check(found)  # before anything is stored
        engine.n_read = 0
        found.store(lambda done, total: told.append((done, total)))
        assert engine.n_read == 40
        check(found)
        assert engine.n_read == 40
        assert (found.n_stored, found.n_bytes, len(found)) == (40, ALL_BYTES, 40)
        assert told[0] == (0, N_ROWS) and told[-1] == (N_ROWS, N_ROWS) and told == sorted(told)
        with pytest.raises(IndexError):
            found[40]
    assert 8 <= len(shards(tmp_path)) <= 10
    with of(tmp_path, engine) as again:
        again.store()
        check(again)
    assert engine.n_read == 40


@given(st.lists(st.integers(2, 70), max_size=30), st.integers(0, 40_000))
def test_the_budget_is_kept(lengths: list[int], budget: int) -> None:
    texts = [text([1] * n) for n in lengths]
    found = Features(FakeEngine(), texts, WIDTH, Path("nowhere"), budget, IDENTITY)
    assert found.n_bytes <= budget
    stored = sum(n - 1 for n in lengths[: found.n_stored]) * WIDTH * 2
    assert found.n_bytes == stored
    if found.n_stored < len(lengths):
        assert stored + (lengths[found.n_stored] - 1) * WIDTH * 2 > budget


def test_texts_beyond_the_budget_are_computed_each_time(tmp_path: Path) -> None:
    engine = FakeEngine()
    with of(tmp_path, engine, ALL_BYTES // 2) as found:
        found.store()
        assert 10 < found.n_stored < 30 and engine.n_read == found.n_stored
        assert sum(path.stat().st_size for path in shards(tmp_path)) < ALL_BYTES // 2 + 10 * 300
        check(found)
        assert engine.n_read == 40
    with of(tmp_path, engine, ALL_BYTES) as more:  # whole shards are kept, the last one is another
        engine.n_read = 0
        more.store()
        assert 10 < engine.n_read < 30
        check(more)
    with of(tmp_path, engine, ALL_BYTES // 4) as less:
        less.store()
        assert sum(path.stat().st_size for path in shards(tmp_path)) < ALL_BYTES // 4 + 10 * 300
    with of(tmp_path, engine, 0) as none:
        none.store()
        assert not shards(tmp_path)
        check(none)


def test_more_texts_keep_the_shards_that_are_there(tmp_path: Path) -> None:
    engine = FakeEngine()
    with of(tmp_path, engine, texts=TEXTS[:25]) as found:
        found.store()
    engine.n_read = 0
    with of(tmp_path, engine) as more:
        more.store()
        check(more)
    assert 15 <= engine.n_read <= 20


@pytest.mark.parametrize("change", ["identity", "tokens"])
def test_features_of_something_else_are_not_used(tmp_path: Path, change: str) -> None:
    engine = FakeEngine()
    with of(tmp_path, engine) as found:
        found.store()
    engine.n_read = 0
    texts = TEXTS if change == "identity" else [text([3, 4]), *TEXTS[1:]]
    identity = {"target": [8, "digest"]} if change == "identity" else IDENTITY
    with Features(engine, texts, WIDTH, tmp_path / "features", ALL_BYTES, identity) as other:
        other.store()
        assert engine.n_read == 40 if change == "identity" else engine.n_read > 0
        check(other, texts)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_damaged_shards_are_written_again(tmp_path: Path, damage: str) -> None:
    with of(tmp_path, FakeEngine()) as found:
        found.store()
    shard = shards(tmp_path)[3]
    data = shard.read_bytes()
    shard.write_bytes({"cut": data[:-10], "empty": b"", "noise": os.urandom(500)}[damage])
    engine = FakeEngine()
    with of(tmp_path, engine) as again:
        again.store()
        assert 0 < engine.n_read < 12
        check(again)


def _store(folder: Path) -> None:
    of(folder, FakeEngine(0.01)).store()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_store, args=(tmp_path,))
    process.start()
    while len(shards(tmp_path)) < 3:
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (tmp_path / "features" / ".features-00009.safetensors.1.part").write_bytes(b"half")
    engine = FakeEngine()
    with of(tmp_path, engine) as found:
        found.store()
        assert 0 < engine.n_read < 36
        check(found)
    assert not list((tmp_path / "features").glob(".*"))


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(features.shutil, "disk_usage", lambda _: usage(70_000_000))
    monkeypatch.setattr(features, "_SPARE_BYTES", 70_000_000 - ALL_BYTES + 1)
    engine = FakeEngine()
    with (
        of(tmp_path, engine) as found,
        pytest.raises(OSError, match=r"need 0\.00 GB more, but .*0\.07 GB free"),
    ):
        found.store()
    assert not engine.n_read
    monkeypatch.setattr(features, "_SPARE_BYTES", 70_000_000 - ALL_BYTES)
    of(tmp_path, engine).store()


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        if len(shards(tmp_path)) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with of(tmp_path, FakeEngine()) as found, pytest.raises(OSError, match="disk is full") as caught:
        found.store()
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    monkeypatch.setattr(features, "_SHARD_BYTES", ALL_BYTES // 8)
    engine = FakeEngine()
    with of(tmp_path, engine) as again:
        again.store()
        assert 20 < engine.n_read < 36
        check(again)


def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    engine = FakeEngine(0.001)
    failed: list[BaseException] = []
    with of(tmp_path, engine, ALL_BYTES // 2) as found:
        found.store()

        def ask() -> None:
            try:
                check(found)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_tensors_outlive_their_shards(tmp_path: Path) -> None:
    with of(tmp_path, FakeEngine()) as found:
        found.store()
        rows = found[0]
        copy = rows.clone()
    del found
    for path in shards(tmp_path):
        path.unlink()
    assert torch.equal(rows, copy)


def test_scale_is_the_root_mean_square_of_training_texts(tmp_path: Path) -> None:
    texts = [text([1, 2, 3, 9]), text([50, 60], held_out=True), text([4, 9])]
    scale = of(tmp_path, FakeEngine(), texts=texts).scale()
    base = np.sqrt((1 + 9 + 36 + 16) / 4)
    wanted = base * np.arange(WIDTH)
    wanted[0] = 0.01 * np.median(wanted)
    assert scale.dtype == np.float32
    np.testing.assert_allclose(scale, wanted, rtol=1e-6)
    assert np.all(of(tmp_path, FakeEngine(), texts=[text([0, 0, 0])]).scale() == 1)
    with pytest.raises(ValueError, match="no training texts"):
        of(tmp_path, FakeEngine(), texts=texts[1:2]).scale()


def test_scale_does_not_need_all_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_SCALE_ROWS", 100)
    engine = FakeEngine()
    first = of(tmp_path, engine).scale()
    assert engine.n_read < 20
    with of(tmp_path, engine) as found:
        found.store()
        assert np.array_equal(found.scale(), first)


def test_features_that_are_no_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(engine, "read_features", lambda tokens: np.full((len(tokens), WIDTH), np.nan))
    with pytest.raises(NativeError, match=r"text 3 \(a source\)"):
        of(tmp_path, engine)[3]


def test_gemma_sizes() -> None:
    assert estimate(500_000, 5, 640) == 3_200_000_000
