"""What a training run leaves to read: figures.json, the report, the picture, the model card."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkpoints import CONFIG_2, save_checkpoint, tensors
from golden.make_convert import HERE as GOLDEN
from pydflash2 import PyDFlash2Error
from pydflash2.convert import convert
from pydflash2.gguf_file import GGUFFile
from pydflash2.train import curves
from pydflash2.train.card import Card, Terms, write_card
from pydflash2.train.figures import Figures, HeldOut, Measured, Step
from pydflash2.train.picture import write_picture
from pydflash2.train.report import write_report
from tiny.browser import read_page

TARGET = GOLDEN / "target-mrope.gguf"
N = 7  # positions


def shares(first: float) -> list[float]:
    return [first * 0.8**place for place in range(N)]


def run(n_steps: int = 300) -> Figures:
    """A run as the trainer reports it: a row every step, figures on held-out texts now and then."""
    figures = Figures(
        settings={
            "target": "target.gguf",
            "seed": 1,
            "layers": 2,
            "taps": [1, 3, 5],
            "decay": 4.0,
            "init": None,
        },
        data={
            "texts": 1200,
            "tokens": 229_000,
            "loops_dropped": {"greedy": 310, "sampled": 12},
            "seconds": 900.5,
        },
    )
    for step in range(1, n_steps + 1):
        loss = 6 / math.sqrt(step) + 1
        seconds = 3.0 * step
        figures.steps.append(Step(step, seconds, 448 * step, loss, loss / 3, 0.8, 1 - step / n_steps))
        if step % 60 == 0:
            right = shares(0.5 + step / n_steps / 4)
            row = HeldOut(step, seconds, loss + 0.2, loss / 2, right, right, shares(0.9), 1 + sum(right))
            figures.held_out.append(row)
        if step % 150 == 0:
            figures.measured.append(
                Measured(step, seconds, "held out", 16, 2.1, shares(0.6), 61.0, 50.0, 1.22, 1.9)
            )
            figures.measured.append(Measured(step, seconds, "training", 16, 3.1, shares(0.9)))
    figures.final = {"step": n_steps, "mean_acceptance_length": 2.1, "early_stop": False}
    return figures


def without_selector(figures: Figures) -> Figures:
    return replace(
        figures,
        steps=[replace(row, selector_loss=None, covered=None) for row in figures.steps],
        held_out=[
            replace(row, selector_loss=None, selector_accuracy=[], recall=[]) for row in figures.held_out
        ],
    )


# ---- figures.json ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("figures", [Figures(), run(), without_selector(run())], ids=["none", "run", "v1"])
def test_what_is_written_is_read_back(figures: Figures, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    for _ in range(2):
        figures.write(path)
        assert Figures.read(path) == figures
    assert os.listdir(tmp_path) == ["figures.json"]


def test_a_figure_that_is_no_number_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures = run()
    figures.write(path)
    before = path.read_bytes()
    figures.steps.append(replace(figures.steps[-1], unary_loss=math.nan))
    with pytest.raises(ValueError, match="nan"):
        figures.write(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["figures.json"]


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    figures = run()
    figures.back_to(170)
    assert [row.step for row in figures.steps] == list(range(1, 171))
    assert [row.step for row in figures.held_out] == [60, 120]
    assert {row.step for row in figures.measured} == {150} and figures.final == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 99}',
        '{"format": 1, "steps": [{"step": 1}]}',
        '"\\ud800',
    ],
)
def test_a_file_that_holds_something_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(PyDFlash2Error, match=r"figures\.json doesn't hold .* Remove it"):
        Figures.read(path)
    with pytest.raises(PyDFlash2Error):
        Figures.read(tmp_path / "none.json")


# ---- the report and the picture --------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_report_in_a_browser(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    file = tmp_path / "report.html"
    figures = run()
    write_report(file, "my <head> & {{ 1 + 1 }}", figures)
    assert os.listdir(tmp_path) == ["report.html"]
    found = read_page(browser, file, width, scheme)
    assert browser.find_element("tag name", "h1").text == "How my <head> & {{ 1 + 1 }} was trained"
    assert found.says == [] and found.asked == [file.as_uri()]
    assert found.page == 0 and found.wider == 0
    assert found.plots == len(curves.all_plots(figures)) == 12
    assert found.drawn >= sum(len(plot.curves) for plot in curves.all_plots(figures))  # and marks on some
    assert found.smallest >= 12
    assert (found.background_is_light, found.text_is_light) == (scheme == "light", scheme == "dark")


def test_every_figure_of_the_report_is_in_the_json(tmp_path: Path) -> None:
    figures = run()
    figures.write(tmp_path / "figures.json")
    for name, found in (("a", figures), ("b", Figures.read(tmp_path / "figures.json"))):
        write_report(tmp_path / name, "head", found)
    pages = [(tmp_path / name).read_text(encoding="utf-8") for name in ("a", "b")]
    assert len(pages[0]) == len(pages[1])  # plotly draws its elements' names
    for shown in ("229,000", "greedy 310, sampled 12", "2.10", "1.22", "61.0", "1 3 5"):
        assert f">{shown}<" in pages[0]


@pytest.mark.parametrize("n_steps", [0, 1, 60])
def test_a_run_that_has_only_begun(n_steps: int, tmp_path: Path) -> None:
    figures = run(n_steps)
    for found in (figures, without_selector(figures)):
        write_report(tmp_path / "report.html", "head", found)
        assert write_picture(tmp_path / "curves.png", found) == (n_steps > 0)
        write_card(tmp_path / "README.md", card(), found)


def test_a_head_without_a_selector_has_no_curves_of_one() -> None:
    titles = {plot.title for plot in curves.all_plots(without_selector(run()))}
    assert titles == {plot.title for plot in curves.all_plots(run())} - {
        "Selector loss",
        "Held-out selector accuracy",
        "Held-out candidate recall",
        "Covered by the candidates, training",
    }


def test_the_picture(tmp_path: Path) -> None:
    figures = run(2000)
    files = [tmp_path / name for name in ("one.png", "again.png", "other.png")]
    for file, drawn in zip(files, (figures, figures, run(60)), strict=True):
        assert write_picture(file, drawn)
    one, again, other = (file.read_bytes() for file in files)
    assert one == again != other
    assert one.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", one[16:24])
    assert len(curves.pictured(figures)) == 4  # two by two
    assert width > 900 and height > 600


# ---- the model card --------------------------------------------------------------------------------------


def card(terms: Terms = Terms(), name: str = "My head", picture: str | None = None) -> Card:  # noqa: B008
    return Card(name, GGUFFile.open(TARGET), "my head-F16.gguf", N, terms, picture)


def front_matter(path: Path) -> dict[str, Any]:
    _, text, _ = path.read_text(encoding="utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("name", ["My head", "no", "1.0", "a: b # c", '"{[|', "für 😀\u2028---\n\x7f"])
def test_the_front_matter_reaches_the_gguf(name: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "head", CONFIG_2, tensors(CONFIG_2), "BF16")
    terms = Terms("other", "Gemma terms", "https://ai.google.dev/gemma/terms", "google/gemma-3-270m")
    write_card(folder / "README.md", card(terms, name), run())
    found = front_matter(folder / "README.md")
    kept = name.replace("\u2028---\n\x7f", "---")
    assert found["model_name"] == kept and found["library_name"] == "pydflash2"
    head = GGUFFile.open(convert(folder, TARGET, tmp_path / "head.gguf"))
    assert head.text("general.name") == kept
    assert head.text("general.license") == "other"
    assert head.text("general.license.name") == "Gemma terms"
    assert head.text("general.license.link") == "https://ai.google.dev/gemma/terms"
    assert head.text("general.base_model.0.repo_url") == "https://huggingface.co/google/gemma-3-270m"
    assert b"speculative-decoding" in (head.array("general.tags") or [])


def test_without_a_licence_the_targets_terms_are_named(tmp_path: Path) -> None:
    write_card(tmp_path / "README.md", card(), Figures())
    found = front_matter(tmp_path / "README.md")
    assert (found["license"], found["license_name"]) == ("other", "terms-of-the-target")
    assert "base_model" not in found and "license_link" not in found
    text = (tmp_path / "README.md").read_text()
    assert "the target's licence applies (its file doesn't say which)" in text
    assert "## Figures" not in text
    write_card(tmp_path / "README.md", card(Terms("apache-2.0")), Figures())
    found = front_matter(tmp_path / "README.md")
    assert found["license"] == "apache-2.0" and "license_name" not in found
    with pytest.raises(ValueError, match="identifier"):
        Terms(license_name="mine")


def test_what_the_card_says(tmp_path: Path) -> None:
    figures = run()
    figures.settings["note"] = "a | b\nc"
    write_card(tmp_path / "README.md", card(picture="curves.png"), figures)
    text = (tmp_path / "README.md").read_text()
    for wanted in (
        "pydflash2 generate -m target-mrope.gguf -d 'my head-F16.gguf' -p",
        "llama-server -m target-mrope.gguf -md 'my head-F16.gguf' --spec-type",
        "--spec-draft-n-max 7\n",
        'pydflash2.load("target-mrope.gguf", head="my head-F16.gguf")',
        "| seed | 1 |",
        "| note | a \\| b c |",
        "| loops dropped | greedy 310, sampled 12 |",
        "![curves of the training](curves.png)",
    ):
        assert wanted in text
    measured = [line for line in text.splitlines() if line.startswith("| 15.0 |")]
    assert [line.split(" | ")[1:4] for line in measured] == [
        ["held out", "16", "2.10"],
        ["training", "16", "3.10"],
    ]
