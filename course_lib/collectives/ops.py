"""What a reduction does with two values that meet: SUM, AVG, MAX, MIN, and PREMUL(factor).

AVG is a sum that is divided once, when it is complete: by the rank that owns the chunk, before the chunk is passed on.
PREMUL(f) multiplies each rank's share by f before the sum. Gradient averaging is PREMUL(1 / n) where a sum over
thousands of ranks would leave the range of fp16, and AVG otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Op:
    """A reduction: `combine(into, other)` changes `into`; `complete(total, n)` is called once on each reduced chunk."""

    name: str
    combine: Callable[[Tensor, Tensor], object]
    average: bool = False
    factor: float = 1.0

    def check(self, dtype: torch.dtype) -> None:
        """Raises ValueError when a dtype without fractions meets a reduction that makes fractions."""
        if (self.average or self.factor != 1.0) and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"{self.name} makes fractions and x is {dtype}: use SUM, or a floating-point x")

    def prepare(self, x: Tensor) -> Tensor:
        """This rank's share as it enters the reduction: x itself, or a new tensor where a factor applies."""
        return x if self.factor == 1.0 else x * self.factor

    def complete(self, total: Tensor, n: int) -> None:
        if self.average:
            total.div_(n)


def _max(into: Tensor, other: Tensor) -> None:
    torch.maximum(into, other, out=into)


def _min(into: Tensor, other: Tensor) -> None:
    torch.minimum(into, other, out=into)


SUM = Op("SUM", Tensor.add_)
AVG = Op("AVG", Tensor.add_, average=True)
MAX = Op("MAX", _max)
MIN = Op("MIN", _min)


def PREMUL(factor: float) -> Op:
    """The sum of x * factor over the ranks. All ranks must pass the same factor."""
    return Op(f"PREMUL({factor:g})", Tensor.add_, factor=factor)


_TORCH = {
    dist.ReduceOp.SUM: SUM,
    dist.ReduceOp.AVG: AVG,
    dist.ReduceOp.MAX: MAX,
    dist.ReduceOp.MIN: MIN,
}


def as_op(op: Op | dist.ReduceOp) -> Op:
    """Our reduction for ours or for torch's own SUM, AVG, MAX, MIN. Raises ValueError for any other."""
    if isinstance(op, Op):
        return op
    for torchs, ours in _TORCH.items():
        if op == torchs:
            return ours
    raise ValueError(f"unknown reduction {op!r}: use SUM, AVG, MAX, MIN or PREMUL(factor) of course_lib.collectives")
