"""The CPU's attention kernel: close to one in doubles, and the same bits for a row whatever is beside it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
ATTENTION = FOLDER / "attention"

pytestmark = pytest.mark.skipif(
    not ATTENTION.exists(),
    reason=f"no {ATTENTION}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build attention",
)


def kernel_runs() -> bool:
    """Whether this machine has the kernel at all; elsewhere ggml's attention runs, which varies with rows."""
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and {"avx2", "fma", "f16c"} <= set(cpu.read_text().split())


@pytest.mark.skipif(not kernel_runs(), reason="no AVX2, or not Linux: ggml's attention runs")
def test_attention() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYDFLASH2_CPU_KERNELS"}
    done = subprocess.run([ATTENTION], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^.+: \d+ cases, error ", done.stdout, re.M)) == 6
    assert len(re.findall(r"^bits.+: \d+ comparisons, 0 differ$", done.stdout, re.M)) == 7
    assert done.stdout.count("kept to the rows that see them") == 3


@pytest.mark.skipif(not kernel_runs(), reason="no AVX2, or not Linux: ggml's attention runs")
def test_the_kernel_can_be_switched_off() -> None:
    environment = {**os.environ, "PYDFLASH2_CPU_KERNELS": "off"}
    done = subprocess.run([ATTENTION, "bits"], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 1, done.stdout  # ggml's own: bits of a row vary with rows and cells
