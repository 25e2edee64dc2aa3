"""Fewer bytes for a bucket: half of them in bfloat16; far fewer with PowerSGD, which keeps account of its error."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


def bf16_compress(flat: Tensor, group: dist.ProcessGroup | None = None) -> Callable[[], None]:
    """Start to average `flat` over the group with half the bytes. Returns a function that waits and writes the mean.

    flat: (elements,) float32, this rank's gradients. Nothing is waited for before `finish()` is called; on its return
    `flat` holds the mean over the group, in bfloat16's precision.
    """
    n = dist.get_world_size(group)
    # BEGIN SOLUTION
    half = (flat / n).to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_(half)

    # END SOLUTION
    return finish


def power_sgd_round(
    gradient: Tensor, error: Tensor, q: Tensor, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One round of PowerSGD: the mean gradient of the group, as a product of two thin matrices.

    gradient: (rows, cols), this rank's. error: (rows, cols), what earlier rounds did not send for this rank.
    q: (cols, r), the same on every rank: what the last round ended with. Returns the mean's approximation
    (rows, cols), the same on every rank, the new error of this rank, and the new q. r * (rows + cols) numbers travel.

    Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, algorithm 1. `torch.linalg.qr(p)` returns a pair, the
    first of which is p with its columns made orthonormal.
    """
    n = dist.get_world_size(group)
    # BEGIN SOLUTION
    wanted = gradient + error
    p = wanted @ q
    dist.all_reduce(p, group=group)
    p, _ = torch.linalg.qr(p)
    q = wanted.T @ p
    dist.all_reduce(q, group=group)
    q /= n
    approximation = p @ q.T
    error = wanted - approximation
    # END SOLUTION
    return approximation, error, q
