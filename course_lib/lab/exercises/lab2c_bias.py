"""Lab 2c: the bias moved after a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.evidence import Aside, Evidence, plain, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, generator
from course_lib.lab.exercises.wrong import update_bias as updates
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.expert import simple

EXPERTS, RATE = 6, 0.25  # a rate that adds up without rounding
EVERYBODY = "A rank that had no tokens takes part in the sum all the same."


def loads(label: str, counts: Callable[[int, int, torch.Generator], list[int] | Tensor]) -> Case:
    """A case: counts(rank, n, rng) by expert; the bias is alike on all ranks."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, float]:
        bias = torch.randint(-8, 9, (EXPERTS,), generator=generator("bias", label, n)) * RATE
        return bias, torch.as_tensor(counts(rank, n, rng)), RATE

    return Case(make, label=label)


def uneven(rank: int, n: int, rng: torch.Generator) -> Tensor:
    """Each rank's tokens like others best."""
    return torch.randint(0, 8, (EXPERTS,), generator=rng) + torch.tensor([9, 2, 0, 0, 5, 1]).roll(rank)


def around_the_mean(rank: int, n: int, rng: torch.Generator) -> list[int]:
    a, b = torch.randint(1, 5, (2,), generator=rng).tolist()
    return [5, 5 + a, 5 - a, 5 + b, 5 - b, 5]


def updated(answer: Callable, bias: Tensor, counts: Tensor, rate: float, **group: Any) -> dict[str, Any]:
    """The bias and the counts after it."""
    bias, counts = bias.clone(), counts.clone()
    returned = answer(bias, counts, rate, **group)
    return {"bias": bias, "counts": counts, "seen": Aside({"returned": plain(returned)})}


def moved(direction: Callable[[Tensor, Tensor], Tensor]) -> Callable[[list[tuple], int], list[dict[str, Tensor]]]:
    """direction(load of all ranks, this rank's): by how many rates the bias moves."""

    def found(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        total = sum(counts for _, counts, _ in inputs).float()
        return [{"bias": bias + rate * direction(total, counts.float())} for bias, counts, rate in inputs]

    return found


def right(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    found = moved(lambda load, own: torch.sign(load.mean() - load))(inputs, n)
    return [{**bias, "counts": counts} for bias, (_, counts, _) in zip(found, inputs, strict=True)]


def bias(direction: Callable[[Tensor, Tensor], Tensor], name: str, sentence: str) -> Signature:
    """A signature: the bias moved by direction(load, own load), see `moved`."""
    return looks_like(moved(direction), name, sentence, part="bias")


@signature
def not_in_place(e: Evidence) -> str | None:
    if e.where != "`bias`" or not all(same(e.observed[r], e.inputs[r][0]) for r in e.wrong):
        return None
    if all(same(e.aside(r).get("returned"), e.expected[r]) for r in e.wrong):
        return "the right bias is returned, and the one that was given is as it was. Change it in place: `bias += ...`"
    return "the bias is what it was. `bias = bias + ...` makes another tensor; `bias += ...` changes this one"


@signature
def signs_added(e: Evidence) -> str | None:
    """Each rank's own direction, reduced."""
    if e.where != "`bias`" or not e.comparable:
        return None
    own = [counts.float() for _, counts, _ in e.inputs]
    steps = sum(torch.sign(x.mean() - x) for x in own)
    for step in (steps, steps / e.n):
        if all(same(e.observed[r], e.inputs[r][0] + RATE * step) for r in e.wrong):
            return (
                "the ranks' own directions are added up, and not their loads: a rank with few tokens says as much as "
                "one with many. Add the counts, then take the sign"
            )
    return None


@signature
def counts_changed(e: Evidence) -> str | None:
    if e.where != "`counts`":
        return None
    r, total = e.wrong[0], sum(counts for _, counts, _ in e.inputs)
    summed = ": they hold the sum over the ranks" if same(e.observed[r], total) else ""
    return (
        f"the bias is right, but rank {r}'s counts are not its own any more{summed}. The caller may need them: reduce "
        "a copy"
    )


UPDATE_BIAS = Exercise(
    name="update_bias",
    lab="lab2c",
    title="Move the bias",
    minutes=10,
    difficulty=1,
    reference=simple.update_bias,
    cases=[
        loads("other experts are liked on each rank", uneven),
        loads("experts 0 and 5 have just the mean", around_the_mean),
        loads("the mean is no whole number", lambda rank, n, rng: [2, 2, 2, 2, 2, 2 + (rank == 0)]),
        loads("no tokens on the last rank", lambda rank, n, rng: [0] * 6 if rank == n - 1 else uneven(rank, n, rng)),
        loads("an even load", lambda rank, n, rng: [3] * 6),
    ],
    expected=right,
    call=updated,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        not_in_place,
        bias(
            lambda load, own: torch.sign(load - load.mean()),
            "wrong_way",
            "the wrong way: the bias of those with more than the mean goes up, and they get more still.",
        ),
        bias(
            lambda load, own: torch.sign(own.mean() - own),
            "own_counts",
            "each rank goes by its own counts, and the ranks' biases part: then the same token has other experts on "
            "another rank. Add up the counts of all ranks.",
        ),
        bias(
            lambda load, own: torch.sign(own - own.mean()),
            "own_counts_the_wrong_way",
            "each rank goes by its own counts, and the wrong way.",
        ),
        bias(
            lambda load, own: torch.sign(own.mean() - load),
            "own_mean",
            "the load of all ranks is compared with the mean of this rank's own. Both are of all ranks.",
        ),
        signs_added,
        *(
            bias(
                direction,
                "by_the_amount",
                "the bias moves by how much an expert is off. It moves by `rate`, up or down, whatever the distance: "
                "the sign alone counts, so that one wild step does not throw it far.",
            )
            for direction in (
                lambda load, own: load.mean() - load,
                lambda load, own: (load.mean() - load) / load.mean().clamp(min=1),
                lambda load, own: 1 / EXPERTS - load / load.sum().clamp(min=1),
            )
        ),
        *(
            bias(
                direction,
                "the_mean_moves",
                "an expert that had just the mean over the experts is moved. It keeps its bias: `torch.sign(0)` is 0.",
            )
            for direction in (
                lambda load, own: 1 - 2.0 * (load >= load.mean()),
                lambda load, own: 2.0 * (load <= load.mean()) - 1,
            )
        ),
        bias(
            lambda load, own: torch.sign(load.mean().floor() - load),
            "whole_mean",
            "the mean is rounded down to a whole number, and experts below it seem to have just that. Divide with "
            "`/`, or take the mean of floats.",
        ),
        bias(
            lambda load, own: torch.sign(load.median() - load),
            "median",
            "compared with the median. It goes by the mean over the experts.",
        ),
        bias(
            lambda load, own: torch.sign(load.mean() - load) / RATE,
            "without_rate",
            "the bias moves by 1. It moves by `rate`.",
        ),
        bias(
            lambda load, own: torch.sign(load.mean() - load).clamp(max=0),
            "down_alone",
            "the crowded experts go down, the idle ones do not go up.",
        ),
        bias(
            lambda load, own: torch.sign(load.mean() - load).clamp(min=0),
            "up_alone",
            "the idle experts go up, the crowded ones do not go down.",
        ),
        counts_changed,
    ],
    hints=[
        "Whose load is it: this rank's, or that of all? And how far does the bias of an expert go that had ten times "
        "the mean?",
        "Two ranks, three experts, rate 0.1:\n"
        "    rank 0    8 0 1\n"
        "    rank 1    2 3 4\n"
        "    all      10 3 5       the mean is 6\n"
        "    bias    -0.1 +0.1 +0.1",
        "`total = counts.clone()`, summed over the ranks; `load = total.to(bias.dtype)`; then "
        "`bias += rate * torch.sign(load.mean() - load)`.",
    ],
    advice={"calls_left_out": EVERYBODY, "calls_differ": EVERYBODY},
    wrong=[
        Wrong(updates.returned, "the right bias is returned"),
        Wrong(updates.another_tensor, "makes another tensor"),
        Wrong(updates.wrong_way, "they get more still"),
        Wrong(updates.own_counts, "and the ranks' biases part"),
        Wrong(updates.own_counts_the_wrong_way, "own counts, and the wrong way"),
        Wrong(updates.own_mean, "compared with the mean of this rank's own"),
        Wrong(updates.signs_added, "own directions are added up"),
        Wrong(updates.signs_averaged, "a rank with few tokens says as much"),
        Wrong(updates.by_the_amount, "by how much an expert is off"),
        Wrong(updates.by_the_relative_amount, "the sign alone counts"),
        Wrong(updates.by_the_share, "one wild step does not throw it far"),
        Wrong(updates.mean_goes_down, "an expert that had just the mean over the experts is moved"),
        Wrong(updates.mean_goes_up, "`torch.sign(0)` is 0"),
        Wrong(updates.whole_mean, "rounded down to a whole number"),
        Wrong(updates.by_median, "compared with the median"),
        Wrong(updates.without_rate, "the bias moves by 1"),
        Wrong(updates.down_alone, "the idle ones do not go up"),
        Wrong(updates.up_alone, "the crowded ones do not go down"),
        Wrong(updates.counts_reduced, "they hold the sum over the ranks"),
        Wrong(updates.leaving_without_tokens, EVERYBODY),
        Wrong(updates.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="E whole numbers travel, once a step, and nothing of it is in the backward pass.",
)
