"""Lab 2a: f and g, each of which does in backward what the other does in forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import in_part, nth_part, others, times_n
from course_lib.lab.exercises.wrong import copy_to, reduce_from
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple

GIVEN_GRADIENT = "gradient it was given"


def pair_of(shape: tuple[int, ...], x_alike: bool, label: str, transposed: bool = False) -> Case:
    """A case: x and the gradient of the output, of which one is alike on all ranks and the other is not."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        both = [random_tensor(shape, g, torch.float64) for g in (generator("alike", label, n), rng)]
        if transposed:
            both = [t.T for t in both]
        return tuple(both if x_alike else both[::-1])

    return Case(make, label=label)


def applied(answer: Any, x: Tensor, grad: Tensor, group: dist.ProcessGroup | None = None) -> Any:
    """What forward and backward make of x and grad, and what they leave of them."""
    if not (isinstance(answer, type) and issubclass(answer, Function)):
        raise TypeError("this is called as `.apply(x, group)`: it must stay a class, with `(Function)` after its name")
    x, grad = x.clone().requires_grad_(), grad.clone()
    y = answer.apply(x, group)
    value = y
    if isinstance(y, Tensor):
        value = y.detach().clone()
        y.backward(grad)
    return {"forward": value, "x": x.detach(), "backward": x.grad, GIVEN_GRADIENT: grad}


def copied(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    total = sum(grad for _, grad in inputs)
    return [{"forward": x, "x": x, "backward": total, GIVEN_GRADIENT: grad} for x, grad in inputs]


def reduced(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    total = sum(x for x, _ in inputs)
    return [{"forward": total, "x": x, "backward": grad, GIVEN_GRADIENT: grad} for x, grad in inputs]


def own(index: int) -> Callable[[Evidence, int], bool]:
    """Whether a rank has what it put in: x (0) or the gradient (1)."""
    return lambda e, r: same(e.observed[r], e.inputs[r][index])


def cases(x_alike: bool) -> list[Case]:
    return [
        pair_of((9,), x_alike, "9 numbers"),
        pair_of((2, 3, 4), x_alike, "a tensor of 2 x 3 x 4"),
        pair_of((3, 5), x_alike, "a matrix that was transposed", transposed=True),
    ]


@signature
def no_gradient_for_x(e: Evidence) -> str | None:
    if e.where != "`backward`" or any(e.observed[r] is not None for r in e.wrong):
        return None
    return "backward returns None for x: all that was computed before gets no gradient"


@signature
def the_other_one(e: Evidence) -> str | None:
    """f where g is asked for, or g for f."""
    if e.where != "`forward`" or not e.comparable:
        return None
    f_for_g = all(
        same(e.observed[r], e.inputs[r][0]) and same(others(e, r).get("backward"), e.inputs[r][1] * e.n)
        for r in range(e.n)
    )
    if f_for_g:
        return "that is f: forward does nothing and backward reduces. Here it is the other way round"
    g_for_f = all(
        same(e.observed[r], e.inputs[r][0] * e.n) and same(others(e, r).get("backward"), e.inputs[r][1])
        for r in range(e.n)
    )
    if g_for_f:
        return "that is g: forward reduces and backward does nothing. Here it is the other way round"
    return None


def spoiled(part: str, sentence: str) -> Callable[[Evidence], str | None]:
    return in_part(part, lambda e, r: True, "spoiled", sentence)


COPY_TO = Exercise(
    name="CopyTo",
    lab="lab2a",
    title="f: into work that differs by rank",
    minutes=10,
    difficulty=2,
    reference=simple.CopyTo,
    cases=cases(x_alike=True),
    expected=copied,
    call=applied,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=lambda n, rank, args: args[0].nbytes,
    signatures=[
        the_other_one,
        times_n(
            "forward",
            "forward_reduces",
            "forward reduces, and x is the same on all ranks already: it comes out {n} times too large. Return it as "
            "it is.",
        ),
        no_gradient_for_x,
        in_part(
            "backward",
            own(1),
            "not_reduced",
            "each rank's gradient of x is the one that came in: what it computed from x itself. x went to all ranks, "
            "so its gradient is the sum of what they found.",
        ),
        nth_part(
            "backward",
            "averaged",
            "the gradient of x is 1/{n} of what it should be. Each rank has found a part of it: a sum, not a mean.",
        ),
        spoiled(
            GIVEN_GRADIENT,
            "the gradient of x is right, but the sum was written into the gradient that backward was given. Autograd "
            "may have handed the same tensor to somebody else: reduce a copy of it.",
        ),
    ],
    hints=[
        "x is one tensor, and n ranks go on with it. By how much does the loss change if x does? Add up all the ways.",
        "What each does, on 2 ranks:\n"
        "                 rank 0        rank 1\n"
        "    forward      x             x\n"
        "    comes in     a             b           gradients through other columns\n"
        "    backward     a + b         a + b",
        "`ctx.group = group` and `return x.view_as(x)` in forward; in backward `total = grad.clone()`, then "
        "`dist.all_reduce(total, group=ctx.group)`, then `return total, None`.",
    ],
    wrong=[
        Wrong(copy_to.NotReduced, "its gradient is the sum of what they found"),
        Wrong(copy_to.ForwardReducedToo, "forward reduces, and x is the same on all ranks already"),
        Wrong(copy_to.TheOtherOne, "that is g: forward reduces"),
        Wrong(copy_to.Averaged, "a sum, not a mean"),
        Wrong(copy_to.InPlace, "was written into the gradient that backward was given"),
        Wrong(copy_to.OneValue, "returned an incorrect number of gradients"),
        Wrong(copy_to.KeepsWhatIsReturned, "backward returns None for x"),
        Wrong(copy_to.NeverWaiting, "is never waited for"),
        Wrong(copy_to.GroupNotKept, "has no attribute 'group'"),
        Wrong(copy_to.WithoutGroup, "ight on the whole world, wrong in a group"),
        Wrong(copy_to.a_function, "it must stay a class"),
    ],
    closing="Forward sends nothing, and looks as if it were not needed. Backward sends as many bytes as x has.",
)

REDUCE_FROM = Exercise(
    name="ReduceFrom",
    lab="lab2a",
    title="g: out of it again",
    minutes=5,
    difficulty=1,
    reference=simple.ReduceFrom,
    cases=cases(x_alike=False),
    expected=reduced,
    call=applied,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=lambda n, rank, args: args[0].nbytes,
    signatures=[
        the_other_one,
        in_part(
            "forward",
            own(0),
            "not_added",
            "forward returns each rank's own x. What comes out is the sum over the ranks.",
        ),
        spoiled(
            "x",
            "the sum is right, but it was written into x itself, which the caller still holds: reduce a copy.",
        ),
        no_gradient_for_x,
        times_n(
            "backward",
            "backward_reduces",
            "backward reduces too, and the gradient is {n} times too large: every rank holds the whole gradient of the "
            "sum already, and in a sum each term has just that.",
        ),
        nth_part(
            "backward",
            "backward_divides",
            "backward divides by the number of ranks. In a sum, each term gets the whole gradient of the sum.",
        ),
    ],
    hints=[
        "y = a + b. If y moves the loss by 3 for each unit, by how much does a?",
        "What each does, on 2 ranks:\n"
        "                 rank 0        rank 1\n"
        "    goes in      a             b\n"
        "    forward      a + b         a + b\n"
        "    comes in     g             g           all go on alike, so all find the same\n"
        "    backward     g             g",
        "In forward `total = x.clone()`, then `dist.all_reduce(total, group=group)`, then `return total`; in backward "
        "`return grad, None`.",
    ],
    advice={"nothing_returned": "`dist.all_reduce` returns None: the sum is in the tensor that it got."},
    wrong=[
        Wrong(reduce_from.NotReduced, "What comes out is the sum over the ranks"),
        Wrong(reduce_from.BackwardReducedToo, "backward reduces too"),
        Wrong(reduce_from.TheOtherOne, "that is f: forward does nothing"),
        Wrong(reduce_from.InPlace, "it was written into x itself"),
        Wrong(reduce_from.KeepsWhatIsReturned, "the sum is in the tensor that it got"),
        Wrong(reduce_from.Averaged, "a mean where a sum is needed"),
        Wrong(reduce_from.BackwardDivides, "backward divides by the number of ranks"),
        Wrong(reduce_from.NoGradient, "backward returns None for x"),
        Wrong(reduce_from.WithoutGroup, "ight on the whole world, wrong in a group"),
    ],
    closing="All its bytes travel in forward. f and g are a pair: to transpose one of them gives the other.",
)
