"""What is set on CMake's command line reaches llama.cpp's own build, whatever CMake's version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CMAKE = shutil.which("cmake")
MODULES = Path(__file__).resolve().parents[1] / "cmake"

PROJECT = f"""
cmake_minimum_required(VERSION 3.21...3.31)
include({MODULES.as_posix()}/GivenSettings.cmake)
project(example LANGUAGES NONE)
option(OF_THE_PROJECT "A switch" ON)
pd2_given_settings(settings)
file(WRITE ${{CMAKE_BINARY_DIR}}/settings.cmake "${{settings}}")
"""


def configure(folder: Path, *given: str) -> set[str]:
    assert CMAKE is not None
    folder.joinpath("CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    subprocess.run([CMAKE, "-S", folder, "-B", folder / "b", *given], check=True, capture_output=True)
    return set(folder.joinpath("b", "settings.cmake").read_text(encoding="utf-8").splitlines())


@pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")
def test_settings_are_passed_on(tmp_path: Path) -> None:
    cache = tmp_path / "cache.cmake"  # as scikit-build-core writes it
    cache.write_text('set(CMAKE_PREFIX_PATH [==[/a/folder]==] CACHE PATH "" FORCE)\n', encoding="utf-8")
    ours = (
        f"-C{cache}",
        "-DPYDFLASH2_WERROR=ON",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_INSTALL_PREFIX=away",
    )
    found = configure(tmp_path, "-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=89-real;90", *ours)
    cuda = {
        'set(GGML_CUDA [==[ON]==] CACHE STRING "")',
        'set(CMAKE_CUDA_ARCHITECTURES [==[89-real;90]==] CACHE STRING "")',
    }
    assert found == cuda
    # In the same folder: what was given before, and what is new.
    more = configure(tmp_path, "-DGGML_VULKAN:BOOL=ON")
    assert more - cuda == {'set(GGML_VULKAN [==[ON]==] CACHE BOOL "")'} and more > cuda
