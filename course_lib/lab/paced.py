"""A stage that takes the time it is told to, and no processor: what four devices do, on a machine with two cores.

It waits where a device would compute. So four of them run at the same time anywhere, and a schedule can be seen as it
is: with a core for each rank, real layers show the same.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.parallel.pipeline.split import WeightGradients


class Paced(nn.Module):
    """x -> x W^T, (..., D) -> (..., D). forward, input, weight: the seconds that F, I and W take; B takes I and W."""

    def __init__(self, dim: int, forward: float, input: float, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))
        self.seconds = forward, input, weight
        self.weight_gradients: WeightGradients | None = None

    def forward(self, x: Tensor) -> Tensor:
        return _Paced.apply(x, self.weight, self)


class _Paced(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, layer: Paced) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.layer = weight, layer
        time.sleep(layer.seconds[0])
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x,), weight, layer = ctx.saved_tensors, ctx.weight, ctx.layer
        time.sleep(layer.seconds[1])

        def weight_gradient() -> Tensor:
            time.sleep(layer.seconds[2])
            return grad.flatten(0, -2).t() @ x.flatten(0, -2)

        store = layer.weight_gradients
        return grad @ weight, store.now_or_later(weight, weight_gradient) if store else weight_gradient(), None
