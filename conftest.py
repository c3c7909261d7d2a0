"""The tests run against the installed package.

`python -m pytest` puts this folder first on sys.path, and there the source folder pydflash2/, which lacks the
compiled part and pydflash2.convert, would stand before the installed package.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.resolve()

sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
if importlib.util.find_spec("pydflash2") is None:
    raise pytest.UsageError("pydflash2 is not installed: run `pip install '.[test]'` first")
