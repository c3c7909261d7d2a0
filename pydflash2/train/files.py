"""Files that are whole or not there, whenever the process is killed or the disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_beside(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Lets `write` fill a file beside `path`, then renames it. What fails leaves nothing behind.

    Raises OSError, on a full disk with what to do.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"the disk is full: {path.name} can't be written to {path.parent}. Free space there and run the "
            "same again: it goes on from what is there",
        ) from error
    finally:
        with suppress(OSError):  # renamed, or never begun
            part.unlink()


def remove_parts(folder: Path) -> None:
    """Removes what a killed process had begun."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            part.unlink()
