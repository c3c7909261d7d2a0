"""Writes every tiny target: `cd tests && python -m tiny OUT [f32|f16|bf16|q8_0|q4_0]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tiny import targets

if len(sys.argv) not in (2, 3):
    raise SystemExit(__doc__)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
kind = sys.argv[2] if len(sys.argv) == 3 else "f32"
for name, target in targets.TARGETS.items():
    print(targets.write(target, folder / f"{name}-{kind}.gguf", kind))
