"""Wrong answers to `scaled_step`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.training.clip import clip_grad_norm
from course_lib.training.precision import LossScale

Parameters = Sequence[Parameter]
Optimizer = torch.optim.Optimizer
Group = dist.ProcessGroup | None


def grads(parameters: Parameters) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def unscale(parameters: Parameters, scale: LossScale) -> None:
    for grad in grads(parameters):
        grad /= scale.value


def overflow_here(parameters: Parameters) -> Tensor:
    return torch.tensor(float(any(not grad.isfinite().all() for grad in grads(parameters))))


def agreed(parameters: Parameters, group: Group) -> bool:
    overflow = overflow_here(parameters)
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
    return bool(overflow)


def clip_before_unscale(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        unscale(parameters, scale)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def never_unscaled(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def never_clipped(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        optimizer.step()
    scale.update(overflow)
    return not overflow


def clip_after_step(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        optimizer.step()
        clip_grad_norm(parameters, max_norm)
    scale.update(overflow)
    return not overflow


def own_verdict(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = bool(overflow_here(parameters))
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def step_in_spite(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    clip_grad_norm(parameters, max_norm)
    optimizer.step()
    scale.update(overflow)
    return not overflow


def first_parameter_alone(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters[:1], group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def nan_overlooked(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    found = torch.tensor(float(any(grad.isinf().any() for grad in grads(parameters))))
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    if not found:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(bool(found))
    return not found


def minimum(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    found = overflow_here(parameters)
    dist.all_reduce(found, dist.ReduceOp.MIN, group=group)
    if not found:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(bool(found))
    return not found


def without_update(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    return not overflow


def update_on_overflow_alone(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    else:
        scale.update(True)
    return not overflow


def update_of_a_step_alone(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if overflow:
        return False
    clip_grad_norm(parameters, max_norm)
    optimizer.step()
    scale.update(overflow)
    return True


def update_with_taken(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    taken = not agreed(parameters, group)
    if taken:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(taken)
    return taken


def own_scale(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    mine = bool(overflow_here(parameters))
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(mine)
    return not overflow


def returning_overflow(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return overflow


def update_before_unscale(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    overflow = agreed(parameters, group)
    scale.update(overflow)
    unscale(parameters, scale)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    return not overflow


def step_with_zeros(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if overflow:
        for grad in grads(parameters):
            grad.zero_()
    clip_grad_norm(parameters, max_norm)
    optimizer.step()
    scale.update(overflow)
    return not overflow


def in_a_copy(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    for grad in grads(parameters):
        grad = grad / scale.value
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def without_group(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, None)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def overflow_leaves_early(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    if overflow_here(parameters):
        scale.update(True)
        return False
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def missing_gradients_met(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    for p in parameters:
        p.grad /= scale.value
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def missing_gradients_looked_at(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = torch.stack([~p.grad.isfinite().all() for p in parameters]).any().float()
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(bool(overflow))
    return not overflow


def missing_gradients_made_zeros(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad / scale.value
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def clip_to(parameters: Parameters, max_norm: float, norm: Tensor) -> None:
    for grad in grads(parameters):
        grad *= min(1.0, max_norm / (float(norm) + 1e-6))


def norm_reduced(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        squares = sum(grad.square().sum() for grad in grads(parameters))
        dist.all_reduce(squares, group=group)
        clip_to(parameters, max_norm, squares.sqrt())
        optimizer.step()
    scale.update(overflow)
    return not overflow


def norm_of_the_largest(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        norm = torch.stack([grad.norm() for grad in grads(parameters)]).norm()
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        clip_to(parameters, max_norm, norm)
        optimizer.step()
    scale.update(overflow)
    return not overflow


def update_of_nothing(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> bool:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update()
    return not overflow


def without_return(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> None:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    if not overflow:
        clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)


def returning_the_norm(
    parameters: Parameters, optimizer: Optimizer, scale: LossScale, max_norm: float, group: Group = None
) -> Tensor:
    unscale(parameters, scale)
    overflow = agreed(parameters, group)
    norm = torch.zeros(())
    if not overflow:
        norm = clip_grad_norm(parameters, max_norm)
        optimizer.step()
    scale.update(overflow)
    return norm
