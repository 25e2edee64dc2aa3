"""One stage of a pipeline, and backward in two parts, in a few lines. Lab 2b has you write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib.collectives.p2p import irecv, isend, rank_and_size, wait


def receive(like: Tensor, source: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Wait for a tensor from group rank `source`, of the shape, dtype and device of `like`."""
    into = torch.empty_like(like, requires_grad=False, memory_format=torch.contiguous_format)
    wait(irecv(into, source, group))
    return into


def run_stage(
    stage: Callable[[Tensor], Tensor],
    order: Sequence[tuple[str, int]],
    inputs: Sequence[Tensor],
    loss_of: Callable[[Tensor, int], Tensor],
    group: dist.ProcessGroup | None = None,
) -> list[Tensor]:
    """This rank's part of a pipeline with one stage per rank: forward and backward of every micro-batch, in order.

    stage: this rank's layers. order: ("F", i) or ("B", i) for each micro-batch i. inputs: one tensor for each
    micro-batch: on the first rank what its stage gets, on the others one of the shape and dtype of what they receive.
    A rank receives its input from the rank before, and sends the gradient of it back there. loss_of(y, i): called on
    the last rank with what its stage returned; the scalar that its backward starts from.

    Gradients add up in the parameters. Returns the losses, in order, on the last rank; nothing on the others.
    """
    rank, n = rank_and_size(group)
    held = {}  # of each micro-batch whose backward is to come: input and output
    losses, sent = [], []
    for kind, i in order:
        if kind == "F":
            # BEGIN SOLUTION
            x = inputs[i] if rank == 0 else receive(inputs[i], rank - 1, group).requires_grad_()
            y = stage(x)
            if rank == n - 1:
                y = loss_of(y, i)
                losses.append(y.detach())
            else:
                sent += isend(y.detach(), rank + 1, group)
            held[i] = x, y
            # END SOLUTION
        else:
            # BEGIN SOLUTION
            x, y = held.pop(i)
            y.backward(None if rank == n - 1 else receive(y, rank + 1, group))
            if rank > 0:
                sent += isend(x.grad, rank - 1, group)
            # END SOLUTION
    wait(sent)
    return losses


class LinearInTwo(Function):
    """y = x W^T, whose backward computes the gradient of x at once and leaves that of W for later."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, later: list[Callable[[], None]]) -> Tensor:
        """x (tokens, inputs), weight (outputs, inputs) -> (tokens, outputs)."""
        ctx.save_for_backward(x)
        ctx.weight, ctx.later = weight, later
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        """grad (tokens, outputs): the gradient of y. Returns the gradient of x, and None for the two others.

        To `ctx.later` it appends a function without arguments, which adds the weight's gradient to `ctx.weight.grad`
        (None before the first). A rank calls it when it has nothing else to do.
        """
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight  # what comes later must not be recorded by autograd

        # BEGIN SOLUTION
        def weight_gradient() -> None:
            gradient = grad.t() @ x
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

        ctx.later.append(weight_gradient)
        return grad @ weight, None, None
        # END SOLUTION
