# The compiled module (cffi, API mode). Its types are those of csrc/pydflash2.h.
from typing import Any

ffi: Any
lib: Any
