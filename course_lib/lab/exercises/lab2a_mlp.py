"""Lab 2a: a feed-forward cut by columns, then by rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import GIVEN, cut, graded, in_part, joined, no_gradient, nth_part, times_n
from course_lib.lab.exercises.wrong import column_then_row as mlps
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple

NAMES = ("x", "up", "up_bias", "down", "down_bias")
CUT = {"up": 0, "up_bias": 0, "down": 1}  # along which dim
T, D, F_ = 5, 6, 24


def feed_forward(tokens: int) -> Case:
    """A case: x and down_bias alike, the shards of up, up_bias and down; last, the gradient of the result."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        shared = generator("column_then_row", tokens)
        shapes = (tokens, D), (F_, D), (F_,), (D, F_), (D,), (tokens, D)
        whole = [random_tensor(shape, shared, torch.float64) for shape in shapes]
        return tuple(
            cut(t, CUT[name], n)[rank] if name in CUT else t
            for name, t in zip((*NAMES, "upstream"), whole, strict=True)
        )

    return Case(make, label=f"{tokens} token{'s' * (tokens != 1)}")


def run(answer: Callable, *args: Tensor, **group: Any) -> Any:
    return graded(answer, dict(zip(NAMES, args, strict=False)), args[-1], **group)


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor | float = 0.0) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down) + down_bias


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    x, *_, down_bias, upstream = inputs[0]
    whole = {"x": x, "up": joined(inputs, 1), "up_bias": joined(inputs, 2), "down": joined(inputs, 3, 1)}
    found = graded(mlp, whole | {"down_bias": down_bias}, upstream)
    parts = {f"gradient of {name}": cut(found[f"gradient of {name}"], dim, n) for name, dim in CUT.items()}
    return [found | {name: of_ranks[rank] for name, of_ranks in parts.items()} for rank in range(n)]


def partials(inputs: list[tuple]) -> list[Tensor]:
    return [mlp(*args[:4]) for args in inputs]


def result(compute: Callable[[list[tuple], int], list[Tensor]], name: str, sentence: str) -> Callable:
    """A signature: the result is what compute(inputs, n) gives, rank by rank."""
    return looks_like(lambda inputs, n: [{"result": y} for y in compute(inputs, n)], name, sentence, part="result")


def with_bias(times: Callable[[int], int]) -> Callable[[list[tuple], int], list[Tensor]]:
    return lambda inputs, n: [sum(partials(inputs)) + times(n) * inputs[0][4]] * n


def own_part(inputs: list[tuple], n: int) -> list[Tensor]:
    return [part + args[4] for part, args in zip(partials(inputs), inputs, strict=True)]


def hidden_added(inputs: list[tuple], n: int) -> list[Tensor]:
    """An all-reduce between the two matrices, and one after them."""
    hidden = F.gelu(sum(F.linear(*args[:3]) for args in inputs))
    return [sum(F.linear(hidden, args[3]) for args in inputs) + inputs[0][4]] * n


def gradient_of_x(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """What each rank finds by its own columns alone."""
    return [{"gradient of x": graded(mlp, dict(zip(NAMES, a, strict=False)), a[5])["gradient of x"]} for a in inputs]


@signature
def hidden_added_alone(e: Evidence) -> str | None:
    """An all-reduce between the two matrices, and none after them."""
    if e.where != "`result`" or not e.comparable:
        return None
    hidden = F.gelu(sum(F.linear(*args[:3]) for args in e.inputs))
    if not all(same(e.observed[r], F.linear(hidden, e.inputs[r][3], e.inputs[r][4])) for r in e.wrong):
        return None
    return (
        "the all-reduce stands between the two matrices: that is row, then column. Each rank has other columns of "
        "the hidden layer there, whole ones; what is a part of a sum comes after `down`"
    )


@signature
def bias_on_some(e: Evidence) -> str | None:
    """The result is right, and some ranks never used the bias."""
    if e.where != "`gradient of down_bias`" or all(e.observed[r] is None for r in range(e.n)):
        return None
    without = [r for r in e.wrong if e.observed[r] is None or not e.observed[r].any()]
    if not without or len(without) != len(e.wrong):
        return None
    return (
        f"the result is right, but rank {without[0]} adds no bias, and so finds no gradient of it: its copy of the "
        "bias stays where it is and the others' move. Add it on every rank, after the sum"
    )


@signature
def everything_times_n(e: Evidence) -> str | None:
    """g's backward reduces too: all that comes before has an n times too large gradient, the bias has not."""
    if e.where != "`gradient of x`" or not e.comparable:
        return None
    values = [(e.returned or e.observed)[r] for r in range(e.n)]
    right = one_process(e.inputs, e.n)
    if not all(
        same(v.get(f"gradient of {name}"), w[f"gradient of {name}"] * e.n)
        for v, w in zip(values, right, strict=True)
        for name in ("x", "up", "down")
    ):
        return None
    return (
        f"the gradients of x, up and down are all {e.n} times too large: the all-reduce at the end reduces in backward "
        "too. What follows it is alike on all ranks, so each has the whole gradient already: `reduce_from`"
    )


COLUMN_THEN_ROW = Exercise(
    name="column_then_row",
    lab="lab2a",
    title="Column, then row",
    minutes=15,
    difficulty=2,
    reference=simple.column_then_row,
    cases=[feed_forward(T), feed_forward(1)],
    expected=one_process,
    call=run,
    may_use=COLLECTIVES,
    may_call=GIVEN,
    takes_group=True,
    least_bytes=lambda n, rank, args: 2 * args[0].nbytes,
    signatures=[
        result(
            with_bias(lambda n: n),
            "bias_n_times",
            "down_bias is in the sum of all ranks, so it is added n times. Add it once, to the sum.",
        ),
        result(with_bias(lambda n: 0), "no_bias", "down_bias is missing: the rest is right."),
        result(own_part, "own_columns", "each rank has what its own columns give: a part of the sum. Reduce it."),
        result(
            lambda inputs, n: partials(inputs),
            "own_columns_without_bias",
            "each rank has what its own columns give, without the bias: a part of the sum. Reduce it, then add.",
        ),
        hidden_added_alone,
        result(
            hidden_added,
            "hidden_added",
            "the hidden layer is reduced, and that adds up columns that have nothing to do with each other. After a "
            "column-parallel matrix, nothing needs to travel: gelu works on each element by itself.",
        ),
        result(
            lambda inputs, n: [sum(F.linear(F.linear(*a[:3]), a[3]) for a in inputs) + inputs[0][4]] * n,
            "no_gelu",
            "gelu is missing: the rest is right.",
        ),
        result(
            lambda inputs, n: [F.gelu(sum(F.linear(F.linear(*a[:3]), a[3]) for a in inputs)) + inputs[0][4]] * n,
            "gelu_last",
            "gelu comes after both matrices. It belongs between them.",
        ),
        everything_times_n,
        looks_like(
            gradient_of_x,
            "input_not_reduced",
            "the result is right. But each rank's gradient of x comes through its own columns alone, and the sum over "
            "the ranks is missing: x went into work that differs by rank.",
            part="gradient of x",
        ),
        times_n(
            "gradient of x",
            "input_reduced_twice",
            "the gradient of x is {n} times too large, and that of the weights is right: x is reduced more than once "
            "in backward.",
        ),
        bias_on_some,
        nth_part(
            "gradient of down_bias",
            "bias_divided",
            "the result is right, but the gradient of down_bias is 1/{n} of what it should be: each rank adds 1/{n} of "
            "the bias. Add all of it, after the sum.",
        ),
        times_n(
            "gradient of down_bias",
            "bias_reduced",
            "the result is right, but the gradient of down_bias is {n} times too large. All ranks add it to the same "
            "sum and find the same gradient: there is nothing to reduce.",
        ),
        in_part(
            "gradient of up",
            lambda e, r: True,
            "weights_mixed",
            "the result and the gradient of x are right, that of up is not: it belongs to this rank's rows alone, "
            "nothing is to be reduced there.",
        ),
        no_gradient,
    ],
    hints=[
        "Three lines as in one process, with this rank's shards. Which of the values between is a part of a sum, and "
        "which is this rank's own?",
        "What each rank holds:\n"
        "    x            alike          (T, D)\n"
        "    x up^T       some columns   (T, F/n)      whole numbers, of this rank alone\n"
        "    gelu(...)    some columns   (T, F/n)      element by element\n"
        "    ... down^T   all columns    (T, D)        each a part of a sum: reduce_from\n"
        "    + bias       alike          (T, D)        once",
        "`x = copy_to(x, group)`, for backward; `hidden = F.gelu(F.linear(x, up, up_bias))`; then "
        "`reduce_from(F.linear(hidden, down), group) + down_bias`.",
    ],
    advice={
        "too_many_bytes": "The hidden layer need not travel: gelu works on each element by itself. x and the result "
        "make one all-reduce each."
    },
    wrong=[
        Wrong(mlps.bias_on_every_rank, "so it is added n times"),
        Wrong(mlps.without_bias, "down_bias is missing"),
        Wrong(mlps.never_reduced, "own columns give: a part of the sum. Reduce it."),
        Wrong(mlps.never_reduced_nor_biased, "without the bias: a part of the sum"),
        Wrong(mlps.row_then_column, "that is row, then column"),
        Wrong(mlps.reduced_between, "columns that have nothing to do with each other"),
        Wrong(mlps.hidden_gathered, "The hidden layer need not travel"),
        Wrong(mlps.without_gelu, "gelu is missing"),
        Wrong(mlps.gelu_last, "gelu comes after both matrices"),
        Wrong(mlps.input_not_copied, "x went into work that differs by rank"),
        Wrong(mlps.reduced_in_backward_too, "reduces in backward too"),
        Wrong(mlps.copied_twice, "x is reduced more than once"),
        Wrong(mlps.bias_on_rank_0, "adds no bias, and so finds no gradient"),
        Wrong(mlps.bias_divided, "each rank adds 1/4 of the bias"),
        Wrong(mlps.bias_copied, "there is nothing to reduce"),
        Wrong(mlps.weights_copied, "belongs to this rank's rows alone"),
        Wrong(mlps.detached, "backward never reaches `x`"),
        Wrong(mlps.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="Two matrices cost two all-reduces of T x D numbers, one in forward and one in backward, however wide the "
    "hidden layer is.",
)
