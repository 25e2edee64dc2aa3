"""Lab 2a: a feed-forward between which and the next each rank keeps its positions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import GIVEN, cut, graded, joined, no_gradient, nth_part, others, times_n
from course_lib.lab.exercises.wrong import sequence_parallel_mlp as mlps
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple

NAMES = ("x", "norm_weight", "up", "down")
CUT = {"x": 0, "up": 0, "down": 1}  # along which dim
D, F_ = 6, 24


def positions(each: int) -> Case:
    """A case: this rank's positions, norm_weight alike, the shards of up and down, the gradient of the result."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        shared = generator("sequence", each, n)
        shapes = (each * n, D), (D,), (F_, D), (D, F_), (each * n, D)
        x, norm, up, down, upstream = (random_tensor(shape, shared, torch.float64) for shape in shapes)
        return cut(x, 0, n)[rank], norm, cut(up, 0, n)[rank], cut(down, 1, n)[rank], cut(upstream, 0, n)[rank]

    return Case(make, label=f"{each} position{'s' * (each != 1)} on each rank")


def run(answer: Callable, *args: Tensor, **group: Any) -> Any:
    return graded(answer, dict(zip(NAMES, args, strict=False)), args[-1], **group)


def mlp(x: Tensor, norm_weight: Tensor | None, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(F.rms_norm(x, (D,), norm_weight), up)), down)


def whole(inputs: list[tuple]) -> list[Tensor]:
    """The arguments of one process."""
    x, up, down, upstream = (joined(inputs, i, dim) for i, dim in ((0, 0), (2, 0), (3, 1), (4, 0)))
    return [x, inputs[0][1], up, down, upstream]


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    found = run(mlp, *whole(inputs))
    parts = {f"gradient of {name}": cut(found[f"gradient of {name}"], dim, n) for name, dim in CUT.items()}
    parts["result"] = cut(found["result"], 0, n)
    return [found | {name: of_ranks[rank] for name, of_ranks in parts.items()} for rank in range(n)]


def by_own_columns(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """All positions, and of the feed-forward this rank's columns alone."""
    x, norm, _, _, upstream = whole(inputs)
    return [run(mlp, x, norm, up, down, upstream) for _, norm, up, down, _ in inputs]


def result(compute: Callable[[list[tuple], int], list[Tensor]], name: str, sentence: str) -> Callable:
    return looks_like(lambda inputs, n: [{"result": y} for y in compute(inputs, n)], name, sentence, part="result")


def not_added(inputs: list[tuple], n: int) -> list[Tensor]:
    return [cut(found["result"], 0, n)[rank] for rank, found in enumerate(by_own_columns(inputs, n))]


def positions_mixed(inputs: list[tuple], n: int) -> list[Tensor]:
    return [sum(mlp(*args[:4]) for args in inputs)] * n


def without(norm: bool) -> Callable[[list[tuple], int], list[Tensor]]:
    """No norm at all, or one without its weight."""

    def compute(inputs: list[tuple], n: int) -> list[Tensor]:
        x, _, up, down, _ = whole(inputs)
        y = mlp(x, None, up, down) if norm else F.linear(F.gelu(F.linear(x, up)), down)
        return cut(y, 0, n)

    return compute


def norm_by_positions(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """The norm's gradient by this rank's positions, through all columns."""
    _, norm, up, down, _ = whole(inputs)
    name = "gradient of norm_weight"
    return [{name: run(mlp, args[0], norm, up, down, args[4])[name]} for args in inputs]


def norm_by_columns(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """The norm's gradient by all positions, through this rank's columns."""
    name = "gradient of norm_weight"
    return [{name: found[name]} for found in by_own_columns(inputs, n)]


@signature
def all_positions(e: Evidence) -> str | None:
    """Every rank returns the whole sum."""
    if e.where != "`result`" or not all(isinstance(e.observed[r], Tensor) for r in e.wrong):
        return None
    r = e.wrong[0]
    if e.observed[r].shape != (e.n * len(e.expected[r]), D):
        return None
    return (
        f"rank {r} returned all {len(e.observed[r])} positions. Between layers a rank keeps its own "
        f"{len(e.expected[r])}: in place of the all-reduce, a reduce-scatter gives each rank the sum for its part"
    )


@signature
def own_columns_in_backward(e: Evidence) -> str | None:
    """The gradient of x lacks what the other ranks' columns found."""
    if e.where != "`gradient of x`" or not e.comparable:
        return None
    found = [cut(v["gradient of x"], 0, e.n)[r] for r, v in enumerate(by_own_columns(e.inputs, e.n))]
    if not all(same(e.observed[r], found[r]) for r in e.wrong):
        return None
    right = one_process(e.inputs, e.n)
    if all(same(others(e, r).get("gradient of up"), right[r]["gradient of up"]) for r in range(e.n)):
        return (
            "the result is right, but the gradient of x comes through this rank's columns alone: in backward, the "
            "gather at the start keeps a rank's part and adds nothing. Ranks go on with different columns, so what "
            "they find is added: `all_gather`, whose backward is a reduce-scatter"
        )
    return (
        "the result is right, but in backward each rank knows the gradient of its own positions alone: a part that was "
        "cut out of the sum has zeros everywhere else. `reduce_scatter` gathers the gradients of all positions"
    )


SEQUENCE_PARALLEL_MLP = Exercise(
    name="sequence_parallel_mlp",
    lab="lab2a",
    title="A feed-forward, sequence parallel",
    minutes=20,
    difficulty=3,
    reference=simple.sequence_parallel_mlp,
    cases=[positions(3), positions(1)],
    expected=one_process,
    call=run,
    may_use=COLLECTIVES,
    may_call=GIVEN,
    takes_group=True,
    least_bytes=lambda n, rank, args: 4 * args[0].nbytes + args[1].nbytes,
    signatures=[
        all_positions,
        result(
            not_added,
            "not_added",
            "each rank has its own positions, and of the sum over the columns its own part alone. `reduce_scatter` "
            "adds before it cuts.",
        ),
        result(
            positions_mixed,
            "positions_mixed",
            "the ranks' positions were never gathered: each rank computes its own columns of its own positions, and "
            "the sum mixes different positions.",
        ),
        result(without(norm=False), "no_norm", "the norm is missing: the rest is right."),
        result(without(norm=True), "no_norm_weight", "the norm is there, without its weight: the rest is right."),
        own_columns_in_backward,
        times_n(
            "gradient of x",
            "reduced_twice",
            "the result is right, but the gradient of x is {n} times too large: it is summed twice. The reduce-scatter "
            "in backward of `all_gather` does all of it, there is no f beside it.",
        ),
        looks_like(
            norm_by_positions,
            "norm_not_reduced",
            "all is right but the gradient of norm_weight. The weight is alike on all ranks, and each has found the "
            "part of the gradient that its own positions give: it goes into work that differs by rank.",
            part="gradient of norm_weight",
        ),
        looks_like(
            norm_by_columns,
            "norm_of_all_not_reduced",
            "all is right but the gradient of norm_weight. Here every rank norms all positions, and goes on with its "
            "own columns: the gradient is a part of the sum still.",
            part="gradient of norm_weight",
        ),
        nth_part(
            "gradient of norm_weight",
            "norm_averaged",
            "all is right but the gradient of norm_weight, which is 1/{n} of what it should be. Each rank has found "
            "another part of it: a sum, not a mean.",
        ),
        times_n(
            "gradient of norm_weight",
            "norm_reduced_twice",
            "all is right but the gradient of norm_weight, which is {n} times too large: it is summed twice.",
        ),
        no_gradient,
    ],
    hints=[
        "Begin with the feed-forward of `column_then_row`, and put other collectives in the place of f and g: before "
        "it come n parts of the positions, after it n terms of a sum.",
        "What each rank holds:\n"
        "    x                S/n positions\n"
        "    norm(x)          S/n positions     norm_weight: alike, used on other positions by each rank\n"
        "    all_gather       S positions\n"
        "    gelu(x up^T)     S positions, F/n columns\n"
        "    ... down^T       S positions, a part of the sum\n"
        "    reduce_scatter   S/n positions, the sum",
        "`norm_weight = copy_to(norm_weight, group)`, so that its gradient is summed; `x = F.rms_norm(x, "
        "norm_weight.shape, norm_weight)`; `x = all_gather(x, 0, group)`; the two matrices; "
        "`reduce_scatter(..., 0, group)`.",
    ],
    advice={
        "too_many_bytes": "An all-reduce leaves the whole sum on every rank, of which it keeps 1/n. `reduce_scatter` "
        "sends less.",
    },
    wrong=[
        Wrong(mlps.norm_not_reduced, "part of the gradient that its own positions give"),
        Wrong(mlps.norm_after_the_gather, "every rank norms all positions"),
        Wrong(mlps.norm_averaged, "Each rank has found another part of it"),
        Wrong(mlps.norm_reduced_twice, "is 4 times too large: it is summed twice."),
        Wrong(mlps.all_reduced, "returned all 12 positions"),
        Wrong(mlps.all_reduced_and_cut, "a part that was cut out of the sum has zeros"),
        Wrong(mlps.all_reduced_and_scattered, "leaves the whole sum on every rank"),
        Wrong(mlps.cut_without_a_sum, "adds before it cuts"),
        Wrong(mlps.gathered_for_the_same_work, "keeps a rank's part and adds nothing"),
        Wrong(mlps.f_beside_the_gather, "there is no f beside it"),
        Wrong(mlps.never_gathered, "the sum mixes different positions"),
        Wrong(mlps.without_norm, "the norm is missing"),
        Wrong(mlps.without_norm_weight, "the norm is there, without its weight"),
        Wrong(mlps.gathered_by_torch, "backward never reaches `x`"),
        Wrong(mlps.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="An all-gather and a reduce-scatter send what one all-reduce does, and between layers each rank keeps 1/n "
    "of the activations. New is the sum of the norm's gradient: D numbers.",
)
