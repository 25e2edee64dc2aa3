"""What the check of `scaled_step` runs: a step by an answer, and the same step in plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from course_lib.lab.evidence import Aside
from course_lib.lab.exercise import Case, random_tensor
from course_lib.training import precision

SHAPES = ((3,), (2, 2), (4,))
SCALE, MAX_NORM, INTERVAL = 1024.0, 1.0, 4
DECAY = 0.1  # so that a step with gradients of zero is a step, too


class SGD(torch.optim.SGD):
    """Gradient descent that counts its steps."""

    def __init__(self, parameters: list[Parameter]) -> None:
        super().__init__(parameters, lr=1.0, weight_decay=DECAY)
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        super().step()


class LossScale(precision.LossScale):
    """A loss scale that counts its updates. Errors tell the reader its name, so it has the library's."""

    updates = 0

    def update(self, overflow: bool) -> None:
        self.updates += 1
        super().update(overflow)


def stepped(
    answer: Callable, weights: list[Tensor], grads: list[Tensor | None], quiet: int, **group: Any
) -> dict[str, Any]:
    """One step from gradients of the scaled loss: the parameters and the scale after it."""
    parameters = [Parameter(w.clone()) for w in weights]
    for p, grad in zip(parameters, grads, strict=True):
        p.grad = None if grad is None else grad.clone()
    optimizer, scale = SGD(parameters), LossScale(SCALE, INTERVAL, quiet)
    taken = answer(parameters, optimizer, scale, MAX_NORM, **group)
    return {
        "parameters": flat([p.detach() for p in parameters]),
        "scale": float(scale.value),
        "quiet": int(scale.quiet),
        "taken": as_bool(taken),
        "seen": Aside({"steps": optimizer.steps, "updates": scale.updates}),
    }


def as_bool(taken: Any) -> Any:
    """True or False for what is as good: 1, 0, and one element of a tensor."""
    if isinstance(taken, Tensor) and taken.numel() == 1:
        taken = taken.item()
    return bool(taken) if isinstance(taken, int | float) and taken in (0, 1) else taken


def flat(parts: Sequence[Tensor | None]) -> Tensor:
    """What there is, in one vector."""
    return torch.cat([part.flatten() for part in parts if part is not None])


def descended(weights: list[Tensor], grads: list[Tensor | None], direction: Tensor) -> Tensor:
    """All weights after a step by `direction`, a vector, of those that have a gradient."""
    moved = iter(direction.split([grad.numel() for grad in grads if grad is not None]))
    return flat(
        [
            w if grad is None else w * (1 - DECAY) - next(moved).view_as(w)
            for w, grad in zip(weights, grads, strict=True)
        ]
    )


def clipped(direction: Tensor, norm: float | None = None) -> Tensor:
    """norm: what is compared with MAX_NORM, if not the direction's own."""
    norm = float(direction.norm()) if norm is None else norm
    return direction * min(1.0, MAX_NORM / (norm + 1e-6))


def finite(grads: list[Tensor | None]) -> bool:
    return bool(flat(grads).isfinite().all())


def stepped_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    taken = all(finite(grads) for _, grads, _ in inputs)
    found = []
    for weights, grads, quiet in inputs:
        scale = precision.LossScale(SCALE, INTERVAL, quiet)
        scale.update(not taken)
        after = descended(weights, grads, clipped(flat(grads) / SCALE)) if taken else flat(weights)
        found.append({"parameters": after, "scale": scale.value, "quiet": scale.quiet, "taken": taken})
    return found


def gradients(
    label: str,
    norm: Callable[[int], float],
    bad: tuple[int, float] | None = None,
    where: Callable[[int], int] | None = None,
    quiet: int = 1,
    without: int | None = None,
) -> Case:
    """norm(rank): of the gradient itself, without the scale. bad: (parameter, value) of one element on rank where(n).
    without: the parameter that has no gradient.
    """

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor | None], int]:
        weights = [torch.full(shape, 1.0 + i) for i, shape in enumerate(SHAPES)]
        grads = [None if i == without else random_tensor(shape, rng) for i, shape in enumerate(SHAPES)]
        length = float(flat(grads).norm())
        grads = [None if grad is None else grad * (SCALE * norm(rank) / length) for grad in grads]
        if bad is not None and where is not None and rank == where(n):
            grads[bad[0]].view(-1)[1] = bad[1]
        return weights, grads, quiet

    return Case(make, label=label)
