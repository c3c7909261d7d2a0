"""`pydflash2 bench`: what it counts, what it writes, and that its report opens in a browser."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydflash2
from pydflash2.bench import arms, measuring, workloads
from pydflash2.bench.environment import Environment, memory
from pydflash2.bench.measuring import Options, Run
from pydflash2.bench.records import Report, write_csv, write_json
from pydflash2.bench.report import write_html
from pydflash2.bench.statistics import summarise
from pydflash2.bench.table import table
from pydflash2.bench.workloads import Conversation, Workload
from pydflash2.cli import main
from pydflash2.loops import SHORTEST_LOOP, loop_start
from pydflash2.results import Stats
from tiny.browser import read_page
from tiny.files import TinyFiles

TURNS = Workload("turns", "two turns", (Conversation("talk", ("the cat sat on", " and then the dog")),))
PROSE = Workload("prose", "one text", (Conversation("text", ("the dog sat on",)),))
OPTIONS = Options(max_tokens=8, repeats=2)


@pytest.fixture(scope="module")
def pair(tiny: TinyFiles) -> list[str]:
    target, head = tiny.pair("chain")
    return ["-m", str(target), "-d", str(head), "-t", "1"]


@pytest.fixture(scope="module")
def engine(tiny: TinyFiles) -> Iterator[pydflash2.Engine]:
    with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
        yield engine


def no_progress(now: str) -> None:
    pass


@pytest.fixture(scope="module")
def report(engine: pydflash2.Engine) -> Report:
    compared = arms.possible(engine)
    plans = [measuring.plan(engine, workload, OPTIONS) for workload in (TURNS, PROSE)]
    runs = measuring.measure(engine, plans, compared, OPTIONS, no_progress)
    prefill = measuring.prefill(engine, "the cat", 20, compared[:2], 2, no_progress)
    environment = Environment.of(engine)
    return Report(
        environment, OPTIONS, False, memory(engine), prefill, summarise(plans, compared, runs), runs
    )


@pytest.fixture(scope="module")
def marked(report: Report) -> Report:
    """The same, as if drafting arms had looped in `turns` and `prose` were inflated."""
    runs = [replace(run, looped=run.workload == "turns" and run.arm != "plain") for run in report.runs]
    turns, prose = (workload.plan for workload in report.workloads)
    plans = [turns, replace(prose, workload=replace(prose.workload, inflated=True))]
    compared = [arms.Arm(row.arm, row.group, {}, row.width) for row in report.workloads[0].rows]
    return replace(report, runs=runs, workloads=summarise(plans, compared, runs))


# ---- loops ---------------------------------------------------------------------------------------------


def periodic_from(tokens: list[int]) -> int:
    """By the definition, in words: the earliest start of a repetition that is long enough."""
    n = len(tokens)
    starts = [
        start
        for start in range(1, n)
        for period in range(1, start + 1)
        if n - start >= max(period, SHORTEST_LOOP)
        and all(tokens[i] == tokens[i - period] for i in range(start, n))
    ]
    return min(starts, default=n)


@given(st.lists(st.integers(0, 2), max_size=70))
def test_a_loop_is_what_the_definition_says(tokens: list[int]) -> None:
    assert loop_start(tokens) == periodic_from(tokens)


@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(0, 100),
)
def test_what_repeats_itself_is_found(text: list[int], passage: list[int], extra: int) -> None:
    repeated = max(len(passage), SHORTEST_LOOP) + extra
    loop = (passage * (repeated // len(passage) + 2))[: len(passage) + repeated]
    assert loop_start(text + loop) <= len(text) + len(passage)


@given(st.lists(st.integers(0, 5), max_size=80), st.integers(0, 5))
def test_a_loop_that_was_left_is_none(text: list[int], last: int) -> None:
    assert loop_start([*text, 99, last]) == len(text) + 2


def test_texts_are_cut_where_they_begin_to_loop(engine: pydflash2.Engine) -> None:
    options = Options(max_tokens=90)
    whole = engine.generate("the cat sat on", max_tokens=90, speculate=False)
    start = loop_start(whole.tokens)
    assert start < len(whole.tokens)  # the tiny target does loop
    (text,) = measuring.plan(
        engine, replace(PROSE, conversations=(Conversation("x", ("the cat sat on",)),)), options
    ).texts
    assert (text.cut, text.max_tokens) == (True, max(start, 16))
    for kept in (replace(options, keep_loops=True), replace(options, temperature=0.1)):
        assert measuring.plan(engine, PROSE, kept).texts[0].max_tokens == 90


# ---- workloads and arms --------------------------------------------------------------------------------


def test_packaged_workloads(engine: pydflash2.Engine) -> None:
    found = workloads.packaged()
    assert tuple(workload.name for workload in found) == workloads.NAMES
    assert [workload.name for workload in found if workload.inflated] == ["synthetic"]
    assert all(workload.conversations for workload in found)
    (editing,) = workloads.packaged(["editing"])
    assert all(len(conversation.turns) > 2 for conversation in editing.conversations)


def test_the_demo_pair_has_room_for_every_prompt() -> None:
    with pydflash2.load(head=None) as demo:
        for workload in workloads.packaged():
            for conversation in workload.conversations:
                written = 128 * len(conversation.turns)
                prompts = sum(len(demo.tokenize(turn)) for turn in conversation.turns[:3])
                assert prompts + min(written, 3 * 128) <= 1024, conversation.name


def test_prompts_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "b.jsonl").write_text(
        '{"prompt": "x"}\n\n{"prompt": ["y", "z"], "id": 7}\n', encoding="utf-8"
    )
    (tmp_path / "image.png").write_bytes(b"\xff")
    assert workloads.own(tmp_path / "a.txt").conversations == (Conversation("a", ("one\ntwo",)),)
    assert workloads.own(tmp_path).conversations == (
        Conversation("a", ("one\ntwo",)),
        Conversation("b:1", ("x",)),
        Conversation("b:3", ("y", "z")),
    )


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"\n", "is empty"),
        ("a.txt", b"\xff", "isn't UTF-8"),
        ("a.jsonl", b"{", "line 1 is no JSON"),
        ("a.jsonl", b'{"prompt": "x"}\n{"text": "y"}', 'line 2: "prompt" must be'),
        ("a.jsonl", b'{"prompt": []}', '"prompt" must be'),
        ("a.jsonl", b'["x"]', '"prompt" must be'),
        ("a.jsonl", b"", "has no prompts"),
        ("a.png", b"", "has no prompts"),
    ],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=says):
        workloads.own(tmp_path if name.endswith("png") else tmp_path / name)


def test_arms(engine: pydflash2.Engine) -> None:
    possible = arms.possible(engine)
    names = [arm.name for arm in possible]
    widths = range(1, engine.block_size or 0)
    assert names[0] == "plain" and names[-1] == "auto" and len(set(names)) == len(names)
    assert [arm.width for arm in possible if arm.group == "head"] == list(widths)
    assert [arm.name for arm in arms.chosen(possible, ["head-1", "auto"])] == ["plain", "head-1", "auto"]
    assert {arm.group for arm in arms.few(possible)} == {arm.group for arm in possible}
    with pytest.raises(ValueError, match="there is no arm 'fast': choose groups"):
        arms.chosen(possible, ["fast"])


def test_lookup_arms(engine: pydflash2.Engine) -> None:
    settings = {arm.name: arm.settings for arm in arms.possible(engine)}
    assert settings["head-2"] == {"max_draft_tokens": 2, "lookup": "off"}
    assert settings["mod"] == {"max_draft_tokens": 0, "lookup": "mod"}  # the head drafts nothing
    assert settings["map-k4v+head-2"] == {"max_draft_tokens": 2, "lookup": "map-k4v"}
    assert settings["auto"] == {}


# ---- measuring -----------------------------------------------------------------------------------------


def test_every_arm_gets_the_same_conversation(report: Report) -> None:
    talks: dict[tuple[str, int], list[Run]] = {}
    for run in report.runs:
        if run.workload == "turns":
            talks.setdefault((run.arm, run.repeat), []).append(run)
    assert len(talks) == 2 * len(report.workloads[0].rows)
    for first, second in talks.values():
        assert (first.turn, second.turn) == (0, 1)
        assert first.stats.reused_tokens == 0  # nothing of the arm before
        assert second.stats.reused_tokens > 0  # but of its own first turn
        assert second.stats.prompt_tokens > first.stats.prompt_tokens + 8
    assert len({second.stats.prompt_tokens for _, second in talks.values()}) == 1


def test_turns_without_room_are_left_out(engine: pydflash2.Engine) -> None:
    long = replace(TURNS, conversations=(Conversation("long", ("the cat", " sat on" * engine.context_size)),))
    plan = measuring.plan(engine, long, OPTIONS)
    assert (len(plan.texts), plan.left_out) == (1, 1)
    none = replace(long, conversations=(Conversation("long", long.conversations[0].turns[1:]),))
    with pytest.raises(pydflash2.ContextOverflowError, match="no prompt of the workload turns fits"):
        measuring.plan(engine, none, OPTIONS)


def test_figures_of_a_row() -> None:
    """By hand: two repeats of two texts, twice and four times as fast as plain decoding."""

    def runs(arm: str, seconds: list[float], stats: Stats) -> list[Run]:
        return [
            Run("w", "c", turn, arm, repeat, 11, s, False, "length", stats)
            for repeat, s in enumerate(seconds)
            for turn in (0, 1)
        ]

    drafted = Stats(
        prompt_tokens=5,
        rounds=4,
        drafted=12,
        accepted=6,
        accepted_by_position=[3, 2, 1],
        rounds_by_width=[0, 0, 0, 4],
        draft_seconds=0.4,
        verify_seconds=0.5,
        prefill_seconds=0.5,
    )
    plan = measuring.Plan(Workload("w", "", ()), [("c", [measuring.Text("p", 11)] * 2)], 0)
    compared = [arms.PLAIN, arms.Arm("head-3", "head", {}, 3)]
    measured = runs("plain", [2.0, 4.0], Stats(verify_seconds=1.0)) + runs("head-3", [1.0, 1.0], drafted)
    (workload,) = summarise([plan], compared, measured)
    plain, row = workload.rows
    assert (plain.tokens_per_second.median, plain.ratio.median) == (3.75, 1.0)  # 10 tokens in 2 s, in 4 s
    assert (plain.verify_ms, plain.draft_ms, plain.prefill_tokens_per_second) == (100.0, 0.0, None)
    assert (row.ratio.median, row.ratio.low, row.ratio.high) == (3.0, 2.5, 3.5)
    assert row.mean_acceptance_length == 2.5 and row.acceptance_by_position == [0.75, 0.5, 0.25]
    assert (row.draft_ms, row.verify_ms, row.rest) == pytest.approx((100.0, 125.0, 0.1))
    assert row.rounds_by_width == {3: 16} and row.prefill_tokens_per_second == 10.0
    assert workload.best() is row and workload.auto_to_best() is None


# ---- what is written -----------------------------------------------------------------------------------

SPREAD = {"type": "object", "required": ["median", "low", "high"], "additionalProperties": {"type": "number"}}
COUNT = {"type": "integer", "minimum": 0}
ROW = {
    "type": "object",
    "required": ["workload", "arm", "group", "inflated", "n_looped", "n_cut", "prefill_tokens_per_second"],
    "properties": {
        "arm": {"type": "string"},
        "group": {"enum": list(arms.GROUPS)},
        "inflated": {"type": "boolean"},
        "n_looped": COUNT,
        "n_cut": COUNT,
        "tokens_per_second": SPREAD,
        "ratio": SPREAD,
        "acceptance_by_position": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}},
        "rounds_by_width": {"type": "object", "additionalProperties": COUNT},
        "rest": {"type": "number", "maximum": 1},
    },
}
SCHEMA = {
    "type": "object",
    "required": ["format", "environment", "settings", "memory_bytes", "prefill", "workloads", "runs"],
    "properties": {
        "format": {"const": 1},
        "environment": {
            "type": "object",
            "required": ["date", "cpu", "cores", "threads", "llama_cpp", "files"],
        },
        "memory_bytes": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
        "workloads": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "description", "inflated", "best", "auto_to_best", "rows"],
                "properties": {"rows": {"type": "array", "minItems": 1, "items": ROW}},
            },
        },
        "runs": {
            "type": "array",
            "items": {"type": "object", "required": ["workload", "arm", "repeat", "looped", "stats"]},
        },
    },
}


def test_the_command_writes_table_json_and_csv(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("the cat sat on", encoding="utf-8")
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv")}
    outputs = [text for name, file in files.items() for text in (f"--{name}", str(file))]
    given = ["--prompts", str(tmp_path / "mine.txt"), "--arms", "head-1,auto", "--repeats", "2", "-n", "8"]
    assert main(["bench", *pair, *given, "--prefill", "10", *outputs]) == 0
    said = capsys.readouterr()
    assert "mine: prompts of mine.txt" in said.out and "prefill of 10 tokens" in said.out
    assert "wrote" in said.err and "wrote" not in said.out
    record = json.loads(files["json"].read_text(encoding="utf-8"))
    jsonschema.validate(record, SCHEMA)
    rows = record["workloads"][0]["rows"]
    assert [row["arm"] for row in rows] == ["plain", "head-1", "auto"]
    assert len(record["runs"]) == 3 * 2
    lines = list(csv.DictReader(io.StringIO(files["csv"].read_text(encoding="utf-8"))))
    assert [line["arm"] for line in lines] == ["plain", "head-1", "auto"]
    for line, row in zip(lines, rows, strict=True):
        assert float(line["ratio"]) == row["ratio"]["median"]


def test_json_on_stdout_is_all_there_is(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("the cat sat on", encoding="utf-8")
    given = ["--prompts", str(tmp_path / "mine.txt"), "--repeats", "1", "-n", "4", "--no-head"]
    assert main(["bench", *pair, *given, "--prefill", "0", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    jsonschema.validate(record, SCHEMA)
    assert record["prefill"] is None and record["memory_bytes"]["head_weights"] is None


def test_loops_and_inflation_are_marked_everywhere(marked: Report) -> None:
    n_runs = 2 * OPTIONS.repeats
    text = table(marked)
    looped = [line for line in text.splitlines() if f"{n_runs} of {n_runs} looped" in line]
    assert len(looped) == len(marked.workloads[0].rows) - 1
    assert sum(line.endswith("inflated") for line in text.splitlines()) == len(marked.workloads[1].rows)
    data, sheet, page = io.StringIO(), io.StringIO(), io.StringIO()
    write_json(marked, data)
    found = json.loads(data.getvalue())["workloads"]
    assert [row["n_looped"] for row in found[0]["rows"]] == [0] + [n_runs] * len(looped)
    assert found[1]["inflated"]
    write_csv(marked, sheet)
    lines = list(csv.DictReader(io.StringIO(sheet.getvalue())))
    assert sum(int(line["n_looped"]) for line in lines) == n_runs * len(looped)
    assert {line["inflated"] for line in lines if line["workload"] == "prose"} == {"True"}
    write_html(marked, page)
    assert page.getvalue().count(f"<td>{n_runs} of {n_runs} looped</td>") >= len(looped)
    assert "(inflated)" in page.getvalue() and 'class="marked"' in page.getvalue()


@pytest.mark.parametrize(
    "bad",
    [
        ["--repeats", "0"],
        ["-n", "1"],
        ["--temp", "-1"],
        ["--seed", "-1"],
        ["--workloads", "poetry"],
        ["--workloads", ","],
        ["--arms", "fast"],
        ["--arms", ""],
        ["--prefill", "-1"],
        ["--prompts", "FOLDER"],
        ["--json", "FOLDER"],
        ["--csv", "FOLDER/no/out.csv"],
        ["--repeats", "many"],
        ["surplus"],
    ],
)
def test_bad_usage(
    pair: list[str], bad: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [text.replace("FOLDER", str(tmp_path)) for text in bad]
    try:
        status = main(["bench", *pair, *given])
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    assert status == 2 and not said.out and "error: " in said.err


def test_a_report_without_its_libraries(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "plotly" else find(name, *rest)
    )
    assert main(["bench", *pair, "--report", str(tmp_path / "out.html")]) == 1
    assert "pip install 'pydflash2[bench]'" in capsys.readouterr().err


# ---- the report in a browser ---------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_in_a_browser(
    browser: Any, marked: Report, tmp_path: Path, width: int, scheme: str
) -> None:
    file = tmp_path / "report.html"
    with file.open("w", encoding="utf-8") as out:
        write_html(marked, out)
    found = read_page(browser, file, width, scheme)
    assert found.says == [] and found.asked == [file.as_uri()]
    assert found.page == 0 and found.wider == 0
    assert found.plots == 2 + 2 * len(marked.workloads) and found.drawn > 0
    assert found.smallest >= 12
    assert (found.background_is_light, found.text_is_light) == (scheme == "light", scheme == "dark")
