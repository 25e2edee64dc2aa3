"""Lab 1: gradients averaged by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from course_lib.lab import show
from course_lib.lab.evidence import Aside, Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.wrong import average_gradients as averages
from course_lib.lab.signatures.words import signature
from course_lib.parallel.data import simple

SHAPES = ((4,), (3, 2), (5,))
UNUSED = "A parameter that this rank did not use still takes part: its share is zero."


def gradients_of(
    label: str,
    *,
    unused: Sequence[int] = (),
    frozen: Sequence[int] = (),
    leftover: bool = False,
    dtype: torch.dtype = torch.float32,
    once: bool = False,
) -> Case:
    """A case: a gradient for each shape. unused: none for these on all ranks but the last.

    frozen: parameters that are. leftover: they have a gradient all the same, from before they were frozen. once: the
    parameters can be looped over once.
    """

    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        grads: list[Tensor | None] = [random_tensor(shape, rng, dtype) for shape in SHAPES]
        for i in range(len(grads)):
            if (i in frozen and not leftover) or (i in unused and rank < n - 1):
                grads[i] = None
        return grads, list(frozen), dtype, once

    return Case(make, label=label)


class Once:
    """Parameters that can be looped over once, as those of `model.parameters()`. loops: how often that was begun."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.left, self.loops = iter(parameters), 0

    def __iter__(self) -> Once:
        self.loops += 1
        return self

    def __next__(self) -> Parameter:
        return next(self.left)


Once.__name__ = "generator"  # so Python's errors call it, where an answer asks for its length or its first item


def averaged(
    answer: Callable, grads: list[Tensor | None], frozen: list[int], dtype: torch.dtype, once: bool, **group: Any
) -> dict[str, Any]:
    """Parameters with these gradients, what the answer made of the gradients, and the parameters themselves."""
    parameters = [Parameter(torch.full(shape, 1.0 + i, dtype=dtype), i not in frozen) for i, shape in enumerate(SHAPES)]
    for p, grad in zip(parameters, grads, strict=True):
        p.grad = grad
    given, places = Once(parameters) if once else parameters, [None if g is None else g.data_ptr() for g in grads]
    answer(given, **group)
    found: dict[str, Any] = {f"gradient {i}": p.grad for i, p in enumerate(parameters)}
    found |= {f"parameter {i}": p.detach() for i, p in enumerate(parameters)}
    stays = [in_place(p.grad, place) for p, place in zip(parameters, places, strict=True)]
    facts = {"memory": [p.data_ptr() for p in parameters], "loops": given.loops if once else 0}
    return found | {"gradients in place": stays, "seen": Aside(facts)}


def in_place(now: Tensor | None, place: int | None) -> bool:
    """Whether a gradient lies where it did (`p.grad.data = ...` moves it); one that was None may lie anywhere."""
    return place is None or now is not None and now.data_ptr() == place


def averaged_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    found = []
    for grads, frozen, dtype, _ in inputs:
        mine: dict[str, Any] = {}
        for i, shape in enumerate(SHAPES):
            theirs = [args[0][i] for args in inputs if args[0][i] is not None]
            mine[f"gradient {i}"] = grads[i] if i in frozen else sum(theirs, torch.zeros(shape, dtype=dtype)) / n
        mine |= {f"parameter {i}": torch.full(shape, 1.0 + i, dtype=dtype) for i, shape in enumerate(SHAPES)}
        found.append(mine | {"gradients in place": [True] * len(SHAPES)})
    return found


def trained_bytes(n: int, rank: int, args: tuple) -> int:
    _, frozen, dtype, _ = args
    return sum(dtype.itemsize * torch.Size(shape).numel() for i, shape in enumerate(SHAPES) if i not in frozen)


@signature
def looped_again(e: Evidence) -> str | None:
    r = next((r for r in e.wrong if e.aside(r).get("loops", 0) > 1), None)
    if r is None:
        return None
    loops = e.aside(r)["loops"]
    return (
        f"rank {r} loops over `parameters` {'twice' if loops == 2 else f'{loops} times'}, and the second time there is "
        "nothing left: `model.parameters()` is a generator. Make a list of it first, or do all in one loop"
    )


@signature
def gradient_for_a_frozen_one(e: Evidence) -> str | None:
    frozen = e.inputs[0][1]
    which = e.where.strip("`").removeprefix("gradient ")
    if not which.isdigit() or int(which) not in frozen:
        return None
    r = e.wrong[0]
    if e.expected[r] is None:
        return f"rank {r}: parameter {which} is frozen (requires_grad is False), and now it has a gradient"
    return f"rank {r}: parameter {which} is frozen (requires_grad is False), and its gradient was changed"


@signature
def parameters_changed(e: Evidence) -> str | None:
    if not e.where.startswith("`parameter"):
        return None
    return (
        f"the gradients are right, but rank {e.wrong[0]}'s {e.where.strip('`')} was changed too. Leave it to the step"
    )


@signature
def parameters_averaged(e: Evidence) -> str | None:
    """What went to the collectives are the parameters, not their gradients."""
    r = e.wrong[0]
    memory = e.aside(r).get("memory", [])
    reduced = [call.memory for call in (e.collectives or [[]] * e.n)[r]]
    which = next((i for i, start in enumerate(memory) if start in reduced), None)
    if which is None:
        return None
    return f"parameter {which} itself was reduced, and its gradient was not. The mean is taken of `p.grad`"


@signature
def new_gradient(e: Evidence) -> str | None:
    """The mean is right, and stands in another tensor than the gradient did."""
    if not e.where.endswith("of `gradients in place`"):
        return None
    which = e.where.removeprefix("item ").partition(" ")[0]
    return (
        f"the mean is right, but rank {e.wrong[0]}'s gradient {which} is a new tensor now, and whoever holds the old "
        "one never learns of the mean: a bucket of which it is a view, for one. Write into it: `p.grad.copy_(mean)`"
    )


@signature
def in_less_precision(e: Evidence) -> str | None:
    """float64 gradients that are right to float32's digits only."""
    if not e.where.startswith("`gradient") or not e.comparable or e.inputs[0][2] != torch.float64:
        return None
    if not all(same(e.observed[r].float(), e.expected[r].float()) for r in e.wrong):
        return None
    return (
        f"rank {e.wrong[0]}, {e.where}: right to about 7 digits, as in float32. These gradients are float64: add them "
        "in their own dtype"
    )


@signature
def mean_in_a_copy(e: Evidence) -> str | None:
    """Everybody's gradient is its own still, though they were exchanged."""
    if not e.where.startswith("`gradient") or not any(e.collectives or []):
        return None
    number = int(e.where.strip("`").removeprefix("gradient "))
    own = [args[0][number] for args in e.inputs]
    if any(g is None for g in own) or not all(same(e.observed[r], own[r]) for r in e.wrong):
        return None
    who = "on every rank" if len(e.wrong) == e.n else f"on {show.ranks(e.wrong)}"
    return (
        f"{who}, {e.where} is this rank's own, as before. A mean was computed, and no `p.grad` holds it: reduce "
        "`p.grad` itself, or copy the mean back"
    )


@signature
def own_gradient_alone(e: Evidence) -> str | None:
    """Divided by n, and nothing was added."""
    if not e.where.startswith("`gradient"):
        return None
    number = int(e.where.strip("`").removeprefix("gradient "))
    own = [e.inputs[r][0][number] for r in range(e.n)]
    if any(g is None for g in own) or not all(same(e.observed[r], own[r] / e.n) for r in e.wrong):
        return None
    return f"rank {e.wrong[0]}, {e.where}: only its own gradient, divided by {e.n}. The sum over the ranks is missing"


@signature
def mean_over_those_who_have_one(e: Evidence) -> str | None:
    """Divided by the number of ranks that have a gradient, not by n."""
    if not e.where.startswith("`gradient"):
        return None
    number = int(e.where.strip("`").removeprefix("gradient "))
    have = [args[0][number] for args in e.inputs if args[0][number] is not None]
    if not 0 < len(have) < e.n or not all(same(e.observed[r], sum(have) / len(have)) for r in e.wrong):
        return None
    return (
        f"rank {e.wrong[0]}, {e.where}: divided by {len(have)}, the ranks that have this gradient. It is a mean over "
        f"all {e.n}: of the others, the share is zero"
    )


AVERAGE_GRADIENTS = Exercise(
    name="average_gradients",
    lab="lab1",
    title="Average the gradients",
    minutes=10,
    difficulty=1,
    reference=simple.average_gradients,
    cases=[
        gradients_of("three parameters"),
        gradients_of("one of three parameters frozen", frozen=[1]),
        gradients_of("a frozen parameter with an old gradient", frozen=[0], leftover=True),
        gradients_of("a parameter that only the last rank used", unused=[1]),
        gradients_of("three parameters in float64", dtype=torch.float64),
        gradients_of("three parameters as `model.parameters()` gives them", once=True),
    ],
    expected=averaged_expected,
    call=averaged,
    may_change=True,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=trained_bytes,
    causes=[looped_again],
    signatures=[
        gradient_for_a_frozen_one,
        parameters_changed,
        parameters_averaged,
        new_gradient,
        in_less_precision,
        mean_in_a_copy,
        own_gradient_alone,
        mean_over_those_who_have_one,
    ],
    hints=[
        "The mean is a sum over the ranks, divided by n. Which collective leaves the sum on every rank?",
        "What about parameters with no gradient:\n"
        "                     rank 0     rank 1     both must\n"
        "    p used by both   grad       grad       all-reduce\n"
        "    p used by one    grad       None       all-reduce: None counts as zeros\n"
        "    p frozen         None       None       pass over it",
        "For each parameter that requires a gradient: if `p.grad` is None, make it `torch.zeros_like(p)`; then "
        "`dist.all_reduce(p.grad, group=group)`, then `p.grad /= n`.",
    ],
    advice={
        "scaled": "Divide by the size of the group, once.",
        "calls_left_out": UNUSED,
        "calls_differ": UNUSED,
        "nothing_returned": UNUSED,
        "wrong_kind": UNUSED,
        "meets_none": f"A frozen parameter has no gradient: pass over it. {UNUSED}",
        "meets_a_generator": "So `model.parameters()` gives them.",
    },
    wrong=[
        Wrong(averages.sums, "a sum where a mean is needed"),
        Wrong(averages.by_a_fixed_four, "Right on 4 ranks, wrong on 2 and 3."),
        Wrong(averages.skipping_unused, "rank 1 calls all_reduce of 6 elements"),
        Wrong(averages.size_without_group, "in a group (ranks 1, 2 and 3 of 4). Pass `group`"),
        Wrong(averages.with_frozen, "frozen (requires_grad is False), and now it has a gradient"),
        Wrong(averages.with_frozen_leftover, "frozen (requires_grad is False), and its gradient was changed"),
        Wrong(averages.in_a_copy, "no `p.grad` holds it"),
        Wrong(averages.parameters, "itself was reduced, and its gradient was not"),
        Wrong(averages.rebinding, "as before. A mean was"),
        Wrong(averages.dividing_alone, "only its own gradient, divided by 4"),
        Wrong(averages.twice_divided, "divided by n twice"),
        Wrong(averages.without_group, "ight on the whole world, wrong in a group"),
        Wrong(averages.never_waiting, "is never waited for"),
        Wrong(averages.one_by_one_of_each_rank, "4 times the bytes"),
        Wrong(averages.over_those_who_have_one, "divided by 1, the ranks that have this gradient"),
        Wrong(averages.to_rank_0, "only rank 0 has the right value"),
        Wrong(averages.maximum, "all ranks agree, but on a wrong value"),
        Wrong(averages.counting_first, "the second time there is nothing left"),
        Wrong(averages.by_index, "takes a generator for a list"),
        Wrong(averages.into_new_tensors, "gradient 0 is a new tensor now"),
        Wrong(averages.into_new_memory, "whoever holds the old one never learns of the mean"),
        Wrong(averages.in_float32, "as in float32. These gradients are float64"),
        Wrong(averages.of_none, "comes upon None where it needs a value"),
        Wrong(averages.waiting_for_none, "waits for None"),
    ],
)
