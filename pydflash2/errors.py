"""The errors pydflash2 raises. A message says what failed, why, and one thing to do.

Bad arguments are not among them: those stay `ValueError` and `TypeError`.
"""

from __future__ import annotations


class PyDFlash2Error(Exception):
    """Base of every error that is not a bad argument."""


class ModelFileError(PyDFlash2Error):
    """A model file is missing, damaged, or of the wrong kind."""


class HeadFormatError(ModelFileError):
    """The file is a head, but not one this build can run or convert."""


class HeadMismatchError(ModelFileError):
    """The head was made for another target: taps, hidden size, vocabulary or mask token do not fit."""


class BackendUnavailableError(PyDFlash2Error):
    """A device, a back end or the compiled module itself is not there."""


class NativeModuleError(BackendUnavailableError, ImportError):
    """No compiled module can be loaded: it is missing, of another version, or this machine can't run it."""


class ContextOverflowError(PyDFlash2Error):
    """The text does not fit the engine's context. Raised before anything is computed or lost."""


class OutOfMemoryError(PyDFlash2Error):
    """Weights, caches or scratch space did not fit the memory of their device."""


class EngineBusyError(PyDFlash2Error):
    """The engine is at work for another call: another thread, or a stream that was not finished or closed."""


class EngineClosedError(PyDFlash2Error):
    """The engine was closed before this call."""


class NativeError(PyDFlash2Error):
    """llama.cpp or ggml reported a failure."""


# Keys are the values of `pd2_status` in csrc/pydflash2.h.
_CLASS_OF_STATUS: dict[int, type[Exception]] = {
    1: ValueError,
    2: ModelFileError,
    3: HeadFormatError,
    4: HeadMismatchError,
    5: BackendUnavailableError,
    6: ContextOverflowError,
    7: OutOfMemoryError,
    8: NativeError,
}


def error_from_status(status: int, message: str) -> Exception:
    """The exception for a failed native call. An unknown status is a `NativeError`."""
    return _CLASS_OF_STATUS.get(status, NativeError)(message)
