"""Wrong answers to `CopyTo`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


class Base(Function):
    """The right answer: those below get one half of it wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def added(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


class NotReduced(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class ForwardReducedToo(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return added(x, group)


class TheOtherOne(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return added(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Averaged(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return added(grad, ctx.group) / dist.get_world_size(ctx.group), None


class InPlace(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class OneValue(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return added(grad, ctx.group)


class KeepsWhatIsReturned(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return dist.all_reduce(grad.clone(), group=ctx.group), None


class WithoutGroup(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return added(grad, None), None


class NeverWaiting(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group, async_op=True)
        return total, None


class GroupNotKept(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return x.view_as(x)


def a_function(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return x
