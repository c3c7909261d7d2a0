"""A small run of scripts/fuzz_files.py, and what its checks rest on."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
sys.path.append(str(SCRIPTS))

from fuzzing import arguments, cases, gguf_parts, judge, mutations, workers  # noqa: E402

from pydflash2.errors import ModelFileError, NativeError  # noqa: E402
from tiny.files import TinyFiles  # noqa: E402

SEED, N_FILES, N_SETS = 7, 400, 300
FAILURES = {"crash", "hang", "unhelpful"}


def run(jobs: list[str]) -> dict[str, dict[str, object]]:
    def command(folder: Path) -> list[str]:
        return [sys.executable, str(SCRIPTS / "fuzz_files.py"), "--worker", str(folder), "--seed", str(SEED)]

    return dict(workers.run_all(jobs, command, n_workers=1, timeout=120))


@pytest.mark.parametrize(("what", "count"), [("file", N_FILES), ("arguments", N_SETS)])
def test_nothing_crashes_hangs_or_leaves_the_user_alone(what: str, count: int) -> None:
    answers = run([f"{what} {index}" for index in range(count)])
    assert len(answers) == count
    failed = {job: answer for job, answer in answers.items() if answer["verdict"] in FAILURES}
    assert not failed, json.dumps(failed, indent=2)
    verdicts = Counter(answer["verdict"] for answer in answers.values())
    assert min(verdicts["works"], verdicts["refused"]) > count / 20, (
        "mutations that all work, or none: no test"
    )


def test_every_mutation_is_drawn_and_changes_files(tiny: TinyFiles) -> None:
    for role, path in (("head", tiny.head("reduced-vocabulary")), ("target", tiny.target("qwen35"))):
        parts = gguf_parts.read(path)
        sound = parts.copy().write()
        drawn = Counter(name for index in range(3000) for name in mutations.draw(Random(index), role))
        for name in mutations.names(role):
            assert drawn[name] > 0
            changed = [mutations.mutate(Random(seed), parts.copy(), [name]) != sound for seed in range(5)]
            assert sum(changed) > 2, name


def test_an_unchanged_file_is_written_as_it_was(tiny: TinyFiles) -> None:
    for path in (tiny.head("reduced-vocabulary"), tiny.target("gemma3"), tiny.target("qwen35")):
        assert gguf_parts.read(path).write() == path.read_bytes()


def test_the_same_index_gives_the_same_file(tmp_path: Path) -> None:
    files = cases.Files(tmp_path)
    for index in range(5):
        first, again = (files.write(*cases.plan(SEED, index)).read_bytes() for _ in range(2))
        assert first == again


def test_crashes_and_hangs_are_seen_and_survived() -> None:
    program = (
        "import os, sys, time\n"
        "for line in sys.stdin:\n"
        "    print('about to', line, file=sys.stderr, flush=True)\n"
        "    if 'crash' in line: os.abort()\n"
        "    if 'hang' in line: time.sleep(600)\n"
        '    print(\'{"verdict": "works"}\', flush=True)\n'
    )
    jobs = ["good 1", "crash 2", "good 3", "hang 4", "good 5"]
    answers = dict(workers.run_all(jobs, lambda folder: [sys.executable, "-c", program], 1, timeout=10))
    assert [answers[job]["verdict"] for job in jobs] == ["works", "crash", "works", "hang", "works"]
    assert "about to crash 2" in answers["crash 2"]["detail"]


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (ModelFileError("the target 'x.gguf' is damaged (no layers): convert it again"), None),
        (ValueError("x.gguf: 3 heads are no multiple of 2; convert it again"), None),
        (KeyError("x.gguf"), "a KeyError"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "x.gguf: convert it again"), "a UnicodeDecodeError"),
        (NativeError("x.gguf"), "too short"),
        (
            NativeError("x.gguf cannot be loaded: vector::_M_range_check; convert it again"),
            "raw text 'vector::'",
        ),
        (ModelFileError("the model is damaged: download or convert it again"), "does not name what is wrong"),
        (ModelFileError("x.gguf: the tensor output.weight is missing"), "says nothing to do"),
        (ModelFileError("x.gguf: convert it again" + 2000 * "x"), "too long"),
    ],
)
def test_what_counts_as_unhelpful(error: Exception, complaint: str | None) -> None:
    assert judge.complaint(error, ["x.gguf"]) == complaint


def test_every_argument_has_near_misses() -> None:
    """What a call gains later is drawn too; without near misses only as something absurd."""
    for name in ("load", "generate", "prefill", "draft", "verify"):
        for parameter in arguments.parameters(name):
            assert parameter.name in {*arguments.NEAR, "target", "head"}, f"{name}: {parameter}"
