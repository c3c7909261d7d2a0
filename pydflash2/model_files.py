"""Which files to load: what the user named, the head beside a target, or the packaged demo pair."""

from __future__ import annotations

import difflib
import os
import re
from importlib import resources
from pathlib import Path

from pydflash2 import arguments
from pydflash2.errors import ModelFileError

# What follows a model's name in a GGUF file's name: the weight type, and the part of a split file.
_SUFFIX = re.compile(
    r"([-._](UD-)?([IT]?Q\d\w*|B?F16|F32|MXFP4\w*|NVFP4\w*))?(-\d{5}-of-\d{5})?$", re.IGNORECASE
)

_HEAD_PREFIX = "dflash-"


def model_file(path: str | os.PathLike[str], role: str) -> Path:
    """The path of an existing file. `role` is "target" or "head", for the message.

    Raises ModelFileError where there is no such file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{role} is {arguments.brief(path)}: give the file's path, a str or a Path")
    try:
        file = Path(path).expanduser()
        if file.is_file():
            return file
        if file.is_dir():
            raise ModelFileError(f"{role}: {file} is a folder; name the GGUF file in it{_listing(file)}")
        if not file.parent.is_dir():
            raise ModelFileError(f"{role}: no file {file}: there is no folder {file.parent}; check the path")
        names = [other.name for other in _gguf_files(file.parent)]
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be read, ~nobody
        shown, why = arguments.brief(os.fspath(path)), getattr(error, "strerror", None) or error
        raise ModelFileError(f"{role}: no file can be reached at {shown}: {why}; check the path") from error
    close = difflib.get_close_matches(file.name, names, n=1)
    advice = f"did you mean {close[0]}?" if close else f"check the path{_listing(file.parent)}"
    raise ModelFileError(f"{role}: no file {file}; {advice}")


def head_beside(target: Path) -> Path | None:
    """The head in the target's folder named for it, dflash-<Model>[-<type>].gguf, or None.

    Raises ModelFileError where several are.
    """
    model = model_name(target).casefold()
    heads = [
        file
        for file in _gguf_files(target.parent)
        if file.name.startswith(_HEAD_PREFIX)
        and model_name(file).removeprefix(_HEAD_PREFIX).casefold() == model
    ]
    if len(heads) > 1:
        names = ", ".join(head.name for head in heads)
        raise ModelFileError(
            f"head: {len(heads)} heads lie beside {target.name}: {names}; name the one to use"
        )
    return heads[0] if heads else None


def demo_pair() -> tuple[Path, Path]:
    """The target and the head inside the package."""
    folder = Path(str(resources.files("pydflash2"))) / "demo"
    pair = folder / "target.gguf", folder / "head.gguf"
    for file in pair:
        if not file.is_file():
            raise ModelFileError(
                f"demo pair: there is no file {file}: install pydflash2 anew, or name a target"
            )
    return pair


def model_name(file: Path) -> str:
    """A GGUF file's name without its ending, its weight type and its part of a split file."""
    return _SUFFIX.sub("", file.name.removesuffix(".gguf"), count=1)


def _gguf_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gguf"))


def _listing(folder: Path) -> str:
    names = [file.name for file in _gguf_files(folder)]
    if not names:
        return ""
    return f" (there are: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
