"""Wrong answers to `LinearInTwo`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd import Function


class Forward(Function):
    """What is given of the class."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, later: list[Callable[[], None]]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.later = weight, later
        return x @ weight.t()


def add(weight: Tensor, gradient: Tensor) -> None:
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


class AtOnce(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        add(weight, grad.t() @ x)
        return grad @ weight, None, None


class AtOnceAndLater(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight

        def weight_gradient():
            add(weight, grad.t() @ x)

        weight_gradient()
        ctx.later.append(weight_gradient)
        return grad @ weight, None, None


class ReturnedAndLater(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later.append(lambda: add(weight, grad.t() @ x))
        return grad @ weight, grad.t() @ x, None


class Overwritten(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight

        def weight_gradient():
            weight.grad = grad.t() @ x

        ctx.later.append(weight_gradient)
        return grad @ weight, None, None


class Transposed(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later.append(lambda: add(weight, x.t() @ grad))
        return grad @ weight, None, None


class TheLastValues(Forward):
    """Values in a place that all micro-batches share."""

    x: Tensor
    grad: Tensor

    @staticmethod
    def backward(ctx, grad):
        weight = ctx.weight
        TheLastValues.x, TheLastValues.grad = ctx.saved_tensors[0].detach(), grad
        ctx.later.append(lambda: add(weight, TheLastValues.grad.t() @ TheLastValues.x))
        return grad @ weight, None, None


class ProductAtOnce(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        gradient = grad.t() @ x
        ctx.later.append(lambda: add(weight, gradient))
        return grad @ weight, None, None


class CalledNow(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight

        def weight_gradient():
            add(weight, grad.t() @ x)

        ctx.later.append(weight_gradient())
        return grad @ weight, None, None


class ANewList(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later = [*ctx.later, lambda: add(weight, grad.t() @ x)]
        return grad @ weight, None, None


class NeverStored(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later.append(lambda: grad.t() @ x)
        return grad @ weight, None, None


class InputLaterToo(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight

        def both():
            add(weight, grad.t() @ x)
            return grad @ weight

        ctx.later.append(both)
        return None, None, None


class WeightTransposed(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later.append(lambda: add(weight, grad.t() @ x))
        return grad @ weight.t(), None, None


class OneValue(Forward):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight
        ctx.later.append(lambda: add(weight, grad.t() @ x))
        return grad @ weight


class Recorded(Forward):
    @staticmethod
    def backward(ctx, grad):
        (x,), weight = ctx.saved_tensors, ctx.weight
        ctx.later.append(lambda: add(weight, grad.t() @ x))
        return grad @ weight, None, None


def a_function(x, weight, later):
    y = x @ weight.t()
    y.register_hook(lambda grad: later.append(lambda: add(weight, grad.t() @ x)))
    return y
