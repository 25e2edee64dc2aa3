"""Mixed precision: float16's loss scale, and the order of a step: unscale, agree, clip, step, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import Parameter

from course_lib.training.clip import clip_grad_norm


@dataclass
class LossScale:
    """What the loss is multiplied by, so that small gradients survive float16. Doubles after a quiet time, halves on
    overflow.
    """

    value: float = 65536.0
    growth_interval: int = 2000
    quiet: int = 0  # steps since the last change

    def update(self, overflow: bool) -> None:
        """To be called once after every step, taken or not."""
        self.quiet = 0 if overflow else self.quiet + 1
        if overflow:
            self.value = max(self.value / 2, 1.0)
        elif self.quiet == self.growth_interval:
            self.value, self.quiet = self.value * 2, 0


def scaled_step(
    parameters: Sequence[Parameter],
    optimizer: torch.optim.Optimizer,
    scale: LossScale,
    max_norm: float,
    group: dist.ProcessGroup | None = None,
) -> bool:
    """An optimizer step from the gradients of `scale.value` * loss. Returns whether it was taken.

    It is left out, on all ranks of the group, if a gradient on any of them is infinite or NaN: the scale was too large.
    Gradients are clipped to a norm of `max_norm` with `clip_grad_norm(parameters, max_norm)`. In plain data parallel
    training all ranks hold the same gradients; do not count on it: from Lab 3 on, each holds only a part of them.
    """
    # BEGIN SOLUTION
    for p in parameters:
        p.grad /= scale.value
    overflow = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(bool(overflow))
    # END SOLUTION
    return not overflow
