"""The obvious versions: data parallelism in a few lines each. Lab 1 has you write them; `ddp.py` does it in earnest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.parallel.data.buckets import Bucket, when_gradients_are_there


def average_gradients(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Replace every gradient by its mean over the group, in place.

    parameters: the same, in the same order, on every rank. Frozen ones (requires_grad is False) are left alone. One
    that this rank did not use has no gradient (grad is None), though others may have one: its share is zero.
    """
    n = dist.get_world_size(group)
    # BEGIN SOLUTION
    for p in parameters:
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)
        p.grad /= n
    # END SOLUTION


def pack_buckets(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    """Which gradients travel together: lists of indices into `sizes`, in the order in which they are sent.

    sizes: bytes of each gradient, in the order in which the model registers its parameters. Backward produces them
    about in reverse, so the last one is the first to be packed. A bucket is full when it holds `cap` bytes or more;
    the first, when it holds `first_cap`, so that the network starts to work early.
    """
    buckets: list[list[int]] = []
    # BEGIN SOLUTION
    bucket, held = [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
    if bucket:
        buckets.append(bucket)
    # END SOLUTION
    return buckets


def backward_with_overlap(loss: Tensor, buckets: Sequence[Bucket], group: dist.ProcessGroup | None = None) -> None:
    """Backward; each bucket's all-reduce starts in the middle of it, and all of them have ended on return.

    buckets: in the order in which they are sent, the same on every rank. `bucket.parameters` are its parameters, and
    `bucket.flat` is one long vector that their gradients are views of: to reduce it is to reduce them all. On return
    it holds the mean over the group.
    """
    n = dist.get_world_size(group)
    missing = [len(bucket.parameters) for bucket in buckets]  # gradients that have not come yet
    works = []  # the all-reduces under way, in the order of the buckets

    def gradient_is_there(index: int) -> None:
        """Called in the middle of backward, each time one more gradient of bucket `index` is complete."""
        # BEGIN SOLUTION
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            flat = buckets[len(works)].flat
            works.append(dist.all_reduce(flat, group=group, async_op=True))
        # END SOLUTION

    with when_gradients_are_there(buckets, gradient_is_there):
        loss.backward()
    # BEGIN SOLUTION
    for bucket, work in zip(buckets, works, strict=True):
        work.wait()
        bucket.flat /= n
    # END SOLUTION
