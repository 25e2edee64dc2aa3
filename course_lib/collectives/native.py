"""Torch's own collectives under one name, whatever its version calls them.

Torch 2.13 renames `all_gather_into_tensor` and `reduce_scatter_tensor` to `..._single` and warns at the old names.
These are the ones to build on where speed is the point: NCCL's on GPUs, gloo's on CPUs.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def all_gather_into(
    out: Tensor, x: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """Every rank's x, one after the other, into out (n times as many elements). Both contiguous."""
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    return gather(out.view(-1), x.view(-1), group=group, async_op=async_op)  # gloo wants equal numbers of dimensions


def reduce_scatter_into(
    out: Tensor,
    x: Tensor,
    group: dist.ProcessGroup | None = None,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    async_op: bool = False,
) -> dist.Work | None:
    """This rank's n-th part of the reduction of x, into out. Both contiguous."""
    scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
    return scatter(out.view(-1), x.view(-1), op=op, group=group, async_op=async_op)
