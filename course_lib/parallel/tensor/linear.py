"""Linear layers of which each rank has a part: of the columns (outputs), or of the rows (inputs) of x @ weight.T.

    columns: x alike      -> products with this rank's columns    backward: the input's gradient is summed over ranks
    rows:    x by columns -> the sum over ranks, alike            backward: nothing is sent

After a column-parallel layer each rank has some of the features, of every token: just what a row-parallel layer wants
as input. So the two together send one sum forward and one backward. The other order would gather in between.

With sequence_parallel the input of columns, and the output of rows, is this rank's part of the tokens (`tokens.py`):
the tokens are gathered before the one, and the sum is scattered after the other. The gathered input is not kept for
backward, which gathers it again.

Backward of columns waits for little: the sum of the input's gradient travels while the gradients of the weights are
computed, and with sequence_parallel the input is gathered again while its gradient is computed.

Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from course_lib.parallel.tensor.tokens import start_gather, start_sum

Group = dist.ProcessGroup | None


def columns(
    x: Tensor, weights: Sequence[Tensor], group: Group = None, sequence_parallel: bool = False
) -> tuple[Tensor, ...]:
    """x @ weight.T for each weight. x is sent once for all of them, and so is its gradient.

    x (..., S, D), alike; with sequence_parallel (..., S/n, D). weights: this rank's rows of each matrix, (F_i/n, D).
    Returns a (..., S, F_i/n) for each.
    """
    return _Columns.apply(_cast(x), group, sequence_parallel, *map(_cast, weights))


def rows(x: Tensor, weight: Tensor, group: Group = None, sequence_parallel: bool = False) -> Tensor:
    """The sum over the ranks of x @ weight.T.

    x (..., S, F/n): this rank's features. weight (D, F/n): the columns that belong to them. Returns (..., S, D), alike;
    with sequence_parallel (..., S/n, D), and ValueError if n does not divide S.
    """
    return _Rows.apply(_cast(x), _cast(weight), group, sequence_parallel)


class ColumnLinear(nn.Module):
    """This rank's columns of a linear layer: weight (F/n, D) and bias (F/n,) or None. See `columns`."""

    def __init__(
        self, weight: Parameter, bias: Parameter | None = None, group: Group = None, sequence_parallel: bool = False
    ):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        (y,) = columns(x, [self.weight], self.group, self.sequence_parallel)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"weight {tuple(self.weight.shape)}"


class RowLinear(nn.Module):
    """This rank's rows of a linear layer: weight (D, F/n), and bias (D,), alike, or None. See `rows`.

    The bias is added once, to the sum. With sequence_parallel it meets this rank's tokens only, so that its gradient is
    a part, to be summed over the ranks after backward, as those of the norms are (`gradients.py`).
    """

    def __init__(
        self, weight: Parameter, bias: Parameter | None = None, group: Group = None, sequence_parallel: bool = False
    ):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        y = rows(x, self.weight, self.group, self.sequence_parallel)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"weight {tuple(self.weight.shape)}"


class _Columns(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sequence_parallel: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        whole = start_gather(x, group)() if sequence_parallel else x
        return tuple(F.linear(whole, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        x_wanted, _, _, *wanted = ctx.needs_input_grad
        gathering = start_gather(x, ctx.group) if ctx.sequence_parallel and any(wanted) else lambda: x
        flat = [_flat(grad) for grad in grads]
        if x_wanted:
            grad_x = flat[0] @ weights[0]
            for grad, weight in zip(flat[1:], weights[1:], strict=True):
                grad_x.addmm_(grad, weight)
            grad_x = grad_x.view(*grads[0].shape[:-1], x.shape[-1])
            summing = start_sum(grad_x, ctx.group, keep_part=ctx.sequence_parallel)
        inputs = _flat(gathering())
        grad_weights = [grad.T @ inputs if want else None for grad, want in zip(flat, wanted, strict=True)]
        return (summing() if x_wanted else None, None, None, *grad_weights)


class _Rows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Group, sequence_parallel: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        return start_sum(F.linear(x, weight), group, keep_part=sequence_parallel)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        if ctx.sequence_parallel:
            grad = start_gather(grad, ctx.group)()
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad_weight = _flat(grad).T @ _flat(x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _cast(x: Tensor) -> Tensor:
    """x as autocast would hand it to a matrix product. Inside a Function it would be cast where autograd cannot see."""
    kind = x.device.type
    if x.is_floating_point() and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
