"""The command as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from pydflash2.cli import main
from tiny.files import TinyFiles

PROMPT = "the cat sat on"
STATIC = ["--max-draft-tokens", "7"]


@pytest.fixture(scope="module")
def pair(tiny: TinyFiles) -> list[str]:
    target, head = tiny.pair("chain")
    return ["-m", str(target), "-d", str(head), "-t", "1"]


@pytest.fixture(scope="module")
def expected(tiny: TinyFiles) -> pydflash2.Result:
    """By the head at its full width: figures that no clock changes."""
    with pydflash2.load(*tiny.pair("chain"), n_threads=1) as engine:
        return engine.generate(PROMPT, max_tokens=50, max_draft_tokens=7)


WHERE = "pydflash2: target on CPU, the head beside it\n"  # a line on stderr before the text


def run(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pydflash2", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=120, env=os.environ | environment
    )


# ---- generate --------------------------------------------------------------------------------------------


def test_text_on_stdout_and_two_lines_on_stderr(pair: list[str], expected: pydflash2.Result) -> None:
    done = run("generate", *pair, PROMPT, "-n", "50", *STATIC)
    assert (done.returncode, done.stdout.decode()) == (0, expected.text)
    stats = expected.stats
    head = rf"\(head: {stats.rounds}, {stats.accepted} of {stats.drafted} accepted\)"
    length = f"{stats.mean_acceptance_length:.2f}"
    line = (
        rf"{WHERE}50 tokens, {stats.rounds} rounds {head}, mean acceptance length {length}, "
        rf"{stats.plain_steps} plain steps?, [\d.]+ tok/s\n"
    )
    assert re.fullmatch(line, done.stderr.decode())


def test_what_each_drafter_did(
    pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text that loops, by lookup first: in the line, in the table and as JSON."""
    command = ["generate", *pair, PROMPT, "-n", "200", "--max-draft-tokens", "0", "--lookup", "mod"]
    assert main([*command, "--stats"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith(expected.text)
    _, line, *table = output.err.splitlines()
    found = re.fullmatch(
        r"200 tokens, (\d+) rounds \(mod: (\d+), (\d+) of (\d+) accepted\), mean acceptance length ([\d.]+), "
        r"(\d+) plain steps?, [\d.]+ tok/s",
        line,
    )
    assert found is not None
    rounds, of_mod, accepted, drafted, _, plain = map(float, found.groups())
    assert rounds == of_mod > 0
    assert 1 + rounds + accepted + plain == 200
    assert f"  mod          rounds: {of_mod:.0f}, {accepted:.0f} of {drafted:.0f} accepted" in table
    assert f"  plain steps  {plain:.0f}" in table
    assert any("positions; --json has them all)" in row for row in table)

    assert main([*command, "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    own = {"rounds": of_mod, "drafted": drafted, "accepted": accepted}
    assert (stats["by_drafter"], stats["plain_steps"]) == ({"mod": own}, plain)

    assert main(["generate", *pair, PROMPT, "-n", "9", "--max-draft-tokens", "1", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["stats"]["by_drafter"]) == {"head"}


def test_a_draft_vocabulary_changes_no_text(
    pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    for tokens in ("full", "auto", "100"):
        assert main(["generate", *pair, PROMPT, "-n", "50", "--draft-vocabulary", tokens]) == 0
        assert capsys.readouterr().out == expected.text
    assert main(["generate", *pair, PROMPT, "--draft-vocabulary", "0"]) == 2
    assert "draft_vocabulary is 0" in capsys.readouterr().err


def test_without_the_head_the_text_is_the_same(pair: list[str], expected: pydflash2.Result) -> None:
    done = run("generate", *pair, "-p", PROMPT, "-n", "50", "--no-speculate")
    assert (done.returncode, done.stdout.decode()) == (0, expected.text)
    line = rf"{WHERE}50 tokens, plain decoding \(speculate=False\), [\d.]+ tok/s\n"
    assert re.fullmatch(line, done.stderr.decode())


@pytest.mark.parametrize("way", ["argument", "-p", "-f", "-f -", "stdin"])
def test_where_the_prompt_comes_from(
    pair: list[str], expected: pydflash2.Result, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode() + b"\n")  # an editor's last newline is no part of it
    arguments = {
        "argument": [PROMPT],
        "-p": ["-p", PROMPT],
        "-f": ["-f", str(file)],
        "-f -": ["-f", "-"],
        "stdin": [],
    }
    done = run("generate", *pair, *arguments[way], "-n", "50", stdin=file.read_bytes())
    assert (done.returncode, done.stdout.decode()) == (0, expected.text)


def test_json(pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *pair, PROMPT, "-n", "50", "--json", *STATIC]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["text"], record["tokens"]) == (expected.text, expected.tokens)
    assert record["finish_reason"] == "length"
    stats = expected.stats.as_dict()
    assert record["stats"].keys() == stats.keys()
    counted = {name for name in stats if "seconds" not in name and "per_second" not in name}
    assert {name: record["stats"][name] for name in counted} == {name: stats[name] for name in counted}


def test_all_statistics(
    pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *pair, PROMPT, "-n", "50", "--stats", *STATIC]) == 0
    output = capsys.readouterr()
    assert output.out == expected.text
    stats = expected.stats
    shares = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
    assert f"accepted     {stats.accepted} of {stats.drafted} drafted tokens" in output.err
    assert f"by position  {shares}\n" in output.err
    assert re.search(r"prefill +[\d.]+ s\n +draft +[\d.]+ s\n +verify +[\d.]+ s\n", output.err)


def test_options_reach_the_engine(
    pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = expected.text[20:24]
    options = [
        "--stop",
        "nowhere",
        "--stop",
        stop,
        "--max-draft-tokens",
        "3",
        "-ngl",
        "all",
        "-c",
        "64",
        "--json",
    ]
    assert main(["generate", *pair, PROMPT, *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"] == expected.text[: expected.text.index(stop)]
    assert (record["finish_reason"], record["stats"]["max_draft_tokens"]) == ("stop", 3)


def test_a_clamped_width_is_said_in_one_line(
    pair: list[str], expected: pydflash2.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *pair, PROMPT, "-n", "50", "--max-draft-tokens", "20"]) == 0
    output = capsys.readouterr()
    assert output.out == expected.text
    assert output.err.startswith(
        "pydflash2: warning: max_draft_tokens=20 is more than this pair can draft: 7 is used"
    )
    assert len(output.err.splitlines()) == 3  # where it runs, and the summary


def test_verbose_shows_the_log(pair: list[str]) -> None:
    done = run("generate", *pair, PROMPT, "-n", "2", "-v")
    assert done.returncode == 0
    assert b"general.architecture" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["a", "-p", "b"], b"", "more than one prompt: give PROMPT, -p or -f, one of them"),
        ([], b"\xff\xfe", r"stdin isn't UTF-8 text \(byte 0\): convert it first"),
        ([], b"", "the prompt is empty, and the target adds no token before a text: give some text"),
        (["a", "-n", "0"], b"", "max_tokens is 0: it must lie between 1 and"),
        (["a", "-c", "-3"], b"", "context_size is -3"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    pair: list[str], arguments: list[str], stdin: bytes, message: str
) -> None:
    done = run("generate", *pair, *arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.match(f"pydflash2: error: {message}", done.stderr.decode())
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--max-draft-tokens", "many", "a"], "'many' is neither a number nor auto"),
        (["generate", "--lookup", "ngram", "a"], "invalid choice: 'ngram'"),
        (["generate", "--draft-vocabulary", "few", "a"], "'few' is neither a number, auto nor full"),
        (["generate", "-ngl", "some", "a"], "'some' is neither a number nor all"),
        (["generate", "-n", "few", "a"], "invalid int value: 'few'"),
        (["generate", "--unknown", "a"], "unrecognized arguments: --unknown"),
        (["convert", "head"], "the following arguments are required: --target"),
        (["sing"], "invalid choice: 'sing'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_argparse_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_failures_are_one_line_and_status_1(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYDFLASH2_DEBUG", raising=False)
    missing = str(tmp_path / "missing.gguf")
    for arguments, message in [
        (["generate", "-m", missing, "a"], f"target: no file {missing}; check the path"),
        (["generate", *pair, "-f", missing], f"[Errno 2] No such file or directory: '{missing}'"),
        (
            ["generate", *pair, "-c", "64", "-n", "99", "a"],
            "the prompt's 1 tokens and max_tokens=99 need 100 places",
        ),
    ]:
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"pydflash2: error: {message}")
        assert len(error.splitlines()) == 1
    monkeypatch.setenv("PYDFLASH2_DEBUG", "1")
    with pytest.raises(pydflash2.ModelFileError):
        main(["generate", "-m", missing, "a"])


def test_a_reader_that_leaves(pair: list[str]) -> None:
    command = [sys.executable, "-m", "pydflash2", "generate", *pair, PROMPT, "-n", "900"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == WHERE.encode()
        assert process.wait(60) == 1


def test_ctrl_c_keeps_the_text_and_says_nothing(tiny: TinyFiles, expected: pydflash2.Result) -> None:
    target, head = tiny.pair("chain-wide")
    command = [sys.executable, "-m", "pydflash2", "generate", "-m", str(target), "-d", str(head), "-t", "1"]
    with subprocess.Popen(
        [*command, PROMPT, "-c", "100000", *STATIC], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
        assert process.stderr.read() == WHERE.encode()
        assert process.wait(60) == 130
    assert len(text) > 20


def test_a_terminal_that_cannot_show_a_character(tiny: TinyFiles) -> None:
    target, head = tiny.pair("plain")
    arguments = ["generate", "-m", str(target), "-d", str(head), "-t", "1", "-n", "60", PROMPT]
    done = run(*arguments, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.decode("ascii").count("?") > 0


def test_the_demo_pair_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pydflash2.load() as engine:
        text = engine.generate("def binary_search(", max_tokens=32).text
    assert main(["generate", "def binary_search(", "-n", "32"]) == 0
    output = capsys.readouterr()
    assert output.out == text
    assert re.fullmatch(
        rf"{WHERE}32 tokens, \d+ rounds?( \(.*\), mean .*)?, \d+ plain steps?, .* tok/s\n", output.err
    )


# ---- the others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["generate", "convert", "inspect", "doctor", "calibrate", "bench"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
    assert exit.value.code == 0
    assert f"usage: pydflash2 {command}" in capsys.readouterr().out


def test_only_what_exists_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    commands = ["generate", "convert", "inspect", "doctor", "calibrate", "bench", "train"]
    assert re.findall(r"^    (\w+)\b", text, re.MULTILINE) == commands


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"pydflash2 {pydflash2.__version__}\n"


def test_inspect(tiny: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    target, head = tiny.pair("chain")
    assert main(["inspect", str(head), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["kind"], record["head"]["block_size"], record["head"]["taps"]) == (
        "DFlash 2 head",
        8,
        [0, 2],
    )
    assert main(["inspect", str(head)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^kind +DFlash 2 head$", text, re.MULTILINE)
    assert re.search(r"^  block size +8$", text, re.MULTILINE)
    assert re.search(r"^  taps +0, 2$", text, re.MULTILINE)
    # Each layer has 2 x 2 x 16 numbers of 2 bytes a position; one slides: 24 + 8 positions are 64 + 1 cells.
    assert record["cache"] == {"sliding": 65 * 128, "per_token": 128}
    assert re.search(r"^  sliding layers +8,320 bytes, whatever the context$", text, re.MULTILINE)
    assert re.search(r"^  full layers +128 bytes a token of context$", text, re.MULTILINE)
    assert main(["inspect", str(target)]) == 0
    assert re.search(r"^kind +target$", capsys.readouterr().out, re.MULTILINE)
    assert main(["inspect", str(target.with_name("missing.gguf"))]) == 1
    assert "missing.gguf" in capsys.readouterr().err


def test_doctor_on_a_pair(tiny: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    target, head = map(str, tiny.pair("chain"))
    assert main(["doctor", target, head]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "the pair fits" in lines
    assert all(line.startswith("ok    ") for line in lines[: lines.index("the pair fits")])
    memory = "\n".join(lines)
    assert re.search(r"^  target's weights   [\d,]+$", memory, re.MULTILINE)
    assert re.search(r"^  draft vocabulary   0, 320 of 320 tokens$", memory, re.MULTILINE)
    assert re.search(
        r"^  drafter's K/V      [\d,]+ at a context of 1,024; 128 more for each token of context$",
        memory,
        re.MULTILINE,
    )
    sliding = list(map(str, tiny.pair("sliding")))
    assert main(["doctor", *sliding, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["drafter_kv_per_token"], memory["draft_tokens"]) == (0, memory["target_tokens"])
    assert memory["drafter_compute"] > 0

    other = str(tiny.target("qwen3-wide"))
    assert main(["doctor", other, head]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAIL  hidden size: head 64, target 256" in lines
    assert lines[-1] == "the pair does not fit: use the head that was made for this target"

    assert main(["doctor", other, head, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["target"], record["head"], record["fits"]) == (other, head, False)
    assert {"name": "hidden size", "ok": False, "detail": "head 64, target 256"} in record["checks"]


def test_doctor_looks_beside_the_target(
    tiny: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, head = tiny.pair("chain")
    alone = Path(shutil.copy(target, tmp_path / "tiny-F32.gguf"))
    assert main(["doctor", str(alone)]) == 1
    assert capsys.readouterr().err == "pydflash2: error: head: none lies beside tiny-F32.gguf; name one\n"
    shutil.copy(head, tmp_path / "dflash-tiny-F32.gguf")
    assert main(["doctor", str(alone)]) == 0
    assert "the pair fits\n" in capsys.readouterr().out
    assert main(["doctor", str(alone), str(tmp_path / "other.gguf")]) == 1
    assert "head: no file" in capsys.readouterr().err


def test_doctor_on_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["pydflash2"] == pydflash2.__version__
    assert "llama-cpp-python" in record["llama_cpp"]
    assert "CPU" in record["backends"]
    assert any(device["backend"] == "CPU" and device["memory_total"] > 0 for device in record["devices"])
    assert all(f"{feature} = 1" in record["system_info"] for feature in record["cpu_features"])

    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (
        record["pydflash2"],
        record["llama_cpp"],
        record["python"],
        record["devices"][0]["description"],
    ):
        assert part in text


def test_convert(tiny: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = Path(shutil.copy(tiny.target("qwen3-chain"), tmp_path / "tiny-F32.gguf"))
    checkpoint = str(tiny.checkpoint("chain"))
    assert main(["convert", checkpoint, "--target", str(target), "--outtype", "f32"]) == 0
    head = capsys.readouterr().out.rstrip("\n")
    assert head == str(tmp_path / "dflash-tiny-F32.gguf")
    assert (
        main(["generate", "-m", str(target), "-t", "1", "-n", "50", *STATIC, PROMPT]) == 0
    )  # finds it beside the target
    assert "rounds (head: " in capsys.readouterr().err
    assert main(["convert", checkpoint, "--target", str(tiny.target("qwen3-wide")), "-o", head]) == 1
    assert capsys.readouterr().err.startswith("pydflash2: error: ")


# ---- sampling --------------------------------------------------------------------------------------------


def test_sampling_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """--json has what a script needs to have the text again; every flag reaches the engine."""

    def record(*flags: str) -> dict[str, Any]:
        assert main(["generate", "import ", "-n", "24", "-t", "1", "--json", *flags]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    warm = record("--temp", "0.8", "--seed", "7", "--logprobs", "1")
    assert warm["seed"] == 7
    assert [entry["token"] for entry in warm["logprobs"]] == warm["tokens"]
    assert record("--temp", "0.8", "--seed", "7")["tokens"] == warm["tokens"]
    assert record("--temp", "0.8", "--top-k", "1")["tokens"] == record()["tokens"] != warm["tokens"]
    first = record()["tokens"][0]
    assert record("--logit-bias", f"{first}-inf")["tokens"][0] != first
    assert sum(record("--min-draft-probability", "1")["stats"]["rounds_by_width"][1:]) < 5
    for flags in (["--min-p", "0.99"], ["--top-p", "0.01"], ["--typical", "0.01"]):
        assert record("--temp", "5", "--seed", "1", *flags)["tokens"] != warm["tokens"]
    for penalty in ("--repeat-penalty", "--presence-penalty", "--frequency-penalty"):
        assert len(set(record(penalty, "9", "--repeat-last-n", "-1")["tokens"])) > 20


def test_structured_output_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grammar, schema = tmp_path / "digits.gbnf", tmp_path / "schema.json"
    grammar.write_text("root ::= [0-9] [0-9]?")
    schema.write_text('{"enum": [true, null]}')
    for flags in (["--grammar-file", str(grammar)], ["--grammar", grammar.read_text()]):
        assert main(["generate", "x = ", "-t", "1", *flags]) == 0
        assert capsys.readouterr().out.isdigit()
    for flags in (["-jf", str(schema)], ["-j", schema.read_text()]):
        assert main(["generate", "x = ", "-t", "1", *flags]) == 0
        assert json.loads(capsys.readouterr().out) in (True, None)
    assert main(["generate", "x", "-j", "{}", "-jf", str(schema)]) == 2
    assert "both --json-schema and --json-schema-file are given" in capsys.readouterr().err


@pytest.mark.parametrize("bias", ["15043", "x+1", "5++1", "-3+1", "7-"])
def test_a_logit_bias_that_is_none(bias: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "x", f"--logit-bias={bias}"])
    assert "is no token id with a signed number, such as 15043-1.5" in capsys.readouterr().err
