"""Which compiled module is loaded: pydflash2's own, or a plug-in's; and what is said where none can be."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pydflash2
from pydflash2 import _native, cpu, native
from pydflash2.cli import main

MODULE = Path(_native.__file__)
RECORD = MODULE.with_name("_native.json")
ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="another system isn't asked about every feature"
)

WHICH = """
from pydflash2 import library, native
assert native.devices()
print(library.loaded.backend, library.loaded.path)
"""

PlugIn = Callable[..., Path]


@pytest.fixture
def plug_in(tmp_path: Path) -> PlugIn:
    """Installs a plug-in into tmp_path: this very module under another name, unless told otherwise."""

    def install(
        backend: str,
        version: str = pydflash2.__version__,
        cpu_features: tuple[str, ...] = (),
        module: bytes | None = None,
    ) -> Path:
        folder = tmp_path / f"pydflash2_{backend}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        if module is None:
            shutil.copy(MODULE, folder)
            libraries = (
                MODULE.parent.parent / "pydflash2.libs"
            )  # of a repaired wheel, whose modules look there
            if libraries.is_dir() and not (tmp_path / libraries.name).exists():
                shutil.copytree(libraries, tmp_path / libraries.name)
        else:
            (folder / MODULE.name).write_bytes(module)
        record = json.loads(RECORD.read_bytes())
        record["version"] = version
        record["cpu_features"] += cpu_features
        (folder / "_native.json").write_text(json.dumps(record))
        about = tmp_path / f"pydflash2_{backend}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: pydflash2-{backend}\nVersion: {version}\n"
        )
        (about / "entry_points.txt").write_text(f"[pydflash2.backends]\n{backend} = pydflash2_{backend}\n")
        return folder / MODULE.name

    return install


def run(folder: Path, backend: str = "", code: str = WHICH) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYDFLASH2_BACKEND": backend}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment
    )


def loaded(folder: Path, backend: str = "") -> tuple[str, Path]:
    done = run(folder, backend)
    assert (done.returncode, done.stderr) == (0, "")
    name, path = done.stdout.strip().split(" ", 1)
    return name, Path(path)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


# ---- which ------------------------------------------------------------------------------------------------


def test_a_plug_in_is_found_and_its_module_used(plug_in: PlugIn, tmp_path: Path) -> None:
    module = plug_in("vulkan")
    assert loaded(tmp_path) == ("vulkan", module)
    said = run(tmp_path, code="from pydflash2 import _native, native; print(_native.__file__)").stdout
    assert said.strip() == str(module)  # everybody gets the one


def test_of_two_plug_ins_the_documented_order_decides(plug_in: PlugIn, tmp_path: Path) -> None:
    modules = {backend: plug_in(backend) for backend in ("another", "vulkan", "cuda12")}
    assert loaded(tmp_path) == ("cuda12", modules["cuda12"])
    shutil.rmtree(tmp_path / "pydflash2_cuda12")
    shutil.rmtree(next(tmp_path.glob("pydflash2_cuda12-*.dist-info")))
    assert loaded(tmp_path) == ("vulkan", modules["vulkan"])


def test_the_environment_chooses(plug_in: PlugIn, tmp_path: Path) -> None:
    modules = {backend: plug_in(backend) for backend in ("vulkan", "cuda12")}
    assert loaded(tmp_path, "vulkan") == ("vulkan", modules["vulkan"])
    own = native.library.describe()["backend"]
    assert loaded(tmp_path, own) == (own, MODULE)


def test_what_is_not_installed_cannot_be_chosen(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("vulkan")
    own = native.library.describe()["backend"]
    line = last_line(run(tmp_path, "cuda12"))
    assert line.startswith("pydflash2.errors.NativeModuleError: PYDFLASH2_BACKEND is 'cuda12'")
    assert f"only vulkan, {own}: pip install 'pydflash2[cuda12]'" in line
    assert last_line(run(tmp_path, "tpu")).endswith("name another, or unset it")


def test_an_extra_asks_for_the_same_version() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r'^(\w+) = \["pydflash2-(\w+)==(.*)"\]', project, re.MULTILINE)
    assert {extra for extra, _, _ in extras} >= set(native.library.PREFERRED)
    assert all((package, version) == (extra, pydflash2.__version__) for extra, package, version in extras)


# ---- versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["", "vulkan"])
def test_a_plug_in_of_another_version_is_refused(backend: str, plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("vulkan", version="0.0.9")
    line = last_line(run(tmp_path, backend))
    assert f"pydflash2-vulkan is of version 0.0.9, pydflash2 of {pydflash2.__version__}" in line
    assert line.endswith(f"pip install --force-reinstall --no-deps pydflash2-vulkan=={pydflash2.__version__}")
    assert loaded(tmp_path, native.library.describe()["backend"])[1] == MODULE  # it isn't looked at


@pytest.mark.parametrize("damage", ["no module", "no record", "half a record"])
def test_a_damaged_plug_in_is_to_be_installed_anew(damage: str, plug_in: PlugIn, tmp_path: Path) -> None:
    module = plug_in("vulkan")
    if damage == "no module":
        module.unlink()
    elif damage == "no record":
        module.with_name("_native.json").unlink()
    else:
        module.with_name("_native.json").write_text('{"version": ')
    line = last_line(run(tmp_path))
    assert line.startswith("pydflash2.errors.NativeModuleError: ")
    assert "pip install --force-reinstall --no-deps pydflash2-vulkan==" in line


# ---- what can't be run here -------------------------------------------------------------------------------


def test_a_plug_in_that_cannot_be_loaded_is_passed_over_aloud(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("vulkan", module=b"no library")
    done = run(tmp_path)
    own = native.library.describe()["backend"]
    assert done.stdout.strip() == f"{own} {MODULE}"
    assert "RuntimeWarning: the compiled module of pydflash2-vulkan can't be loaded (" in done.stderr
    assert f"The back end {own} is used instead of vulkan; PYDFLASH2_BACKEND={own} " in done.stderr


def test_a_plug_in_that_was_asked_for_must_load(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("vulkan", module=b"no library")
    assert "the compiled module of pydflash2-vulkan can't be loaded (" in last_line(run(tmp_path, "vulkan"))


def test_the_next_plug_in_is_tried(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("cuda12", module=b"no library")
    module = plug_in("vulkan")
    done = run(tmp_path)
    assert done.stdout.strip() == f"vulkan {module}"
    assert "The back end vulkan is used instead of cuda12" in done.stderr


@ON_LINUX
def test_a_plug_in_for_another_cpu_is_not_touched(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("vulkan", cpu_features=("avx9000",), module=b"no library")  # which loading it would say
    line = last_line(run(tmp_path, "vulkan"))
    assert "this CPU has no avx9000, which the compiled module of pydflash2-vulkan needs: build" in line
    done = run(tmp_path)
    assert "this CPU has no avx9000" in done.stderr and str(MODULE) in done.stdout


@ON_LINUX
def test_our_own_module_for_another_cpu_is_not_touched(tmp_path: Path) -> None:
    source = Path(pydflash2.__file__).parent
    copy = tmp_path / "pydflash2"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("_native*", "demo", "__pycache__"))
    (copy / MODULE.name).write_bytes(b"no library")
    record = json.loads(RECORD.read_bytes())
    record["cpu_features"] += ["avx9000", "fma"]
    (copy / "_native.json").write_text(json.dumps(record))
    code = """
try:
    import pydflash2
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = run(tmp_path, code=code).stdout
    assert said.startswith(
        "NativeModuleError this CPU has no avx9000, which the compiled module of pydflash2 "
    )
    assert said.endswith("pip install --no-binary pydflash2 pydflash2\n")


def test_the_source_folder_is_not_the_package(tmp_path: Path) -> None:
    source = Path(pydflash2.__file__).parent
    ignored = shutil.ignore_patterns("_native*", "demo", "__pycache__")
    shutil.copytree(source, tmp_path / "pydflash2", ignore=ignored)
    line = last_line(run(tmp_path, code="import pydflash2"))
    assert line.startswith("pydflash2.errors.NativeModuleError: the compiled part of pydflash2 is not in ")


# ---- CPU features -----------------------------------------------------------------------------------------


def test_features_are_read_from_cpuinfo() -> None:
    x86 = "processor\t: 0\nmodel name\t: avx9000 inside\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\n"
    assert cpu.features_listed(x86) == {"fpu", "avx2", "fma"}
    assert cpu.features_listed("processor\t: 0\nFeatures\t: fp asimd asimddp\n") == {"fp", "asimd", "asimddp"}
    assert cpu.features_listed("processor: 0\n") == set()


@ON_LINUX
@pytest.mark.parametrize(
    "cpuinfo, missing", [("flags : avx avx2\n", ["fma"]), ("nothing is said\n", []), (None, [])]
)
def test_only_what_is_known_to_be_missing_is(
    cpuinfo: str | None, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(self: Path, **_: object) -> str:
        assert str(self) == "/proc/cpuinfo"
        if cpuinfo is None:
            raise PermissionError
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read_text)
    assert cpu.missing_features(["avx2", "fma"]) == missing


@ON_LINUX
@pytest.mark.parametrize("kernel, missing", [("5.10.0-30-amd64", ["fma"]), ("6.1.0", ["fma", "avx_vnni"])])
def test_an_old_kernel_is_not_asked_about_new_features(
    kernel: str, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: kernel)
    monkeypatch.setattr(cpu, "features_listed", lambda _: {"avx2"})
    assert cpu.missing_features(["avx2", "fma", "avx_vnni"]) == missing


def test_this_module_runs_here() -> None:
    record = json.loads(RECORD.read_bytes())
    assert record["version"] == pydflash2.__version__
    assert record["llama_cpp"] == native.llama_cpp_pin()
    assert {device["backend"].lower() for device in native.devices()} <= {"mtl", *record["backends"]}
    assert cpu.missing_features(record["cpu_features"]) == []


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features of x86")
def test_the_record_says_what_ggml_was_compiled_for() -> None:
    """ggml's own line comes from the macros its kernels were compiled with."""
    names = {"pni": "SSE3", "ssse3": "SSSE3", "avx": "AVX", "avx2": "AVX2", "f16c": "F16C", "fma": "FMA"}
    names |= {"bmi2": "BMI2", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512", "avx512vbmi": "AVX512_VBMI"}
    names |= {"avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16"}
    compiled_for = json.loads(RECORD.read_bytes())["cpu_features"]
    info = native.system_info()
    if sys.platform == "win32":  # where the record only holds what the system can be asked about
        names = {name: names[name] for name in ("avx", "avx2", "avx512f")}
    assert {name: name in compiled_for for name in names} == {
        name: f" {ggml} = 1 " in info for name, ggml in names.items()
    }


# ---- doctor -----------------------------------------------------------------------------------------------


def test_doctor_says_which_module_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["library"]
    assert said["path"] == str(MODULE)
    assert said["cpu_features"] == json.loads(RECORD.read_bytes())["cpu_features"]
    assert main(["doctor"]) == 0
    assert f"module       {said['backend']}, of pydflash2: {MODULE}\n" in capsys.readouterr().out


def test_doctor_says_what_other_packages_bring(plug_in: PlugIn, tmp_path: Path) -> None:
    plug_in("cuda12", module=b"no library")
    plug_in("vulkan")
    done = run(tmp_path, code="from pydflash2.cli import main; main(['doctor'])")
    assert f"module       vulkan, of pydflash2-vulkan: {tmp_path}" in done.stdout
    assert "plug-in      cuda12: the compiled module of pydflash2-cuda12 can't be loaded (" in done.stdout
    assert "plug-in      vulkan\n" in done.stdout


# ---- threads ----------------------------------------------------------------------------------------------

WAITING = """
import os
before = dict(os.environ)
import pydflash2
assert dict(os.environ) == before
"""


@pytest.mark.skipif(
    sys.platform != "linux" or "openmp" not in native.system_info().lower(), reason="no OpenMP of GCC's here"
)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "0"),
        ({"GOMP_SPINCOUNT": "777"}, "777"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"OMP_WAIT_POLICY": "active"}, "30000000000"),
    ],
)
def test_idle_threads_sleep_unless_the_user_says_otherwise(
    settings: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libgomp prints how long they spin; the environment stays as it was."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"OMP_DISPLAY_ENV": "verbose", **settings}.items():
        monkeypatch.setenv(name, value)
    done = run(tmp_path, code=WAITING)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr) == [expected]
