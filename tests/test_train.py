"""`pydflash2 train` from prompts to a head that drafts, on tiny targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("plotly")

import pydflash2  # noqa: E402
from pydflash2 import cli, inspection  # noqa: E402
from pydflash2.convert.checkpoint import read_checkpoint  # noqa: E402
from pydflash2.errors import EngineBusyError, OutOfMemoryError  # noqa: E402
from pydflash2.train import held_out, plan, run  # noqa: E402
from pydflash2.train.batches import BatchSettings  # noqa: E402
from pydflash2.train.figures import Figures  # noqa: E402
from pydflash2.train.loop import Loop, LoopSettings, TrainingError  # noqa: E402
from pydflash2.train.measure import rounds  # noqa: E402
from pydflash2.train.objective import ObjectiveSettings  # noqa: E402
from pydflash2.train.options import DataOptions, MeasureOptions, Options  # noqa: E402
from tiny.files import TinyFiles  # noqa: E402

PROMPTS = Path(__file__).parent / "data" / "prompts.txt"


def options(target: Path, out: Path, steps: int = 4, **changes: Any) -> Options:
    data = DataOptions((PROMPTS,), held_out=0.2, n_tokens=1200, new_tokens=64, greedy_share=0.3)
    measure = MeasureOptions(every=1e6, n_prompts=2, final_prompts=3, max_tokens=24, timed=1)
    made = Options(
        target,
        out,
        data,
        {"n_ff": 96},
        batch=BatchSettings(2, 12),
        loop=LoopSettings(minutes=None, steps=steps, look_every=1e6, save_every=1e6),
        measure=measure,
        n_threads=2,
        n_gpu_layers=0,
        outtype="f32",
    )
    return replace(made, **changes)


def train(made: Options) -> tuple[run.Result, list[str]]:
    said: list[str] = []
    return run.train(made, said.append), said


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_head_that_drafts(tiny: TinyFiles, tmp_path: Path) -> None:
    target, out = tiny.target("qwen3-chain"), tmp_path / "out"
    result, said = train(options(target, out, steps=60))
    names = {path.name for path in out.iterdir()}
    files = {"config.json", "model.safetensors", "head.gguf", "README.md", "report.html", "figures.json"}
    assert files | {"curves.png", "data", "training"} == names
    assert all(line.ok for line in inspection.check_pair(target, out / "head.gguf"))

    figures = Figures.read(out / "figures.json")
    assert figures == result.figures
    assert [row.step for row in figures.held_out] == [0, 60]
    assert figures.held_out[-1].unary_loss < 0.5 * figures.held_out[0].unary_loss
    measured = {row.on: row for row in figures.measured}
    assert measured["held out"].mean_acceptance_length > 2.5
    assert measured["held out"].speed_up is not None
    assert any("parameters; memory" in line for line in said)  # before it begins
    assert json.loads(result.as_json())["steps"] == 60


@pytest.mark.parametrize(
    "target", ["gemma3", "qwen35"]
)  # taps by the callback; a state that can't drop tokens
def test_other_targets(target: str, tiny: TinyFiles, tmp_path: Path) -> None:
    result, _ = train(options(tiny.target(target), tmp_path / "out"))
    assert result.figures.final["steps"] == 4


def test_too_few_prompts_for_the_tokens_asked_for(tiny: TinyFiles, tmp_path: Path) -> None:
    made = options(tiny.target("qwen3-chain"), tmp_path)
    _, said = train(replace(made, data=replace(made.data, n_tokens=10**6, new_tokens=16)))
    assert any("less than the 1,000,000 tokens asked for" in line for line in said)


@pytest.mark.parametrize(("tokens", "prompts"), [(None, 4096), (1000, 4096), (10**6, 62500), (2**62, 2**20)])
def test_documents_are_cut_into_what_the_tokens_need(tokens: int | None, prompts: int) -> None:
    assert DataOptions((PROMPTS,), n_tokens=tokens, new_tokens=64).n_from_documents == prompts


def test_two_runs_with_one_seed_give_one_head(tiny: TinyFiles, tmp_path: Path) -> None:
    target = tiny.target("qwen3-chain")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(options(target, tmp_path / name, seed=seed))
    one, again, other = (weights(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    assert one != other


def test_a_run_that_is_broken_off_goes_on(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny.target("qwen3-chain")
    train(options(target, tmp_path / "whole", steps=6))
    step, done = Loop._step, []

    def interrupted(self: Loop) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(options(target, tmp_path / "broken", steps=6))
    _, said = train(options(target, tmp_path / "broken", steps=6))
    assert any("goes on after step 3" in line for line in said)
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    result, _ = train(options(target, tmp_path / "broken", steps=6))  # run again: nothing is left to do
    assert [row.step for row in result.figures.held_out] == [0, 6]
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")


def test_one_text_is_learnt_to_the_last_token(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random target's text: nothing but learning it by heart foresees it. So the last head is kept, not the
    best on another text.
    """
    evaluate = held_out.evaluate
    monkeypatch.setattr(
        held_out, "evaluate", lambda *given: replace(evaluate(*given), path_length=1.0 + given[3])
    )
    target, out = tiny.target("qwen3"), tmp_path / "out"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def fibonacci(n):\nimport argparse\n")
    data = DataOptions((prompts,), held_out=0.5, n_tokens=40, new_tokens=40, greedy_share=1.0)
    made = options(target, out, steps=250, data=data, objective=ObjectiveSettings(teacher=0.0))
    train(replace(made, batch=BatchSettings(1, 24), loop=replace(made.loop, patience=0, parts=1)))
    with pydflash2.load(target, out / "head.gguf", context_size=128) as engine:
        (prompt,) = run_prompts(out)
        assert engine.block_size is not None
        accepted, _ = rounds(engine, prompt, 36, engine.block_size - 1)
    assert len(accepted) > 2
    assert set(accepted[:-1]) == {7}  # the last round has fewer tokens left to find


def run_prompts(out: Path) -> list[list[int]]:
    """The prompts of the training texts in a folder."""
    from pydflash2.train.texts import Texts, _read_shard

    shards = sorted((out / "data" / "texts").glob("texts-*.npz"))
    texts = Texts.of([outcome for shard in shards for outcome in _read_shard(shard)])
    return [text.tokens[: text.n_prompt].tolist() for text in texts.training]


def test_losses_that_are_no_numbers(tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, out = tiny.target("qwen3-chain"), tmp_path / "out"
    train(options(target, out, steps=2))
    kept = weights(out)
    step = Loop._step

    def broken(self: Loop) -> None:
        with torch.no_grad():
            self.head.fc.weight.fill_(float("nan"))
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", broken)
        with pytest.raises(TrainingError, match=r"are no numbers.*lower --rate"):
            train(options(target, out, steps=40))
    assert weights(out) == kept  # and the checkpoint is from before
    result, _ = train(options(target, out, steps=4))
    assert np.isfinite(result.figures.held_out[-1].unary_loss)


def test_a_plan_the_machine_can_not_carry_out(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "memory_of", lambda device: 1000)
    with pytest.raises(OutOfMemoryError, match=r"memory [\d.]+ MB .* but cpu has 1 kB.*--anchors"):
        train(options(tiny.target("qwen3-chain"), tmp_path / "out"))


def test_a_folder_is_for_one_run(tiny: TinyFiles, tmp_path: Path) -> None:
    from filelock import FileLock

    target, out = tiny.target("qwen3-chain"), tmp_path / "out"
    (out / "training").mkdir(parents=True)
    with FileLock(out / "training" / "lock"), pytest.raises(EngineBusyError, match="another pydflash2 train"):
        train(options(target, out))


def test_going_on_from_a_head_keeps_it(tiny: TinyFiles, tmp_path: Path) -> None:
    """Before the first step the trained head is the one that --init names, on a shortlist too."""
    target, first = tiny.target("qwen3-chain"), tmp_path / "first"
    train(options(target, first))
    made = options(target, tmp_path / "second", geometry={}, init=first)
    # A run whose steps change nothing: of no rate.
    still = replace(made.optimiser, rate=1e-12, muon_rate=1e-12, weight_decay=0.0)
    shortlist = ObjectiveSettings(shortlist=30, negatives=20)
    train(replace(made, optimiser=still, objective=shortlist, loop=replace(made.loop, steps=1)))
    before, after = (
        {tensor.name: tensor for tensor in read_checkpoint(folder)} for folder in (first, tmp_path / "second")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        one, other = (
            np.concatenate([piece.ravel() for piece in stored.pieces(1 << 20)])
            for stored in (tensor, after[name])
        )
        assert other == pytest.approx(one, rel=1e-5, abs=1e-6), name


def test_the_command(tiny: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = tiny.target("qwen3-chain"), tmp_path / "out"
    command = ["train", "--target", target, "--prompts", PROMPTS, "--out", out, "--steps", 3]
    command += ["--tokens", 600, "--new-tokens", 48, "--threads", 1, "--json", "--license", "mit"]
    assert cli.main([str(part) for part in command]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert 'license: "mit"' in (out / "README.md").read_text()
    assert cli.main(["doctor", str(target), str(out / "head.gguf")]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--minutes", "1", "--steps", "3"], "contradict"),
        (["--steps", "0"], "steps is 0"),
        (["--minutes", "-1"], "minutes is -1"),
        (["--steps", "3", "--window", "9", "--full-attention"], "contradict"),
        (["--steps", "3", "--heads", "3", "--kv-heads", "2"], "3 heads"),
        (["--steps", "3", "--taps", "1,99"], "99"),
        (["--steps", "3", "--teacher", "2"], "teacher is 2"),
        (["--steps", "3", "--prompts", "nowhere"], "nowhere"),
        (["--steps", "3", "--device", "nothing"], "nothing"),
    ],
)
def test_bad_arguments(
    given: list[str], said: str, tiny: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tiny.target("qwen3-chain"))
    command = ["train", "--target", target, "--prompts", str(PROMPTS), "--out", str(tmp_path / "out"), *given]
    assert cli.main(command) in (1, 2)
    assert said in capsys.readouterr().err
