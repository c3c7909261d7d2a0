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
    """ "auto" is BF16 where the device has instructions that multiply it. There it is twice as fast as F32,
    elsewhere up to fifteen times as slow."""
    if name == "auto":
        return torch.bfloat16 if device.type != "cpu" or _cpu_multiplies_bfloat16() else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """AVX-512 BF16, AMX, or ARM's BF16. False where PyTorch is too old to say."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
