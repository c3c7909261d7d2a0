"""Where PyTorch computes, and with which numbers."""

from __future__ import annotations

import torch

from pydflash2.errors import BackendUnavailableError


def chosen(name: str) -> torch.device:
    """ "auto", or a device as PyTorch names it. Raises `BackendUnavailableError` where it can't be used."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BackendUnavailableError(
            f"PyTorch can't use --device {name}: {reason}. Take cpu, or install a PyTorch built for it"
        ) from error
    return device


def precision(name: str, device: torch.device) -> torch.dtype:
    """BF16 where the device multiplies it fast: accelerators. Few CPUs do, and most are far slower at it."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.bfloat16 if name == "bfloat16" else torch.float32
