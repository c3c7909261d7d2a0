"""A short scripts/soak.py: an engine that answers hundreds of mixed requests keeps nothing of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiny.files import TinyFiles

SOAK = Path(__file__).parent.parent / "scripts" / "soak.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat(tiny: TinyFiles) -> None:
    target, head = tiny.pair("chain")
    command = [sys.executable, SOAK, "-m", target, "-d", head, "--requests", "1600", "--warm-up", "800"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert re.search(r"resident memory [+-]\d\.\d%, file descriptors \+0$", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
