"""Learning-rate schedules: pure functions of the step, so that a resumed run needs to know its step and nothing else.

    schedule = WarmupCosine(warmup=100, steps=2_000)
    for step in range(2_000):
        set_lr(optimizer, 3e-4 * schedule(step))  # then forward, backward, optimizer.step()

A step is counted from 0, and its factor holds for the update made in that step. A schedule object keeps no state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class WarmupCosine:
    """Warm-up, then half a cosine from 1 down to `floor` at step `steps` (Loshchilov & Hutter 2017, arXiv 1608.03983).

    warmup: steps below the peak; step s of them has the factor (s + 1) / (warmup + 1), so that the first moves already
    and step `warmup` is the first at the peak. steps: the length of the run. floor: the share of the peak to end at.

    As torch's CosineAnnealingLR(T_max=steps - warmup, eta_min=floor * peak) after LinearLR. The last step,
    steps - 1, is still a little above the floor; from `steps` on the factor is the floor.
    """

    warmup: int
    steps: int
    floor: float = 0.1

    def __post_init__(self) -> None:
        _check(self.steps, self.warmup, 0, self.floor)

    def __call__(self, step: int) -> float:
        """The factor of the peak learning rate at `step`, from 0 to 1; ValueError for a step before 0."""
        progress = _progress(step, self.warmup, self.steps)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return _warming(step, self.warmup) * (self.floor + (1 - self.floor) * cosine)


@dataclass(frozen=True)
class WarmupStableDecay:
    """Warm-up, a plateau at the peak, then a straight line down to `floor` (WSD: Hu et al. 2024, arXiv 2404.06395).

    warmup: as in WarmupCosine. decay: how many steps at the end of the run go down; 0: none. Until then the factor does
    not depend on `steps`: a run can be made longer from any checkpoint taken before its decay.

    The last step, steps - 1, is still 1 / decay of the way above the floor; from `steps` on the factor is the floor.
    """

    warmup: int
    steps: int
    decay: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.steps, self.warmup, self.decay, self.floor)

    def __call__(self, step: int) -> float:
        """The factor of the peak learning rate at `step`, from 0 to 1; ValueError for a step before 0."""
        progress = _progress(step, self.steps - self.decay, self.steps)
        return _warming(step, self.warmup) * (1 - (1 - self.floor) * progress)


def set_lr(optimizer: torch.optim.Optimizer, lr: float | Sequence[float]) -> None:
    """Set the learning rate of every parameter group, or of each its own. ValueError if their numbers differ.

    A rate kept as a tensor (a compiled or captured optimizer) is filled in place. The peak is the caller's to keep: an
    optimizer's state_dict brings back the rate of the step before, to be set anew like any other.
    """
    groups = optimizer.param_groups
    rates = list(lr) if isinstance(lr, Sequence) else [lr] * len(groups)
    if len(rates) != len(groups):
        raise ValueError(
            f"{len(rates)} learning rates for {len(groups)} parameter groups; give one each or one for all."
        )
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _warming(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _progress(step: int, start: int, end: int) -> float:
    """How far `step` is on its way from start to end: 0 before, 1 after."""
    if step < 0:
        raise ValueError(f"step is {step}; steps are counted from 0.")
    if step < start:
        return 0.0
    return (step - start) / (end - start) if step < end else 1.0


def _check(steps: int, warmup: int, decay: int, floor: float) -> None:
    for name, length, least in (("steps", steps, 1), ("warmup", warmup, 0), ("decay", decay, 0)):
        if not isinstance(length, int) or length < least:
            raise ValueError(f"{name} is {length!r}; it must be a whole number of at least {least}.")
    if warmup >= steps:
        raise ValueError(f"warmup is {warmup} of {steps} steps; it must be shorter than the run.")
    if warmup + decay > steps:
        raise ValueError(
            f"warmup {warmup} and decay {decay} are more than the run's {steps} steps; a decay of up to "
            f"{steps - warmup} would fit."
        )
    if not 0 <= floor <= 1:
        raise ValueError(f"floor is {floor}; it is a share of the peak learning rate, from 0 to 1.")
