"""Lab 1: a step of mixed precision, in the right order and on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Exercise, Wrong
from course_lib.lab.exercises.lab1_precision_run import (
    INTERVAL,
    SCALE,
    clipped,
    descended,
    flat,
    gradients,
    stepped,
    stepped_expected,
)
from course_lib.lab.exercises.wrong import scaled_step as steps
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.training import precision

INSTEAD = "Order: unscale, agree, clip, step, update."


def direction(of: Callable[[Tensor], Tensor], name: str, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the parameters are what they are after a step by of(gradient of the scaled loss)."""
    return looks_like(
        lambda inputs, n: [{"parameters": descended(w, grads, of(flat(grads)))} for w, grads, _ in inputs],
        name,
        sentence,
        part="parameters",
    )


def overflow_at(e: Evidence) -> tuple[int, int, float] | None:
    """(rank, parameter, value) of the gradient that is not finite."""
    for r, (_, grads, _) in enumerate(e.inputs):
        for i, grad in enumerate(grads):
            if grad is not None and not bool(grad.isfinite().all()):
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
        f"differ. Each rank looks at its own gradients alone, so the others do not learn that one on rank {bad[0]} is "
        f"{bad[2]}. It must tell them"
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
def moves_without_a_gradient(e: Evidence) -> str | None:
    """A parameter that has no gradient is given one of zeros, and weight decay moves it."""
    if e.where != "`parameters`" or not e.comparable:
        return None
    weights, grads, _ = e.inputs[e.wrong[0]]
    missing = [i for i, grad in enumerate(grads) if grad is None]
    sizes = [w.numel() for w in weights]
    found, want = (x[e.wrong[0]].split(sizes) for x in (e.observed, e.expected))
    if not missing or [i for i in range(len(sizes)) if not same(found[i], want[i])] != missing:
        return None
    return (
        f"parameter {missing[0]} has no gradient, and the step moves it: it was given one, of zeros perhaps, and "
        "weight decay does the rest. Pass it over"
    )


@signature
def norm_of_all_ranks(e: Evidence) -> str | None:
    """Clipped by a norm that was reduced over the ranks."""
    if e.where != "`parameters`" or not e.comparable or e.n == 1:
        return None
    norms = torch.tensor([float(flat(grads).norm()) / SCALE for _, grads, _ in e.inputs])
    for norm in (norms.norm(), norms.max(), norms.mean(), norms.sum()):
        steps = (descended(w, grads, clipped(flat(grads) / SCALE, float(norm))) for w, grads, _ in e.inputs)
        if all(same(e.observed[r], step) for r, step in enumerate(steps)):
            return (
                "the gradients are clipped by a norm that was reduced over the ranks. It need not be here: each rank "
                "clips by the norm of its own gradients"
            )
    return None


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
def returns_something_else(e: Evidence) -> str | None:
    if e.where != "`taken`":
        return None
    r = e.wrong[0]
    step = "was taken" if e.expected[r] else "was left out"
    value = e.observed[r]
    told = f"{value:.4g}" if isinstance(value, float) else str(value)[:80]
    missing = ". Is a `return` missing?" if value is None else ""
    return (
        f"all is right but what it returns: the step {step}, so that is {e.expected[r]}, and rank {r} returned "
        f"{told}{missing}"
    )


def small(rank: int) -> float:
    """Norm of a gradient that is not clipped."""
    return 0.5


SCALED_STEP = Exercise(
    name="scaled_step",
    lab="lab1",
    title="A step in mixed precision",
    minutes=20,
    difficulty=2,
    reference=precision.scaled_step,
    cases=[
        gradients("gradients of norm 0.5, max_norm 1", small),
        gradients("gradients of norm 8 and more, max_norm 1", lambda rank: 8.0 + rank),
        gradients("a gradient of minus infinity on the last rank", small, (0, -float("inf")), lambda n: n - 1),
        gradients("a NaN on rank 0, in the last parameter", small, (2, float("nan")), lambda n: 0),
        gradients("the last step of a quiet time", small, quiet=INTERVAL - 1),
        gradients("a parameter without a gradient", small, without=1),
    ],
    expected=stepped_expected,
    call=stepped,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        ranks_part,
        steps_in_spite,
        moves_without_a_gradient,
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
        norm_of_all_ranks,
        scales_differ,
        never_updated,
        updated_by_the_opposite,
        returns_something_else,
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
        "meets_none": "A parameter without a gradient has None for `p.grad`: pass it over, as `gradients` does.",
    },
    wrong=[
        Wrong(steps.clip_before_unscale, "clipped before unscaling"),
        Wrong(steps.never_unscaled, "never divided by the scale"),
        Wrong(steps.never_clipped, "that are not clipped"),
        Wrong(steps.clip_after_step, f"with gradients that are not clipped. {INSTEAD}"),
        Wrong(steps.own_verdict, "so the others do not learn that one on rank 3 is -inf"),
        Wrong(steps.step_in_spite, "is -inf, and the step is taken all the same"),
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
        Wrong(steps.missing_gradients_met, "has None for `p.grad`: pass it over"),
        Wrong(steps.missing_gradients_looked_at, "comes upon None where it needs a value"),
        Wrong(steps.missing_gradients_made_zeros, "parameter 1 has no gradient, and the step moves it"),
        Wrong(steps.norm_reduced, "a norm that was reduced over the ranks"),
        Wrong(steps.norm_of_the_largest, "each rank clips by the norm of its own"),
        Wrong(steps.update_of_nothing, "LossScale.update() missing"),
        Wrong(steps.without_return, "rank 0 returned None. Is a `return` missing?"),
        Wrong(steps.returning_the_norm, "so that is True, and rank 0 returned 0.5"),
        Wrong(steps.without_group, "ight on the whole world, wrong in a group"),
    ],
)
