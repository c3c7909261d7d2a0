"""llama.cpp's own server in a scratch folder, of the pin and with the settings of our extension's build."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path(__file__).with_name("native")


@dataclass(frozen=True)
class Programs:
    """What was built."""

    server: Path
    round_cost: Path
    settings: str  # of CMake, as our extension's build has them


def build(work: Path, jobs: int) -> Programs:
    """Fetches, configures and builds what is not there yet. Minutes the first time, seconds after that.

    Raises SystemExit with the tool's own log where one fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    source = fetch(work / "llama.cpp")
    settings = extension_settings(work / "extension")
    folder = work / "build"
    # copied, so that CMake finds the same sources whichever checkout uses this scratch folder
    native = Path(shutil.copytree(NATIVE, work / "native", dirs_exist_ok=True))
    # llama.cpp asks git for its commit: it must not be answered by a repository around the scratch folder
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(work.resolve())}
    run(
        [
            *configure(native, folder),
            "-C",
            str(settings),
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DLLAMA_CPP_DIR={source}",
        ],
        "configure",
        work,
        environment,
    )
    targets = ["--target", "llama-server", "round_cost", "--parallel", str(jobs)]
    run(["cmake", "--build", str(folder), "--config", "Release", *targets], "build", work, environment)
    return Programs(
        find(folder, "llama-server"), find(folder, "round_cost"), settings.read_text(encoding="utf-8")
    )


def configure(source: Path, folder: Path) -> list[str]:
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    return ["cmake", *ninja, "-S", str(source), "-B", str(folder)]


def extension_settings(folder: Path) -> Path:
    """The initial cache file our extension's llama.cpp was configured with, and CMAKE_ARGS in it."""
    shutil.rmtree(folder, ignore_errors=True)  # of another checkout, or with other CMAKE_ARGS
    arguments = os.environ.get("CMAKE_ARGS", "").split()
    run(
        [*configure(ROOT, folder), f"-DPython_EXECUTABLE={sys.executable}", *arguments],
        "configuring our extension",
        folder.parent,
        os.environ,
    )
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.search(r"^llama_DIR:\w+=(.*)/lib/cmake/llama$", cache, re.MULTILINE)
    if not found:
        raise SystemExit(f"{folder}/CMakeCache.txt names no llama_DIR: cmake/LlamaCpp.cmake has changed")
    return Path(found[1]) / "settings.cmake"


def fetch(folder: Path) -> Path:
    """The complete source of the pin; pip refuses an archive with another checksum."""
    if folder.exists():
        return folder
    fetcher = fetch_module()
    fetcher.is_wanted = lambda path: True  # what our extension has no use for, too
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
        unpacked = Path(name, "llama.cpp")
        fetcher.unpack(fetcher.download(Path(name)), unpacked)
        unpacked.rename(folder)
    return folder


def fetch_module() -> Any:
    """cmake/fetch_llama_cpp.py, which knows the pin."""
    spec = importlib.util.spec_from_file_location("fetch_llama_cpp", ROOT / "cmake" / "fetch_llama_cpp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(folder: Path, program: str) -> Path:
    for path in folder.rglob(f"{program}*"):
        if (
            path.stem == program
            and path.suffix in ("", ".exe")
            and path.is_file()
            and os.access(path, os.X_OK)
        ):
            return path
    raise SystemExit(f"{program} was built, but is not below {folder}")


def run(command: list[str], what: str, work: Path, environment: os._Environ[str] | dict[str, str]) -> None:
    log = work / f"{what.replace(' ', '-')}.log"
    print(f"{what}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        with log.open("w", encoding="utf-8") as file:
            status = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment
            ).returncode
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not installed: pip install cmake ninja") from None
    if status != 0:
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise SystemExit("\n".join([*text[-40:], f"{what} failed ({status}); all of it is in {log}"]))
