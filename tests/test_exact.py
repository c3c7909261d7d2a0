"""exact=True: rows checked bit by bit, results kept, and only widths used that change nothing."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydflash2
from pydflash2 import exactness, kept, model_files, native
from pydflash2.cli import main
from pydflash2.exactness import RowCheck
from pydflash2.native import NativeEngine
from tiny.files import TinyFiles
from tiny.native import Native
from tiny.numbers import token_ids

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TYPES = ("f32", "f16", "q8_0", "q4_k_m")
PROMPT = token_ids(2, 40, 0, 250)


def requantized(source: Path, output: Path, file_type: str) -> Path:
    spec = importlib.util.spec_from_file_location("requantize", SCRIPTS / "requantize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path: Path = module.requantize(source, output, file_type)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/pydflash2/rows"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Arguments of each check that runs."""
    calls: list[tuple[int, int, int]] = []
    run = NativeEngine.check_rows

    def counted(self: NativeEngine, max_rows: int, depth: int, probe: int) -> list[float]:
        calls.append((max_rows, depth, probe))
        return run(self, max_rows, depth, probe)

    monkeypatch.setattr(NativeEngine, "check_rows", counted)
    return calls


def load(target: Path, head: Path | None, **options: Any) -> pydflash2.Engine:
    return pydflash2.load(target, head, **{"n_threads": 1, "context_size": 1024, **options})


@pytest.fixture(scope="module")
def wide_q4_k(tiny: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose rows are long enough for K-quants."""
    path = tmp_path_factory.mktemp("wide") / "target.gguf"
    return requantized(tiny.target("qwen3-wide"), path, "q4_k")


# ---- the check says what is true -----------------------------------------------------------------


def largest_difference(path: Path, width: int, batch_invariant: bool) -> float:
    """The same by another way: a text decoded row by row, then its tokens again as one draft."""
    with Native(path, kv_type="f16", batch_invariant=batch_invariant) as engine:
        engine.prefill(PROMPT, drafting=False)
        rows, tokens = [], []
        for _ in range(width + 1):
            tokens += engine.verify([]).tokens
            rows.append(engine.logits()[0])
        engine.begin(token_ids(3, 5, 0, 250), drafting=False)  # or the prompt's last row would be reused
        engine.prefill(PROMPT, drafting=False)
        engine.verify(tokens[:width])
        return float(np.abs(engine.logits() - np.array(rows)).max())


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_check_agrees_with_a_text_decoded_both_ways(
    wide_q4_k: Path, tiny: TinyFiles, batch_invariant: bool
) -> None:
    for path in (wide_q4_k, tiny.target("qwen3-wide"), tiny.target("qwen3-wide", "q8_0")):
        with load(path, tiny.head("chain-wide"), exact=batch_invariant) as engine:
            check = engine.check_rows()
        assert check is not None
        for width, difference in check.differences.items():
            found = largest_difference(path, width, batch_invariant)
            assert (found == 0.0) == (difference == 0.0), (path.name, width)


def test_kernels_that_differ_are_found(wide_q4_k: Path, tiny: TinyFiles) -> None:
    with load(wide_q4_k, tiny.head("chain-wide")) as engine:
        default = engine.check_rows()
    with load(wide_q4_k, tiny.head("chain-wide"), exact=True) as engine:
        exact = engine.check_rows()
    assert default is not None
    assert exact is not None
    if not any(default.differences.values()):
        pytest.skip("this CPU's kernels for Q4_K treat every row alike by default")
    assert sum(exact.differences.values()) < sum(default.differences.values())


@pytest.mark.parametrize("name", ["plain", "gemma3", "qwen3moe", "qwen35", "qwen2"])
def test_every_architecture_can_be_checked(name: str, tiny: TinyFiles) -> None:
    with load(*tiny.pair(name), exact=True) as engine:
        check = engine.check_rows()
        plain = engine.generate(PROMPT, max_tokens=60, speculate=False)
        drafted = engine.generate(PROMPT, max_tokens=60)
    assert check is not None
    assert list(check.differences) == list(range(1, (engine.block_size or 0)))
    assert all(math.isfinite(value) for value in check.differences.values())
    assert drafted.tokens == plain.tokens
    assert plain.stats.logit_difference is None


def test_a_target_that_drafts_nothing_is_not_checked(
    tiny: TinyFiles, checks: list[tuple[int, int, int]]
) -> None:
    with load(*tiny.pair("qwen3next"), exact=True) as engine:
        assert engine.check_rows() is None
        assert "take back" in engine.generate(PROMPT, max_tokens=3).stats.drafting
    with load(tiny.target("qwen3"), None, exact=True) as alone:
        assert alone.check_rows() is None
        alone.prefill(PROMPT)
        assert len(alone.verify([1, 2, 3]).tokens) == 1  # nothing says that three may be judged at once
    assert not checks


# ---- texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_texts_are_plain_ones_at_every_width(file_type: str, tiny: TinyFiles) -> None:
    with load(*tiny.pair("chain", file_type), exact=True) as engine:
        plain = engine.generate(PROMPT, max_tokens=80, speculate=False)
        for width in range(1, 8):
            drafted = engine.generate(PROMPT, max_tokens=80, max_draft_tokens=width)
            assert drafted.tokens == plain.tokens, f"width {width}"
            assert drafted.stats.logit_difference in (0.0, None)


def test_logits_stay_plain_where_windows_have_moved_on(tiny: TinyFiles) -> None:
    """A windowed cache would use cells again, in an order that depends on what was taken back."""
    rows: list[list[Any]] = []
    for draft in ([], [7, 7, 7, 7, 7, 7, 7]):
        with Native(*tiny.pair("gemma3"), kv_type="f16", batch_size=16, batch_invariant=True) as engine:
            engine.prefill(PROMPT)
            rows.append([])
            while len(engine.tokens) < 500:
                accepted = engine.verify(draft).n_accepted
                rows[-1] += list(engine.logits()[: accepted + 1])
    n = min(map(len, rows))
    assert n > 300
    assert np.array_equal(rows[0][:n], rows[1][:n])


def test_prefixes_do_not_change_texts(tiny: TinyFiles) -> None:
    with load(*tiny.pair("chain", "f16"), exact=True) as engine:
        fresh = engine.generate(PROMPT, max_tokens=50).tokens
        engine.generate(PROMPT[:17], max_tokens=9)
        assert engine.generate(PROMPT, max_tokens=50).tokens == fresh


# ---- which widths are used -------------------------------------------------------------------------


def checked(
    monkeypatch: pytest.MonkeyPatch, differences: list[float], prompt_difference: float = 0.0
) -> None:
    """What the check is to have said."""
    check = RowCheck(dict(enumerate(differences, start=1)), prompt_difference)
    monkeypatch.setattr(exactness, "read", lambda key: check)


@pytest.mark.parametrize(
    ("differences", "allowed"),
    [
        ([0.0] * 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([0.0, 0.1, 0.0, 0.2, 0.2, 0.2, 0.2], [0, 1, 1, 3, 3, 3, 3, 3]),
        ([0.1, 0.1, 0.1, 0.2, 0.0, 0.2, math.inf], [0, 0, 0, 0, 0, 5, 5, 5]),
        ([0.1] * 7, [0] * 8),
    ],
)
def test_only_widths_that_passed_are_used(
    differences: list[float], allowed: list[int], tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(monkeypatch, differences)
    with load(*tiny.pair("chain"), exact=True) as engine:
        for asked in range(1, 8):
            for least in (0.0, 0.3):  # drafts that end early
                stats = engine.generate(
                    PROMPT, max_tokens=60, max_draft_tokens=asked, min_draft_probability=least
                ).stats
                used = {width for width, rounds in enumerate(stats.rounds_by_width) if rounds}
                assert used <= set(allowed[: asked + 1]), f"at most {asked}"
                assert stats.max_draft_tokens == allowed[asked]
                assert stats.logit_difference == (0.0 if used - {0} else None)
                assert (allowed[asked] == 0) == stats.drafting.startswith("off: exact=True, and drafting")
            assert engine.generate(PROMPT, max_tokens=60).stats.generated_tokens == 60
        for length in range(1, 8):  # by hand
            engine.prefill(PROMPT)
            right = engine.generate(PROMPT, max_tokens=length + 2, speculate=False).tokens
            engine.prefill(PROMPT)
            assert engine.verify(right[1 : length + 1]).n_accepted == allowed[length]


def test_a_drawn_draft_is_cut_with_what_it_was_drawn_from(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(monkeypatch, [0.1, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1])
    with load(*tiny.pair("chain"), exact=True) as engine:
        engine.prefill(PROMPT, temperature=1.0, seed=1)
        draft = engine.draft(5)
        assert len(draft) == 5
        assert engine.verify(draft).n_accepted <= 2
        stats = engine.generate(PROMPT, temperature=1.0, seed=1, max_tokens=60).stats
        assert [width for width, rounds in enumerate(stats.rounds_by_width) if rounds] in ([2], [0, 2])


def test_without_exact_every_width_is_used_and_the_figure_told(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(monkeypatch, [0.0, 0.1, 0.0, 0.25, 0.2, 0.2, 0.125])
    with load(*tiny.pair("chain")) as engine:
        stats = engine.generate(PROMPT, max_tokens=60, max_draft_tokens=7).stats
        assert stats.max_draft_tokens == 7
        assert stats.drafting == "on"
        assert stats.logit_difference in (0.125, 0.2, 0.25)  # the last drafts may be narrower
        assert engine.generate(PROMPT, max_tokens=60, max_draft_tokens=1).stats.logit_difference == 0.0
        assert "logit_difference" in stats.as_dict()


def test_a_prompt_is_decoded_whole_where_pieces_change_it(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    reused = {}
    for difference in (0.0, 0.1):
        checked(monkeypatch, [0.0] * 7, prompt_difference=difference)
        with load(*tiny.pair("chain"), exact=True) as engine:
            engine.generate(PROMPT, max_tokens=5)
            reused[difference] = engine.generate(PROMPT, max_tokens=5).stats.reused_tokens
    assert reused == {0.0: len(PROMPT) - 1, 0.1: 0}


# ---- kept results ------------------------------------------------------------------------------------


def test_a_check_runs_once(tiny: TinyFiles, checks: list[tuple[int, int, int]], cache: Path) -> None:
    target, head = tiny.pair("chain")
    for _ in range(2):
        with load(target, head) as engine:
            engine.generate(PROMPT, max_tokens=5)
            engine.generate(PROMPT, max_tokens=5)
    assert checks == [(8, depth, probe) for depth, probe in exactness.SHALLOW]
    for _ in range(2):
        load(target, head, exact=True).close()
    assert checks[2:] == [(8, depth, probe) for depth, probe in exactness.DEEP]
    assert len(list(cache.iterdir())) == 2


def test_plain_decoding_is_never_checked(tiny: TinyFiles, checks: list[tuple[int, int, int]]) -> None:
    with load(*tiny.pair("chain")) as engine:
        engine.generate(PROMPT, max_tokens=5, speculate=False)
    assert not checks


@pytest.mark.parametrize(
    "option",
    [{"n_threads": 2}, {"kv_type": "f32"}, {"context_size": 512}, {"batch_size": 64}, {"taps": "callback"}],
)
def test_another_way_to_compute_is_another_check(
    option: dict[str, Any], tiny: TinyFiles, checks: list[tuple[int, int, int]]
) -> None:
    for options in ({}, option, option):
        with load(*tiny.pair("chain"), **options) as engine:
            engine.check_rows()
    assert len(checks) == 2 * len(exactness.SHALLOW)


def test_another_file_under_the_same_name_is_another_check(
    tiny: TinyFiles, tmp_path: Path, checks: list[tuple[int, int, int]]
) -> None:
    path = tmp_path / "target.gguf"
    data = bytearray(tiny.target("qwen3-chain").read_bytes())
    path.write_bytes(data)
    before = kept.file_identity(path)
    times = path.stat()
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = kept.file_identity(path)
    assert before[:2] == after[:2]
    assert before[2] != after[2]  # same size and time, another byte
    os.utime(path, ns=(1, 1))
    assert kept.file_identity(path) != after


def damages(file: Path) -> Iterator[bytes]:
    whole = file.read_bytes()
    record = json.loads(whole)
    yield b""
    yield whole[: len(whole) // 2]
    yield b"\xff\xfe\x00"
    yield b"[]"
    yield b'"key"'
    for name, value in (
        ("differences", record["differences"][1:]),
        ("differences", [math.nan] * 7),
        ("differences", [-1.0] * 7),
        ("differences", ["a"] * 7),
        ("differences", None),
        ("prompt_difference", None),
        ("key", {**record["key"], "width": 6}),
    ):
        yield json.dumps({**record, name: value}).encode()


def test_damaged_results_are_measured_again(
    tiny: TinyFiles, checks: list[tuple[int, int, int]], cache: Path
) -> None:
    pair = tiny.pair("chain")
    with load(*pair) as engine:
        expected = engine.check_rows()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for number, damage in enumerate(damages(file), start=2):
        file.write_bytes(damage)
        with load(*pair) as engine:
            assert engine.check_rows() == expected
        assert len(checks) == number * len(exactness.SHALLOW), damage
        assert file.read_bytes() == whole
    assert [path.name for path in cache.iterdir()] == [file.name]  # nothing half written stays


def test_infinite_differences_survive_the_file(
    tiny: TinyFiles, checks: list[tuple[int, int, int]], cache: Path
) -> None:
    with load(*tiny.pair("chain")) as engine:
        key = engine._exactness._key
    assert key is not None
    check = RowCheck(dict(enumerate([0.0, 0.5, *[math.inf] * 5], start=1)), 0.0)
    exactness.write(key, check)
    assert exactness.read(key) == check


def test_a_cache_that_cannot_be_written_is_no_error(
    tiny: TinyFiles, checks: list[tuple[int, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        with load(*tiny.pair("chain")) as engine:
            drafted = engine.generate(PROMPT, max_tokens=5, max_draft_tokens=2)
            assert drafted.stats.logit_difference is not None
            engine.generate(PROMPT, max_tokens=5)
    assert len(checks) == 2 * len(exactness.SHALLOW)  # once an engine, then


@pytest.mark.parametrize("context_size", [4, 8, 9, 20])
def test_a_small_context_is_checked_as_far_as_it_goes(context_size: int, tiny: TinyFiles) -> None:
    with load(*tiny.pair("chain"), context_size=context_size, exact=True) as engine:
        plain = engine.generate([70, 71], speculate=False)
        drafted = engine.generate([70, 71])
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == context_size - 2


# ---- the native call ---------------------------------------------------------------------------------


def test_an_interrupted_check_leaves_the_engine_usable(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(*tiny.pair("chain")) as engine:
        expected = engine.generate(PROMPT, max_tokens=20, speculate=False).tokens
        check, steps = native.check, iter(range(12))

        def interrupted(status: int) -> None:
            check(status)
            if next(steps, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr(native, "check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.check_rows()
        monkeypatch.setattr(native, "check", check)
        assert engine.tokens == []
        assert engine.generate(PROMPT, max_tokens=20).tokens == expected


@pytest.mark.parametrize(("rows", "depth"), [(1, 24), (0, 24), (65, 24), (8, 0), (8, 1017), (8, 2**31 - 1)])
def test_what_cannot_be_checked_is_refused(rows: int, depth: int, tiny: TinyFiles) -> None:
    with load(*tiny.pair("chain"), batch_size=64) as engine, pytest.raises(ValueError, match="checked"):
        engine._native.check_rows(rows, depth, 1)


def test_a_check_is_refused_while_a_stream_is_open(tiny: TinyFiles) -> None:
    with load(*tiny.pair("chain")) as engine:
        stream = engine.stream(PROMPT, max_tokens=20)
        next(stream)
        with pytest.raises(pydflash2.EngineBusyError):
            engine.check_rows()
        stream.close()


# ---- the command -------------------------------------------------------------------------------------


def test_doctor_says_what_drafting_does_to_logits(
    tiny: TinyFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    target, head = map(str, tiny.pair("plain", "q8_0"))
    assert main(["doctor", target, head, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["logit_differences"]
    for rows in (record["default"], record["exact"]):
        assert [row["width"] for row in rows] == list(range(1, len(rows) + 1))
        assert all(row["bit_identical"] == (row["difference"] == 0.0) for row in rows)
    assert main(["doctor", target, head]) == 0
    assert "default kernels" in capsys.readouterr().out
    assert main(["doctor", target, head, "--files-only"]) == 0
    assert "kernels" not in capsys.readouterr().out


def test_generate_exact(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for more in ([], ["--no-speculate"]):
        assert main(["generate", "def read(", "-n", "24", "-t", "1", "--exact", "--json", *more]) == 0
        texts.append(json.loads(capsys.readouterr().out))
    assert texts[0]["tokens"] == texts[1]["tokens"]
    assert texts[0]["stats"]["logit_difference"] in (0.0, None)
    assert texts[1]["stats"]["logit_difference"] is None


# ---- the demo pair, long -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("file_type", TYPES)
def test_long_texts_of_the_demo_pair(file_type: str, tmp_path: Path) -> None:
    """scripts/check_exact.py does the same with a thousand."""
    source, head = model_files.demo_pair()
    target = requantized(source, tmp_path / "target.gguf", file_type)
    with pydflash2.load(target, head, exact=True) as engine:
        check = engine.check_rows()
        assert check is not None
        for seed in range(25):
            prompt = token_ids(seed, 10 + 4 * seed, 2, 4000)
            plain = engine.generate(prompt, max_tokens=128, speculate=False)
            drafted = engine.generate(prompt, max_tokens=128)
            assert drafted.text.encode() == plain.text.encode(), f"prompt {seed}"
            assert drafted.tokens == plain.tokens
            assert (drafted.stats.logit_difference == 0.0) == bool(check.exact_widths)
