"""The tests run against the installed package.

The source folder pydflash2/ lacks the compiled part and pydflash2.convert. `python -m pytest` puts its parent
first on sys.path, and so does `python -c` or `python -m` in a child process that a test starts here.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.resolve()

# OpenMP's idle threads, torch's and llama_oracle's, spin otherwise, and where other processes want the cores
# each barrier waits for a time slice. Read when its library is loaded, by child processes too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
if importlib.util.find_spec("pydflash2") is None:
    raise pytest.UsageError("pydflash2 is not installed: run `pip install '.[test]'` first")


@pytest.fixture(scope="session", autouse=True)
def away_from_the_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("working-folder"))
    yield
    os.chdir(before)
