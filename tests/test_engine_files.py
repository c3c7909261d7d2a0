"""Which files `load` takes: names, the head beside a target, and what it says of missing ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pydflash2
from pydflash2 import model_files
from tiny.files import TinyFiles


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Qwen3-4B"),
        ("Qwen3-4B.Q8_0.gguf", "Qwen3-4B"),
        ("dflash-Qwen3-4B-BF16.gguf", "dflash-Qwen3-4B"),
        ("gemma-3-270m-it-F16.gguf", "gemma-3-270m-it"),
        ("Qwen3-30B-A3B-UD-IQ2_XXS-00001-of-00003.gguf", "Qwen3-30B-A3B"),
        ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b"),
        ("Qwen.gguf", "Qwen"),
    ],
)
def test_a_models_name(name: str, model: str) -> None:
    assert model_files.model_name(Path(name)) == model


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_the_head_beside_a_target(tmp_path: Path) -> None:
    touch(tmp_path, "Qwen3-4B-Q4_K_M.gguf", "Qwen3-4B-Instruct-Q8_0.gguf", "other-F16.gguf")
    touch(tmp_path, "dflash-Qwen3-4B-BF16.gguf", "dflash-qwen3-4b-instruct.gguf", "mmproj-Qwen3-4B-F16.gguf")
    beside = {
        "Qwen3-4B-Q4_K_M.gguf": "dflash-Qwen3-4B-BF16.gguf",
        "Qwen3-4B-Instruct-Q8_0.gguf": "dflash-qwen3-4b-instruct.gguf",
        "other-F16.gguf": None,
    }
    for target, head in beside.items():
        assert model_files.head_beside(tmp_path / target) == (head and tmp_path / head)


def test_two_heads_beside_a_target(tmp_path: Path) -> None:
    touch(tmp_path, "Qwen3-4B-Q4_K_M.gguf", "dflash-Qwen3-4B-BF16.gguf", "dflash-Qwen3-4B-Q8_0.gguf")
    with pytest.raises(
        pydflash2.ModelFileError,
        match=r"head: 2 heads lie beside Qwen3-4B-Q4_K_M.gguf: dflash-Qwen3-4B-BF16.gguf, "
        r"dflash-Qwen3-4B-Q8_0.gguf; name the one to use",
    ):
        pydflash2.load(tmp_path / "Qwen3-4B-Q4_K_M.gguf")


def test_the_head_beside_a_target_is_loaded(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = tiny.pair("chain")
    shutil.copy(target, tmp_path / "tiny-F32.gguf")
    shutil.copy(head, tmp_path / "dflash-tiny-F32.gguf")
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-F32.gguf", Path("tiny-F32.gguf")):
        with pydflash2.load(name, n_threads=1) as engine:
            assert repr(engine) == (
                "<pydflash2.Engine target='tiny-F32.gguf' head='dflash-tiny-F32.gguf' context_size=1024>"
            )
            assert (engine.context_size, engine.block_size) == (1024, 8)
            assert engine.generate("the", max_tokens=5).stats.drafting == "on"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3-4B-Q4_K.gguf", r"target: no file .*Qwen3-4B-Q4_K.gguf; did you mean Qwen3-4B-Q4_K_M.gguf\?"),
        ("llama", r"target: no file .*llama; check the path \(there are: Qwen3-4B-Q4_K_M.gguf\)"),
        ("", r"target: .* is a folder; name the GGUF file in it \(there are: Qwen3-4B-Q4_K_M.gguf\)"),
        ("no/such.gguf", r"target: no file .*such.gguf: there is no folder .*no; check the path"),
    ],
)
def test_missing_files(tmp_path: Path, name: str, message: str) -> None:
    touch(tmp_path, "Qwen3-4B-Q4_K_M.gguf")
    with pytest.raises(pydflash2.ModelFileError, match=message):
        pydflash2.load(tmp_path / name)


def test_without_arguments_the_demo_pair_is_loaded() -> None:
    target, head = model_files.demo_pair()
    with pydflash2.load() as engine:
        assert repr(engine).startswith(f"<pydflash2.Engine target={target.name!r} head={head.name!r} ")
        result = engine.generate("def binary_search(", max_tokens=48, max_draft_tokens=7)
        assert result.stats.mean_acceptance_length > 2
        plain = engine.generate("def binary_search(", max_tokens=48, speculate=False)
        assert (result.text, result.tokens) == (plain.text, plain.tokens)
    with pydflash2.load(head=None) as engine:
        stats = engine.generate("import os", max_tokens=4, lookup="off").stats
        assert stats.drafting == "off: loaded with head=None"


def test_a_package_without_the_demo_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files.resources, "files", lambda package: tmp_path)
    with pytest.raises(
        pydflash2.ModelFileError,
        match=r"demo pair: there is no file .*target.gguf: install pydflash2 anew, or name a target",
    ):
        pydflash2.load()


def test_a_missing_head(tiny: TinyFiles, tmp_path: Path) -> None:
    with pytest.raises(pydflash2.ModelFileError, match=r"head: no file .*head.gguf; check the path$"):
        pydflash2.load(tiny.target("qwen3"), tmp_path / "head.gguf")
