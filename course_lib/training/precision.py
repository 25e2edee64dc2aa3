"""Mixed precision: float16's loss scale, and the order of a step: unscale, agree, clip, step, update.

Parameters, their gradients and the optimizer's state stay in float32; `autocast` runs the matrix products of forward
and backward in 16 bits. bfloat16 has float32's range and needs nothing else. float16 does not: gradients below 6e-8
become zero, so the loss is multiplied by a scale first, and a step whose scaled gradients overflow is left out.

`scaled_step` is the obvious version; `take_step` is what the trainer calls, in every precision. Not here: hysteresis
(several overflows before the scale falls), which no lab needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.training.clip import Named, Part, clip_grad_norm, grad_norm, scale_gradients, unique

# What matrix products run in, by the name that a person gives. In float64 parameters and gradients are, too.
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}

CEILING = 2.0**127  # the largest power of two in float32; beyond it the scale itself would be infinite


def autocast(precision: str, device: torch.device | str) -> AbstractContextManager:
    """A context for forward and loss. Backward then runs each operation in the precision its forward had.

    precision: a name in PRECISIONS. Raises ValueError for any other.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"there is no precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    if precision in ("fp32", "fp64"):
        return nullcontext()
    return torch.autocast(torch.device(device).type, PRECISIONS[precision])


@dataclass
class LossScale:
    """What the loss is multiplied by, so that small gradients survive float16. Doubles after a quiet time, halves on
    overflow. Behaves as torch's GradScaler does, and never falls below 1.
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
            self.value, self.quiet = min(self.value * 2, CEILING), 0

    def state_dict(self) -> dict[str, float]:
        """What changes from step to step, for a checkpoint. `LossScale(**state)` has it back."""
        return {"value": self.value, "quiet": self.quiet}


def scaled_step(
    parameters: Sequence[Parameter],
    optimizer: torch.optim.Optimizer,
    scale: LossScale,
    max_norm: float,
    group: dist.ProcessGroup | None = None,
) -> bool:
    """An optimizer step from the gradients of `scale.value` * loss. Returns whether it was taken.

    It is left out, on all ranks of the group, if a gradient on any of them is infinite or NaN: the scale was too large.
    A rank does not see the others' gradients, so it must be told: in plain data parallel training all ranks hold the
    same ones, from Lab 3 on each holds only a part. Gradients are clipped to a norm of `max_norm` with
    `clip_grad_norm(parameters, max_norm)`; the norm is that of this rank's gradients and need not be reduced here.
    After each step, taken or not, `scale.update(overflow)` wants a bool: whether it was left out.
    Parameters without a gradient (`p.grad` is None) are passed over; at least one has one.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    # BEGIN SOLUTION
    for gradient in gradients:
        gradient /= scale.value
    overflow = torch.stack([~gradient.isfinite().all() for gradient in gradients]).any().float()
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(bool(overflow))
    # END SOLUTION
    return not overflow


@dataclass(frozen=True)
class Step:
    """taken: whether the optimizer stepped; where it did not, neither may the learning rate's schedule. norm: of the
    gradient before it was clipped, without the loss scale, a scalar on its device; of no meaning if not taken.
    """

    taken: bool
    norm: Tensor


def take_step(
    parameters: Sequence[Named],
    optimizer: torch.optim.Optimizer,
    max_norm: float,
    scale: LossScale | None = None,
    group: dist.ProcessGroup | None = None,
    parts: Sequence[Part] = (),
) -> Step:
    """Clip the gradients and step. With a scale, as `scaled_step`: unscale before, leave out on overflow, update after.

    parameters, parts, max_norm: as in `clip_grad_norm`. group: all ranks that must take the same steps. Without a
    scale the host waits for nothing; with one, for one number: whether the step is to be taken.
    """
    if scale is None:
        norm = clip_grad_norm(parameters, max_norm, parts=parts)
        optimizer.step()
        return Step(True, norm)
    every = unique([*parameters, *(p for part in parts for p in part.parameters)])
    gradients = [p.grad for p in every if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, 1 / scale.value)
    norm = grad_norm(parameters, parts=parts)
    overflow = 1 - norm.isfinite().float()  # the norm has seen every element, so it is the one to ask
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
    taken = not overflow
    if taken:
        scale_gradients(every, max_norm, norm)
        optimizer.step()
    scale.update(not taken)
    return Step(taken, norm)
