"""scripts/compare_llama_cpp.py's arithmetic, its processes, and the pair that it times."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
sys.path.append(str(SCRIPTS))

import make_step_cost_pair as step_cost  # noqa: E402
from compare import figures  # noqa: E402
from compare.figures import Figure, Run  # noqa: E402
from compare.process import Worker  # noqa: E402
from compare.server import Pair, Server  # noqa: E402

import pydflash2  # noqa: E402
from pydflash2.inspection import check_pair  # noqa: E402

SIZES = step_cost.Sizes(
    n_layer=4,
    n_embd=256,
    n_ff=512,
    n_head=4,
    n_head_kv=2,
    head_dim=64,
    n_merges=1800,
    n_vocab=2112,
    head_layers=2,
    taps=(0, 1, 2),
    window=64,
    rank=32,
    top_k=8,
)
TIMINGS = {"prompt_n": 96, "prompt_ms": 480.0, "predicted_n": 65, "predicted_ms": 320.0}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Target and head by file type, small."""
    written = step_cost.make(tmp_path_factory.mktemp("step-cost"), SIZES)
    return dict(zip(step_cost.FILE_TYPES, zip(written[::2], written[1::2], strict=True), strict=True))


@pytest.mark.parametrize("file_type", step_cost.FILE_TYPES)
def test_the_step_cost_pair_drafts_texts_of_any_length(
    pair: dict[str, tuple[Path, Path]], file_type: str
) -> None:
    target, head = pair[file_type]
    with pydflash2.load(target, head, context_size=512, n_threads=1) as engine:
        assert engine.block_size == SIZES.block_size
        prompt = engine.tokenize("names of several numbers")
        assert engine.detokenize(prompt) == "names of several numbers"
        assert max(prompt) >= 256  # merged
        result = engine.generate(prompt, max_tokens=60, max_draft_tokens=7)
        assert (result.finish_reason, len(result.tokens)) == ("length", 60)
        assert result.stats.drafted > 0
        assert len(set(result.tokens)) > 3  # the layers have a say in it, not the embedding alone


def test_the_step_cost_pair_is_the_same_each_time(pair: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    again = step_cost.make(tmp_path, SIZES, ("q8_0",))
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in pair["q8_0"]]


def test_the_defaults_are_the_published_dimensions() -> None:
    tokens, types, merges = step_cost.vocabulary(step_cost.Sizes())
    assert len(tokens) == len(types) == len(set(tokens)) == 151_936
    assert len(merges) == 151_387
    assert tokens[step_cost.head_config(step_cost.Sizes())["dflash_config"]["mask_token_id"]] == "<|mask|>"
    shapes = step_cost.target_shapes(step_cost.Sizes())
    assert "output.weight" not in shapes  # tied
    assert sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values()) == 596_049_920


def test_timings_of_llama_cpp_are_read() -> None:
    answer = {"timings": TIMINGS | {"draft_n": 140, "draft_n_accepted": 44}, "content": "So"}
    run = Run.of_timings(answer)
    assert run == Run.of_timings({"timings": answer["timings"], "choices": [{"text": "So"}]})
    assert figures.round_ms([run]) == pytest.approx(16)
    assert (run.n, run.drafted, run.accepted, run.prompt_n) == (64, 140, 44, 96)
    assert figures.rate([run]) == pytest.approx(200)
    assert figures.prompt_rate([run]) == pytest.approx(200)
    assert figures.acceptance_length([run]) == pytest.approx(64 / 20)
    assert (
        Run.of_timings({"timings": TIMINGS, "content": ""}).drafted == 0
    )  # without a drafter it says nothing of drafts


def test_rates_pool_texts_by_their_time() -> None:
    short, long = Run(10, 1.0, 0, 0, 5, 1.0), Run(90, 1.0, 0, 0, 15, 3.0)
    assert figures.rate([short, long]) == 50
    assert figures.prompt_rate([short, long]) == 5
    assert figures.acceptance_length([short, long]) == 1


def test_a_bar_is_held_by_the_median() -> None:
    assert Figure("decode", [1.4, 1.6, 1.9], at_least=1.5).holds
    assert not Figure("decode", [1.4, 1.45, 1.9], at_least=1.5).holds
    assert Figure("drafter", [0.9, 0.8, 0.7], at_most=0.85).holds
    assert not Figure("drafter", [0.9], at_most=0.85).holds
    assert not Figure("drafter", [], at_most=0.85, note="no build").holds
    assert Figure("decode", [], at_least=1.5, note="no wheel", skipped=True).holds
    assert Figure("beside it", [0.1]).verdict == ""


def test_the_table_has_a_line_for_each_figure() -> None:
    lines = figures.table(
        [
            Figure("decode", [1.75, 1.5, 1.25], at_least=1.5, note="300 and 200 tok/s"),
            Figure("drafter", [], at_most=0.5, note="not there"),
            Figure("xllamacpp", [], at_least=1.5, note="no wheel", skipped=True),
        ]
    ).splitlines()
    assert lines[1].split() == [
        *("decode", "1.500", "1.250", "1.750", ">=", "1.5", "holds"),
        *("300", "and", "200", "tok/s"),
    ]
    assert lines[2].split() == ["drafter", "-", "-", "-", "<=", "0.5", "FAILS", "not", "there"]
    assert "skipped" in lines[3]


def test_first_rounds_do_not_count() -> None:
    assert figures.settled([90.0, 40.0, 10.0, 12.0, 11.0]) == 11.0
    assert figures.settled([90.0]) == 90.0


def test_options_name_the_head_only_where_it_drafts() -> None:
    pair = Pair("demo", Path("t.gguf"), Path("h.gguf"), 512, 2)
    assert "h.gguf" in pair.options(5)
    assert pair.options(5)[pair.options(5).index("--spec-draft-n-max") + 1] == "5"
    assert "h.gguf" not in pair.options(0)


FAKE_SERVER = f"""#!{sys.executable}
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        self.reply({{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not asked["prompt"]:
            self.send_error(400, "no prompt")
            return
        timings = {TIMINGS!r} | {{"prompt_n": len(asked["prompt"]), "predicted_n": asked["n_predict"]}}
        self.reply({{"content": " ".join(sys.argv[1:]), "timings": timings}})
    def log_message(self, *rest):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="runs a script by its first line")
def test_a_server_is_waited_for_asked_and_closed(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(FAKE_SERVER)
    program.chmod(0o755)
    server = Server(program, Pair("demo", Path("t.gguf"), Path("h.gguf"), 512, 2), 5, tmp_path)
    try:
        run = server.generate([1, 2, 3], 33)
        assert (run.prompt_n, run.n) == (3, 32)
        assert "--spec-draft-n-max 5" in run.text
        with pytest.raises(RuntimeError, match="refused /completion"):
            server.generate([], 33)
    finally:
        server.close()
    assert server.process.poll() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="runs a script by its first line")
def test_a_server_that_dies_shows_its_log(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\nraise SystemExit('no such model')\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="no such model"):
        Server(program, Pair("demo", Path("t.gguf"), Path("h.gguf"), 512, 2), 5, tmp_path)


CHILD = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from compare.process import answer_requests
def double(number):
    print("a library's chatter")
    return {{"number": 2 * number}}
def fail():
    raise SystemExit("out of tea")
answer_requests({{"double": double, "fail": fail}})
"""


def test_a_worker_answers_is_stopped_between_and_tells_why_it_died(tmp_path: Path) -> None:
    worker = Worker([sys.executable, "-c", CHILD], tmp_path / "log")
    try:
        with worker:
            assert worker.ask(what="double", number=4) == {"number": 8}
        if sys.platform == "linux":
            status = Path(f"/proc/{worker.process.pid}/stat")
            deadline = time.monotonic() + 10
            while status.read_text().rpartition(")")[2].split()[0] != "T" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert status.read_text().rpartition(")")[2].split()[0] == "T"
        with worker, pytest.raises(RuntimeError, match="out of tea"):
            worker.ask(what="fail")
    finally:
        worker.close()


def test_the_step_cost_pair_fits_itself(pair: dict[str, tuple[Path, Path]]) -> None:
    for target, head in pair.values():
        assert all(line.ok for line in check_pair(target, head))
