#!/usr/bin/env python3
"""Make the source distribution, which carries the pinned llama.cpp and so builds without fetching it.

    python scripts/make_sdist.py [-o dist]

Needs the package `build` (pip install build).
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--outdir", type=Path, default=ROOT / "dist", help="folder for the archive")
    args = parser.parse_args()

    carried = ROOT / "third_party" / "llama.cpp"
    shutil.rmtree(carried, ignore_errors=True)  # whatever lay there may be of another pin
    try:
        subprocess.run([sys.executable, ROOT / "cmake" / "fetch_llama_cpp.py", carried], check=True)
        subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", args.outdir, ROOT], check=True)
    finally:
        # left behind, it would stand before the cache in every later build of this checkout
        shutil.rmtree(carried, ignore_errors=True)


if __name__ == "__main__":
    main()
