"""Wrong answers to `ReduceFrom`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib.lab.exercises.wrong.copy_to import added


class Base(Function):
    """The right answer: those below get one half of it wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return added(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class NotReduced(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return x.view_as(x)


class BackwardReducedToo(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return added(grad, ctx.group), None


class TheOtherOne(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return added(grad, ctx.group), None


class InPlace(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        dist.all_reduce(x, group=group)
        return x


class KeepsWhatIsReturned(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Any:
        return dist.all_reduce(x.clone(), group=group)


class Averaged(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return added(x, group) / dist.get_world_size(group)


class BackwardDivides(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad / dist.get_world_size(ctx.group), None


class NoGradient(Base):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None


class WithoutGroup(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return added(x, None)
