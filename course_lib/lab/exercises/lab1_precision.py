"""Lab 1: a step of mixed precision, in the right order and on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from course_lib.lab import show
from course_lib.lab.evidence import Aside, Evidence
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.wrong import scaled_step as steps
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.training import precision

SHAPES = ((3,), (2, 2), (4,))
SCALE, MAX_NORM, INTERVAL = 1024.0, 1.0, 4
DECAY = 0.1  # so that a step with gradients of zero is a step, too
INSTEAD = "Order: unscale, agree, clip, step, update."


class Descent(torch.optim.SGD):
    """Gradient descent that counts its steps."""

    def __init__(self, parameters: list[Parameter]) -> None:
        super().__init__(parameters, lr=1.0, weight_decay=DECAY)
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        super().step()


class Counted(precision.LossScale):
    """A loss scale that counts its updates."""

    updates = 0

    def update(self, overflow: bool) -> None:
        self.updates += 1
        super().update(overflow)


def stepped(answer: Callable, weights: list[Tensor], grads: list[Tensor], quiet: int, **group: Any) -> dict[str, Any]:
    """One step from gradients of the scaled loss: the parameters and the scale after it."""
    parameters = [Parameter(w.clone()) for w in weights]
    for p, grad in zip(parameters, grads, strict=True):
        p.grad = grad.clone()
    descent, scale = Descent(parameters), Counted(SCALE, INTERVAL, quiet)
    taken = answer(parameters, descent, scale, MAX_NORM, **group)
    return {
        "parameters": flat([p.detach() for p in parameters]),
        "scale": float(scale.value),
        "quiet": int(scale.quiet),
        "taken": bool(taken) if isinstance(taken, Tensor) else taken,
        "seen": Aside({"steps": descent.steps, "updates": scale.updates}),
    }


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def descended(weights: list[Tensor], direction: Tensor) -> Tensor:
    return flat(weights) * (1 - DECAY) - direction


def clipped(direction: Tensor) -> Tensor:
    return direction * min(1.0, MAX_NORM / (float(direction.norm()) + 1e-6))


def finite(grads: list[Tensor]) -> bool:
    return bool(flat(grads).isfinite().all())


def stepped_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    taken = all(finite(grads) for _, grads, _ in inputs)
    found = []
    for weights, grads, quiet in inputs:
        scale = precision.LossScale(SCALE, INTERVAL, quiet)
        scale.update(not taken)
        after = descended(weights, clipped(flat(grads) / SCALE)) if taken else flat(weights)
        found.append({"parameters": after, "scale": scale.value, "quiet": scale.quiet, "taken": taken})
    return found


def direction(of: Callable[[Tensor], Tensor], name: str, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the parameters are what they are after a step by of(gradient of the scaled loss)."""
    return looks_like(
        lambda inputs, n: [{"parameters": descended(w, of(flat(grads)))} for w, grads, _ in inputs],
        name,
        sentence,
        part="parameters",
    )


def gradients(
    label: str,
    norm: float,
    bad: tuple[int, float] | None = None,
    where: Callable[[int], int] | None = None,
    quiet: int = 1,
) -> Case:
    """norm: of the gradient itself, without the scale. bad: (parameter, value) of one element on rank where(n)."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor], int]:
        weights = [torch.full(shape, 1.0 + i) for i, shape in enumerate(SHAPES)]
        grads = [random_tensor(shape, rng) for shape in SHAPES]
        length = float(flat(grads).norm())
        grads = [grad * (SCALE * norm / length) for grad in grads]
        if bad is not None and where is not None and rank == where(n):
            grads[bad[0]].view(-1)[1] = bad[1]
        return weights, grads, quiet

    return Case(make, label=label)


def overflow_at(e: Evidence) -> tuple[int, int, float] | None:
    """(rank, parameter, value) of the gradient that is not finite."""
    for r, (_, grads, _) in enumerate(e.inputs):
        for i, grad in enumerate(grads):
            if not bool(grad.isfinite().all()):
                return r, i, float(grad[~grad.isfinite()][0])
    return None


@signature
def ranks_part(e: Evidence) -> str | None:
    """Some ranks take the step, others leave it out."""
    took = [bool(e.aside(r).get("steps")) for r in range(e.n)]
    bad = overflow_at(e)
    if bad is None or e.where != "`parameters`" or len(set(took)) == 1:
        return None
    without, with_it = [r for r in range(e.n) if not took[r]], [r for r in range(e.n) if took[r]]
    leave = "leaves" if len(without) == 1 else "leave"
    take = "takes" if len(with_it) == 1 else "take"
    return (
        f"{show.ranks(without)} {leave} the step out, {show.ranks(with_it)} {take} it: from now on the parameters "
        f"differ. Only rank {bad[0]} sees that its gradient is {bad[2]}; it must tell the others"
    )


@signature
def steps_in_spite(e: Evidence) -> str | None:
    """A gradient is not finite, and all ranks step."""
    bad = overflow_at(e)
    if bad is None or e.where != "`parameters`" or not all(e.aside(r).get("steps") for r in range(e.n)):
        return None
    rank, which, value = bad
    if all(bool(e.observed[r].isfinite().all()) for r in range(e.n)):
        return (
            "the optimizer steps with other gradients in place of the infinite ones. Leave the step out: even with "
            "gradients of zero, weight decay and momentum move the parameters"
        )
    told = f"on rank {rank} a gradient of parameter {which} is {value}, and the step is taken all the same"
    if any(call.reduce == "MIN" for call in (e.collectives or [[]])[0]):
        return f"{told}. The verdicts are reduced with MIN: one rank's alarm is enough, so take the MAX"
    return told


@signature
def scales_differ(e: Evidence) -> str | None:
    scales = [(e.returned or e.observed)[r]["scale"] for r in range(e.n)]
    if e.where not in ("`scale`", "`quiet`") or len(set(scales)) == 1:
        return None
    r = next(r for r in range(e.n) if scales[r] != scales[0])
    return (
        f"the scale is {show.number(scales[0])} on rank 0 and {show.number(scales[r])} on rank {r}: they would add up "
        "gradients of different scales. Update it by what all agreed on"
    )


@signature
def never_updated(e: Evidence) -> str | None:
    if e.where not in ("`scale`", "`quiet`") or e.aside(e.wrong[0]).get("updates"):
        return None
    after = "an overflow" if overflow_at(e) else "a step"
    return f"the step is right, and the scale learns nothing of it: `scale.update` is not called after {after}"


@signature
def updated_by_the_opposite(e: Evidence) -> str | None:
    if e.where not in ("`scale`", "`quiet`") or e.aside(e.wrong[0]).get("updates") != 1:
        return None
    r = e.wrong[0]
    scale = (e.returned or e.observed)[r]["scale"]
    if overflow_at(e) is None and scale < SCALE:
        return f"the scale is halved, to {show.number(scale)}, though nothing overflowed. `update` takes the overflow"
    if overflow_at(e) is not None and scale >= SCALE:
        return f"the scale is {show.number(scale)} after an overflow, it should be halved. `update` wants to know of it"
    return None


@signature
def returns_the_opposite(e: Evidence) -> str | None:
    if e.where != "`taken`" or any(not isinstance(e.observed[r], bool) for r in range(e.n)):
        return None
    r = e.wrong[0]
    step = "was taken" if e.expected[r] else "was left out"
    return f"all is right but what it returns: the step {step}, and rank {r} returned {e.observed[r]}"


SCALED_STEP = Exercise(
    name="scaled_step",
    lab="lab1",
    title="A step in mixed precision",
    minutes=20,
    difficulty=2,
    reference=precision.scaled_step,
    cases=[
        gradients("gradients of norm 0.5, max_norm 1", 0.5),
        gradients("gradients of norm 8, max_norm 1", 8.0),
        gradients("an infinite gradient on the last rank", 0.5, (0, float("inf")), lambda n: n - 1),
        gradients("a NaN on rank 0, in the last parameter", 0.5, (2, float("nan")), lambda n: 0),
        gradients("the last step of a quiet time", 0.5, quiet=INTERVAL - 1),
    ],
    expected=stepped_expected,
    call=stepped,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        ranks_part,
        steps_in_spite,
        direction(
            lambda g: clipped(g) / SCALE,
            "clip_before_unscale",
            "clipped before unscaling: the norm of the scaled gradients is compared with max_norm, so nearly all steps "
            f"are cut, and by the scale as well. {INSTEAD}",
        ),
        direction(
            clipped,
            "never_unscaled",
            f"the gradients are clipped and never divided by the scale: they are still those of the loss times 1024. "
            f"{INSTEAD}",
        ),
        direction(
            lambda g: g / SCALE,
            "never_clipped",
            f"the step is taken with gradients that are not clipped. {INSTEAD}",
        ),
        direction(
            lambda g: clipped(g / SCALE / 2),
            "divided_by_the_next_scale",
            "the gradients are divided by a scale that has been updated already. They belong to the one before: update "
            "last.",
        ),
        direction(
            (lambda g: clipped(g / SCALE / SCALE)), "divided_twice", "the gradients are divided by the scale twice."
        ),
        scales_differ,
        never_updated,
        updated_by_the_opposite,
        returns_the_opposite,
    ],
    hints=[
        "max_norm is meant for the gradients of the loss itself. What must be done to them before it can be asked? And "
        "who must know of an infinite gradient on one rank?",
        "Two ranks, an infinite gradient on rank 1:\n"
        "              rank 0             rank 1\n"
        "    unscale   g / scale          g / scale\n"
        "    look      all finite: 0      inf: 1\n"
        "    agree     1                  1              (the maximum)\n"
        "    step      left out           left out\n"
        "    update    halved             halved",
        "`overflow = torch.tensor(float(...))`: whether any gradient has an element that is not `isfinite()`. "
        "`dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)`. If it is 0: `clip_grad_norm(parameters, "
        "max_norm)` and `optimizer.step()`. In any case `scale.update(bool(overflow))`.",
    ],
    advice={
        "calls_left_out": "A rank that sees an overflow must still tell the others.",
        "calls_differ": "A rank that sees an overflow must still tell the others.",
    },
    wrong=[
        Wrong(steps.clip_before_unscale, "clipped before unscaling"),
        Wrong(steps.never_unscaled, "never divided by the scale"),
        Wrong(steps.never_clipped, "that are not clipped"),
        Wrong(steps.clip_after_step, f"with gradients that are not clipped. {INSTEAD}"),
        Wrong(steps.own_verdict, "leaves the step out, ranks"),
        Wrong(steps.step_in_spite, "is inf, and the step is taken all the same"),
        Wrong(steps.first_parameter_alone, "a gradient of parameter 2 is nan, and the step"),
        Wrong(steps.nan_overlooked, "on rank 0 a gradient of parameter 2 is nan"),
        Wrong(steps.minimum, "one rank's alarm is enough, so take the MAX"),
        Wrong(steps.without_update, "not called after a step"),
        Wrong(steps.update_on_overflow_alone, "`scale.update` is not called after a step"),
        Wrong(steps.update_of_a_step_alone, "not called after an overflow"),
        Wrong(steps.update_with_taken, "though nothing overflowed"),
        Wrong(steps.own_scale, "they would add up gradients of different scales"),
        Wrong(steps.returning_overflow, "all is right but what it returns"),
        Wrong(steps.update_before_unscale, "by a scale that has been updated already"),
        Wrong(steps.step_with_zeros, "even with gradients of zero, weight decay"),
        Wrong(steps.in_a_copy, "still those of the loss times 1024"),
        Wrong(steps.overflow_leaves_early, "must still tell the others"),
        Wrong(steps.without_group, "ight on the whole world, wrong in a group"),
    ],
)
