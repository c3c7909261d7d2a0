"""Products of the CPU of our own: each row has the bits of ggml's dot product, whatever stands beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
PRODUCTS = FOLDER / "products"
REFUSED = 2

pytestmark = pytest.mark.skipif(
    not PRODUCTS.exists(),
    reason=f"no {PRODUCTS}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build products",
)


@pytest.mark.parametrize("weights", ["q8_0", "q5_0", "q4_K", "q5_K", "q6_K"])
def test_a_row_alike(weights: str) -> None:
    run = subprocess.run([PRODUCTS, weights], capture_output=True, text=True, timeout=120, check=False)
    if run.returncode == REFUSED:
        pytest.skip(f"no product of {weights} for this processor")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("weights", ["q8_0", "q5_0"])
def test_many_rows(weights: str) -> None:
    run = subprocess.run(
        [PRODUCTS, weights, "many"], capture_output=True, text=True, timeout=120, check=False
    )
    if run.returncode == REFUSED:
        pytest.skip(f"no product of {weights} for this processor")
    assert run.returncode == 0, run.stdout + run.stderr


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDFLASH2_CPU_KERNELS", "off")
    assert subprocess.run([PRODUCTS, "q8_0"], timeout=120, check=False).returncode == REFUSED
