"""Collectives that carry gradients: each goes forward as one collective and backward as another.

Which one follows from one rule. Each rank has its own loss, and the gradient that counts is that of the sum of all
ranks' losses. So where one value of the forward was used on many ranks, its gradient is the sum of what they found; and
where a sum was made, every term receives the gradient of the sum.

    forward                             backward                            used by
    copy_to          identity           all-reduce                          column-parallel input ("f" in Megatron-LM)
    reduce_from      all-reduce         identity                            row-parallel output ("g")
    all_gather       all-gather         reduce-scatter                      sequence-parallel input, FSDP
    reduce_scatter   reduce-scatter     all-gather                          sequence-parallel output
    scatter          keep own part      all-gather                          splitting what all ranks hold alike
    gather           all-gather         keep own part                       joining for a computation all ranks do alike
    all_to_all       all-to-all         all-to-all, counts swapped          experts, Ulysses

`all_gather` and `gather` do the same forward; so the choice says what comes after. If each rank goes on with a part of
the work of its own, the gradients differ and must be added: all_gather. If all ranks go on with the very same work,
their gradients are equal already, and adding them would count each n times: gather. The same holds for `reduce_from`,
whose backward is identity because what follows is done alike by all ranks, and for `copy_to`, whose input is alike.

Communication is torch's own (NCCL, gloo). A backward never writes to the gradient it is given: autograd may hand the
same tensor to somebody else. Everything is made contiguous before it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib.collectives.native import all_gather_into, reduce_scatter_into
from course_lib.collectives.p2p import rank_and_size

Group = dist.ProcessGroup | None


def copy_to(x: Tensor, group: Group = None) -> Tensor:
    """x, which all ranks hold alike, as the input of work that differs by rank. Backward sums the gradients."""
    return _Copy.apply(x, group)


def reduce_from(x: Tensor, group: Group = None) -> Tensor:
    """The sum of x over the ranks. What follows must be done alike by all of them."""
    return _Reduce.apply(x, group)


def all_gather(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The ranks' x joined along dim: (..., k, ...) -> (..., n * k, ...). Backward sums and gives each its part."""
    return _AllGather.apply(x, dim, group)


def reduce_scatter(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """This rank's part along dim of the sum of x over the ranks: (..., n * k, ...) -> (..., k, ...)."""
    _check_divides(x, dim, group, "reduce_scatter")
    return _ReduceScatter.apply(x, dim, group)


def scatter(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """This rank's part along dim of x, which all ranks hold alike: (..., n * k, ...) -> (..., k, ...)."""
    _check_divides(x, dim, group, "scatter")
    return _Scatter.apply(x, dim, group)


def gather(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The ranks' x joined along dim. What follows must be done alike by all of them; else use all_gather."""
    return _Gather.apply(x, dim, group)


def all_to_all(x: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], group: Group = None) -> Tensor:
    """Send rows of x (dim 0) to each rank: the first send_counts[0] to rank 0, ... Returns the rows received, by rank.

    Counts may be 0. receive_counts[r] must be what rank r sends here.
    """
    _, n = rank_and_size(group)
    for name, counts in (("send_counts", send_counts), ("receive_counts", receive_counts)):
        if len(counts) != n:
            raise ValueError(f"{name} has {len(counts)} numbers and the group {n} ranks: it needs one for each")
    if sum(send_counts) != x.shape[0]:
        raise ValueError(f"send_counts {list(send_counts)} add up to {sum(send_counts)} rows and x has {x.shape[0]}")
    return _AllToAll.apply(x, list(send_counts), list(receive_counts), group)


class _Copy(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _sum(grad, ctx.group), None


class _Reduce(Function):
    @staticmethod
    def forward(ctx, x, group):
        return _sum(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _join(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return _sum_and_keep(grad, ctx.dim, ctx.group), None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _sum_and_keep(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return _join(grad, ctx.dim, ctx.group), None, None


class _Scatter(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _keep(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return _join(grad, ctx.dim, ctx.group), None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _join(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return _keep(grad, ctx.dim, ctx.group), None, None


class _AllToAll(Function):
    @staticmethod
    def forward(ctx, x, send_counts, receive_counts, group):
        ctx.counts, ctx.group = (receive_counts, send_counts), group
        return _exchange(x, send_counts, receive_counts, group)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, *ctx.counts, ctx.group), None, None, None


def _sum(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return total


def _join(x: Tensor, dim: int, group: Group) -> Tensor:
    n = dist.get_world_size(group)
    if n == 1:
        return x.clone()
    parts = x.new_empty(n, *x.shape)
    all_gather_into(parts, x.contiguous(), group)
    return torch.cat(parts.unbind(), dim)


def _sum_and_keep(x: Tensor, dim: int, group: Group) -> Tensor:
    n = dist.get_world_size(group)
    if n == 1:
        return x.clone()
    parts = torch.stack(x.chunk(n, dim))
    out = torch.empty_like(parts[0])
    reduce_scatter_into(out, parts, group)
    return out


def _keep(x: Tensor, dim: int, group: Group) -> Tensor:
    rank, n = rank_and_size(group)
    return x.chunk(n, dim)[rank].clone(memory_format=torch.contiguous_format)


def _exchange(x: Tensor, send_counts: list[int], receive_counts: list[int], group: Group) -> Tensor:
    received = x.new_empty(sum(receive_counts), *x.shape[1:])
    dist.all_to_all_single(received, x.contiguous(), receive_counts, send_counts, group=group)
    return received


def _check_divides(x: Tensor, dim: int, group: Group, name: str) -> None:
    _, n = rank_and_size(group)
    if x.shape[dim] % n:
        raise ValueError(
            f"{name} over {n} ranks cannot cut dim {dim} of {tuple(x.shape)}: {x.shape[dim]} is no multiple of {n}; "
            f"pad it to {-(-x.shape[dim] // n) * n}"
        )
