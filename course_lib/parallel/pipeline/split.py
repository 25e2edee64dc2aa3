"""Backward in two: the gradient of a stage's input first, for which another rank waits; those of its weights later.

Zero bubble schedules (Qi et al. 2023, arXiv 2401.10241, section 2) run the second part where a rank would idle. Of a
linear layer y = x W^T both are one matrix product: g W for the input, g^T x for the weight. Nearly all weights stand in
such layers; the gradients of the others (norms, embeddings) cost little and are computed with the input's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import Function


class WeightGradients:
    """The weight gradients of a module's linear layers, computed in backward, or kept for later.

    Taken over are the layers whose class is nn.Linear, or has its forward; names, parameters and values stay as they
    are. A layer with a backward of its own has an attribute `weight_gradients`, None until it is set here, and asks
    `now_or_later`. What is kept for later holds the layer's input and output gradient until then. A weight's gradient
    that is computed later is added to `weight.grad` directly: autograd's hooks do not hear of it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept: dict[Hashable, list[Callable[[], None]]] = {}
        self._keeping: list[Callable[[], None]] | None = None
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
                layer.forward = functools.partial(_linear, layer, self)
            elif hasattr(layer, "weight_gradients"):
                layer.weight_gradients = self

    @contextmanager
    def kept(self, name: Hashable) -> Iterator[None]:
        """Inside, backward computes no weight gradient of a linear layer, but keeps it under this name."""
        self._keeping = self._kept.setdefault(name, [])
        try:
            yield
        finally:
            self._keeping = None

    def now_or_later(self, weight: Tensor, gradient: Callable[[], Tensor]) -> Tensor | None:
        """For backward of a layer: the weight's gradient, or None if it is kept for later."""
        if self._keeping is None:
            return gradient()
        self._keeping.append(lambda: _add(weight, gradient()))
        return None

    def compute(self, name: Hashable) -> None:
        """Compute what was kept under this name, and add it to the gradients. Nothing, if nothing was."""
        for weight_gradient in self._kept.pop(name, ()):
            weight_gradient()

    def forget(self) -> None:
        """Drop what was kept, as after a step that failed."""
        self._kept.clear()


def _linear(layer: nn.Linear, store: WeightGradients, x: Tensor) -> Tensor:
    return _Linear.apply(x, layer.weight, layer.bias, store)


class _Linear(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, store: WeightGradients) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.store = weight, bias, store
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (x,), weight, bias = ctx.saved_tensors, ctx.weight, ctx.bias

        def weight_gradient() -> Tensor:
            # Under autocast the output, and its gradient, have fewer digits than the input and the weight.
            return (grad.flatten(0, -2).t() @ x.flatten(0, -2).to(grad.dtype)).to(weight.dtype)

        # A gradient that the weight does not want (it is frozen) is not computed at all.
        grad_weight = ctx.store.now_or_later(weight, weight_gradient) if weight.requires_grad else None
        grad_x = (grad @ weight.to(grad.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        grad_bias = grad.flatten(0, -2).sum(0).to(bias.dtype) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None


@torch.no_grad()
def _add(weight: Tensor, gradient: Tensor) -> None:
    if weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad += gradient
