"""What this machine's CPU can do, asked before compiled code runs: an instruction it lacks ends the process.

Features carry the names that Linux gives them in /proc/cpuinfo, on every system.
"""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# The kernel that lists it first: an older one, where compilers do know of it, says nothing by leaving it out.
_LISTED_SINCE = {
    "avx512_bf16": (5, 3),
    "avx512_fp16": (5, 11),
    "avx_vnni": (5, 12),
    "sve2": (5, 2),
    "i8mm": (5, 7),
    "bf16": (5, 7),
}

# What Windows' IsProcessorFeaturePresent calls them. Before Windows 10 2004 it denied all from 36 on.
_WINDOWS = {
    "pni": 13,
    "ssse3": 36,
    "sse4_1": 37,
    "sse4_2": 38,
    "avx": 39,
    "avx2": 40,
    "avx512f": 41,
    "atomics": 34,
    "asimddp": 43,
}

# What macOS's sysctl calls them.
_MACOS = {
    "sse4_2": "hw.optional.sse4_2",
    "avx": "hw.optional.avx1_0",
    "f16c": "hw.optional.f16c",
    "fma": "hw.optional.fma",
    "bmi2": "hw.optional.bmi2",
    "avx2": "hw.optional.avx2_0",
    "avx512f": "hw.optional.avx512f",
    "atomics": "hw.optional.arm.FEAT_LSE",
    "asimddp": "hw.optional.arm.FEAT_DotProd",
    "asimdhp": "hw.optional.arm.FEAT_FP16",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
    "bf16": "hw.optional.arm.FEAT_BF16",
}


def missing_features(required: Iterable[str]) -> list[str]:
    """Those that this CPU is known to lack. What the system can't be asked about is not among them."""
    if sys.platform == "linux":
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        listed = features_listed(cpuinfo)
        kernel = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
        return [
            feature
            for feature in required
            if listed and feature not in listed and kernel >= _LISTED_SINCE.get(feature, ())
        ]
    return [feature for feature in required if _has(feature) is False]


def features_listed(cpuinfo: str) -> set[str]:
    """What the first processor of a /proc/cpuinfo has. Empty where it doesn't say."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _has(feature: str) -> bool | None:
    """None: the system can't be asked."""
    if sys.platform == "win32":
        number, is_present = _WINDOWS.get(feature), ctypes.windll.kernel32.IsProcessorFeaturePresent
        if number is None or (number >= 36 and not is_present(_WINDOWS["ssse3"])):
            return None
        return bool(is_present(number))
    if sys.platform == "darwin" and feature in _MACOS:
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        name = _MACOS[feature].encode()
        failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
        return None if failed else bool(value.value)
    return None
