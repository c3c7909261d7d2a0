"""Which compiled module is loaded, and whether this machine can run it: found out before it is.

pydflash2 has one of its own. Packages of the same version bring others, with back ends of llama.cpp's
(`pip install "pydflash2[vulkan]"`), and the first that loads becomes `pydflash2._native`. Beside each lies
`_native.json`, in which its build wrote down what it was compiled for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pydflash2 import cpu
from pydflash2.errors import NativeModuleError

VARIABLE = "PYDFLASH2_BACKEND"  # names the back end to load, and no other
ENTRY_POINTS = "pydflash2.backends"  # back end = the package whose _native has it
PREFERRED = ("cuda13", "cuda12", "vulkan")  # our extras, before others, which go by their names
_MODULE = "pydflash2._native"

_ADVICE = {  # part of the loader's message: what to do about it
    "libgomp": "OpenMP's library is missing: install it (Debian, Ubuntu: apt-get install libgomp1)",
    "libvulkan": "Vulkan's loader is missing: install it (Debian, Ubuntu: apt-get install libvulkan1)",
    "libcuda.so": "NVIDIA's driver is missing: install it",
    "libcudart": "CUDA's runtime is missing: install the version that is named",
    "libcublas": "CUDA's cuBLAS is missing: install the version that is named",
}


class Library(NamedTuple):
    """A compiled module that is installed, and what its build wrote down."""

    backend: str  # what VARIABLE calls it
    package: str  # what pip calls it
    path: Path
    backends: list[str]  # ggml's
    cpu_features: list[str]  # that it was compiled for


loaded: Library | None = None
passed_over: dict[str, str] = {}  # back ends that are installed and can't be loaded: why


def load() -> ModuleType:
    """Loads the module to use and makes it `pydflash2._native`. NativeModuleError where there is none."""
    module, library = _first_that_loads(os.environ.get(VARIABLE))
    for name, why in passed_over.items():
        warnings.warn(
            f"{why}. The back end {library.backend} is used instead of {name}; {VARIABLE}={library.backend} "
            "asks for that and ends this warning",
            RuntimeWarning,
            stacklevel=2,
        )
    return module


def _first_that_loads(asked: str | None) -> tuple[ModuleType, Library]:
    plug_ins = _plug_ins()
    for name, point in plug_ins.items():
        if asked and asked != name:
            continue
        library = _plug_in(point)  # damaged, or of another version: that is an error in any case
        try:
            return _load(library), library
        except NativeModuleError as error:
            if asked:
                raise
            passed_over[name] = str(error)
    own = _own()
    if asked and asked != own.backend:
        installed = ", ".join([*plug_ins, own.backend])
        raise NativeModuleError(
            f"{VARIABLE} is {asked!r}, and no such back end is installed, only {installed}: "
            + (f"pip install 'pydflash2[{asked}]'" if asked in PREFERRED else "name another, or unset it")
        )
    return _load(own), own


def describe() -> dict[str, Any]:
    """What was loaded, what its CPU must have, and what other packages bring; for `pydflash2 doctor`."""
    assert loaded is not None  # nobody gets here without native.py
    return {
        "backend": loaded.backend,
        "package": loaded.package,
        "path": str(loaded.path),
        "backends": loaded.backends,
        "cpu_features": loaded.cpu_features,
        "plug_ins": {name: passed_over.get(name) for name in _plug_ins()},
    }


def _plug_ins() -> dict[str, EntryPoint]:
    """By back end, those to try first in front."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    rank = {name: place for place, name in enumerate(PREFERRED)}
    return {name: found[name] for name in sorted(found, key=lambda name: (rank.get(name, len(rank)), name))}


def _plug_in(point: EntryPoint) -> Library:
    package = point.dist.name if point.dist is not None else point.value
    found = importlib.util.find_spec(point.value)
    folders = found.submodule_search_locations if found is not None else None
    spec = PathFinder.find_spec(f"{point.value}._native", folders) if folders else None
    return _library(point.name, package, spec)


def _own() -> Library:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None:
        raise NativeModuleError(
            f"the compiled part of pydflash2 is not in {Path(__file__).parent}: if that is the source "
            "folder, Python took it for the package: change to another one, or run 'pip install .'"
        )
    own = _library("", "pydflash2", spec)
    devices = [name for name in own.backends if name not in ("cpu", "blas", "rpc")]
    return own._replace(backend="+".join(devices) or "cpu")


def _library(backend: str, package: str, spec: ModuleSpec | None) -> Library:
    """Reads what the build wrote down, and compares versions."""
    expected = version("pydflash2")
    again = f"pip install --force-reinstall --no-deps {package}=={expected}"
    if spec is None or spec.origin is None:
        raise NativeModuleError(f"{package} holds no compiled module: install it anew: {again}")
    path = Path(spec.origin)
    about = path.with_name("_native.json")
    try:
        record = json.loads(about.read_bytes())
        found = record["version"]
        library = Library(backend, package, path, record["backends"], record["cpu_features"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NativeModuleError(
            f"{about} can't be read ({error!r}): install {package} anew: {again}"
        ) from error
    if found != expected:
        raise NativeModuleError(
            f"the compiled module of {package} is of version {found}, pydflash2 of {expected}, and they only "
            f"work together when these are the same: {again}"
        )
    return library


@contextmanager
def _idle_threads_that_sleep() -> Iterator[None]:
    """libgomp, which reads this when it is loaded, else lets them spin on cores that others want. In a graph
    they wait for one another in csrc/target/openmp_barrier.cpp; what is left is the time between graphs.
    """
    name = "GOMP_SPINCOUNT"
    if sys.platform != "linux" or name in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]


def _load(library: Library) -> ModuleType:
    """NativeModuleError where this machine can't run it."""
    global loaded
    missing = cpu.missing_features(library.cpu_features)
    if missing:
        raise NativeModuleError(
            f"this CPU has no {', '.join(missing)}, which the compiled module of {library.package} needs: "
            "build pydflash2 on this machine: pip install --no-binary pydflash2 pydflash2"
        )
    spec = importlib.util.spec_from_file_location(_MODULE, library.path)
    assert spec is not None and spec.loader is not None  # an extension's file name
    try:
        with _idle_threads_that_sleep():
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except ImportError as error:
        advice = [what for part, what in _ADVICE.items() if part in str(error)]
        raise NativeModuleError(
            f"the compiled module of {library.package} can't be loaded ({error}); "
            + (advice[0] if advice else f"install what it lacks, or {library.package} anew")
        ) from error
    sys.modules[_MODULE] = module
    loaded = library
    return module
