"""The most floating point operations a second that this job's devices could do: what MFU is a share of."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

# Dense 16-bit matrix products of one GPU, from the vendor's data sheets (without sparsity).
DATA_SHEETS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}
WINDOWS, SECONDS = 5, 0.05  # matrix products are timed so often, for so long


@dataclass(frozen=True)
class Peak:
    """flops: per second, of one rank's device. source: where the number is from, in words."""

    flops: float
    source: str


def peak_of(device: torch.device, dtype: torch.dtype) -> Peak:
    """From the table for a known GPU in 16 bits, else measured: square matrix products, the best of some windows.

    All ranks call this at once: where they share cores, each measures what it gets of them. Where something else keeps
    the cores busy meanwhile, it measures too little, and an MFU of more than 100% will show that.
    """
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for known, flops in DATA_SHEETS.items():
            if known in name:
                return Peak(flops, f"data sheet of {known}")
    return Peak(measured(device, dtype), "matrix products measured here")


def measured(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of square matrix products in the best of the WINDOWS."""
    side = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    a @ b  # the first one pays for starting up
    settle(device)
    best = 0.0
    for _ in range(WINDOWS):
        begin, rounds, took = time.perf_counter(), 0, 0.0
        while took < SECONDS:
            a @ b
            settle(device)
            rounds, took = rounds + 1, time.perf_counter() - begin
        best = max(best, rounds * 2 * side**3 / took)
    return best


def settle(device: torch.device) -> None:
    """Wait until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
