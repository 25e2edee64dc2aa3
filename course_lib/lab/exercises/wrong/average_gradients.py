"""Wrong answers to `average_gradients`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn import Parameter


def trained(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Those that require a gradient, each with one."""
    found = [p for p in parameters if p.requires_grad]
    for p in found:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return found


def sums(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.grad, group=group)


def into_new_memory(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        total = p.grad.clone()
        dist.all_reduce(total, group=group)
        p.grad.data = total / dist.get_world_size(group)


def by_a_fixed_four(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.grad, group=group)
        p.grad /= 4


def skipping_unused(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in parameters:
        if p.requires_grad and p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


def with_frozen(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def with_frozen_leftover(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in parameters:
        if p.grad is None and not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def in_a_copy(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        mean = p.grad.clone()
        dist.all_reduce(mean, group=group)
        mean /= dist.get_world_size(group)


def parameters(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.data, group=group)
        p.data /= dist.get_world_size(group)


def rebinding(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    grads = [p.grad for p in trained(parameters)]
    for grad in grads:
        grad = grad / dist.get_world_size(group)
        dist.all_reduce(grad, group=group)


def dividing_alone(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        p.grad /= dist.get_world_size(group)


def twice_divided(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    n = dist.get_world_size(group)
    for p in trained(parameters):
        p.grad /= n
        dist.all_reduce(p.grad, group=group)
        p.grad /= n


def without_group(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def size_without_group(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size()


def never_waiting(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    n = dist.get_world_size(group)
    for p in trained(parameters):
        p.grad /= n
        dist.all_reduce(p.grad, group=group, async_op=True)


def one_by_one_of_each_rank(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    n = dist.get_world_size(group)
    for p in trained(parameters):
        total = torch.zeros_like(p.grad)
        for source in range(n):
            share = p.grad.clone()
            dist.broadcast(share, group=group, group_src=source)
            total += share
        p.grad.copy_(total / n)


def over_those_who_have_one(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in parameters:
        if p.requires_grad:
            have = torch.tensor(float(p.grad is not None))
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(have, group=group)
            dist.all_reduce(p.grad, group=group)
            p.grad /= have


def to_rank_0(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        p.grad /= dist.get_world_size(group)
        dist.reduce(p.grad, group=group, group_dst=0)


def maximum(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        dist.all_reduce(p.grad, dist.ReduceOp.MAX, group=group)


def counting_first(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)
    for p in parameters:
        if p.requires_grad:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


def by_index(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for i in range(len(parameters)):
        p = parameters[i]
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


def into_new_tensors(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        mean = p.grad / dist.get_world_size(group)
        dist.all_reduce(mean, group=group)
        p.grad = mean


def in_float32(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        mean = p.grad.float() / dist.get_world_size(group)
        dist.all_reduce(mean, group=group)
        p.grad.copy_(mean)


def of_none(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    n = dist.get_world_size(group)
    for p in parameters:
        p.grad /= n
        dist.all_reduce(p.grad, group=group)


def waiting_for_none(parameters: Iterable[Parameter], group: dist.ProcessGroup | None = None) -> None:
    for p in trained(parameters):
        work = dist.all_reduce(p.grad, group=group)
        work.wait()
        p.grad /= dist.get_world_size(group)
