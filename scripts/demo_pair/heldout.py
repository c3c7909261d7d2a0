"""The committed list of files that nothing is trained on."""

from __future__ import annotations

from pathlib import Path

HELDOUT_LIST = Path(__file__).with_name("heldout.txt")


def heldout_names() -> list[str]:
    lines = HELDOUT_LIST.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
