"""What was installed: the extension, licences, version; and how it lives beside another llama.cpp."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cffi
import pytest

import pydflash2
from pydflash2 import _native
from tiny.files import TinyFiles

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("nm"), reason="needs nm, of the compiler's tools"
)
def test_only_the_module_entry_is_exported() -> None:
    flags = ["-gU"] if sys.platform == "darwin" else ["-D", "--defined-only"]
    lines = subprocess.run(
        ["nm", *flags, _native.__file__], check=True, capture_output=True, text=True
    ).stdout
    names = [line.split()[-1].lstrip("_") for line in lines.splitlines()]
    assert names == ["PyInit__native"]


def layout(struct: Any) -> list[tuple[str, str, int]]:
    """Name, type and offset of each field. The compiled module says `struct x` where cffi alone says `x`."""
    fields = struct.fields
    return fields and [
        (name, field.type.cname.replace("struct ", ""), field.offset) for name, field in fields
    ]


def test_the_extension_was_built_from_this_header() -> None:
    header = (ROOT / "csrc" / "pydflash2.h").read_text(encoding="utf-8")
    declared = cffi.FFI()
    declared.cdef(header.split("/* cdef: begin */")[1].split("/* cdef: end */")[0])

    functions = re.findall(r"\b(pd2_\w+)\s*\(", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL))
    assert set(functions) <= set(dir(_native.lib))
    aliases, _, _ = declared.list_types()
    assert aliases == _native.ffi.list_types()[0]
    for name in aliases:
        ours, theirs = declared.typeof(name), _native.ffi.typeof(name)
        assert ours.kind == theirs.kind
        if ours.kind == "struct" and ours.fields is not None:  # not opaque
            assert layout(ours) == layout(theirs)
        if ours.kind == "enum":
            assert ours.relements == theirs.relements


def test_licences_are_installed() -> None:
    files = importlib.metadata.files("pydflash2") or []
    texts = [file.read_text() for file in files if file.name == "LICENSE"]
    assert any("pydflash2 authors" in text for text in texts)
    assert any("The ggml authors" in text for text in texts)


def test_one_version(tmp_path: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (stated,) = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    assert pydflash2.__version__ == stated
    command = [sys.executable, "-m", "pydflash2", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert said.stdout.strip() == f"pydflash2 {stated}"


GENERATE = """
with pydflash2.load(sys.argv[1], head=sys.argv[2], n_threads=1) as engine:
    print(engine.generate("the cat sat on", max_tokens=16).tokens)
"""
LLAMA_CPP = "import llama_cpp; llama_cpp.llama_backend_init(); assert llama_cpp.llama_print_system_info()"


@pytest.mark.skipif(not importlib.util.find_spec("llama_cpp"), reason="llama-cpp-python is not installed")
@pytest.mark.parametrize(
    "imports",
    [f"import pydflash2; {LLAMA_CPP}", f"{LLAMA_CPP}; import pydflash2"],
    ids=["pydflash2 first", "llama_cpp first"],
)
def test_another_llama_cpp_may_live_in_the_process(imports: str, tiny: TinyFiles) -> None:
    target, head = tiny.pair("chain")
    command = [sys.executable, "-c", f"import sys; {imports}\n{GENERATE}", str(target), str(head)]
    both = subprocess.run(command, check=True, capture_output=True, text=True, cwd=target.parent)
    with pydflash2.load(target, head=head, n_threads=1) as engine:
        assert both.stdout.strip() == str(engine.generate("the cat sat on", max_tokens=16).tokens)
