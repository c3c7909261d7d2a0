"""DFlash 2 speculative decoding on GGUF models: the target's own text, several times sooner.

>>> import pydflash2
>>> with pydflash2.load("target.gguf", head="head.gguf") as engine:
...     print(engine.generate("def quicksort(", max_tokens=200).text)
"""

import logging
from importlib.metadata import version

from pydflash2.engine import Engine
from pydflash2.errors import (
    BackendUnavailableError,
    ContextOverflowError,
    EngineBusyError,
    EngineClosedError,
    HeadFormatError,
    HeadMismatchError,
    ModelFileError,
    NativeError,
    NativeModuleError,
    OutOfMemoryError,
    PyDFlash2Error,
)
from pydflash2.loading import load
from pydflash2.results import Draft, Piece, Result, Stats, TokenLogprob, Verdict

__version__ = version("pydflash2")

__all__ = [
    "BackendUnavailableError",
    "ContextOverflowError",
    "Draft",
    "Engine",
    "EngineBusyError",
    "EngineClosedError",
    "HeadFormatError",
    "HeadMismatchError",
    "ModelFileError",
    "NativeError",
    "NativeModuleError",
    "OutOfMemoryError",
    "Piece",
    "PyDFlash2Error",
    "Result",
    "Stats",
    "TokenLogprob",
    "Verdict",
    "__version__",
    "load",
]

# llama.cpp's log goes to this logger and stays unseen until the program asks for it.
logging.getLogger("pydflash2").addHandler(logging.NullHandler())
