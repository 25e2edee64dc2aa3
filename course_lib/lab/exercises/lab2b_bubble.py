"""Lab 2b: how many micro-batches a given bubble takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.wrong import micro_batches_for as counts
from course_lib.lab.signatures.words import signature
from course_lib.parallel.pipeline import simple


def wanted(n_ranks: int, share: float) -> Case:
    label = f"{n_ranks} rank{'s' * (n_ranks > 1)}, a bubble of {percent(share)} at most"
    return Case(lambda rank, n, rng: (n_ranks, share), label=label)


def percent(share: float) -> str:
    return f"{show.number(round(100 * share, 2))}%"


def found(answer: Callable, n_ranks: int, share: float) -> Any:
    """What the answer returns; True is no number."""
    count = answer(n_ranks, share)
    return str(count) if isinstance(count, bool) else count


@signature
def a_float(e: Evidence) -> str | None:
    have = e.observed[0]
    if not isinstance(have, float) or have != have:
        return None
    return (
        f"the answer returned {have!r}. A number of micro-batches is an `int`: the fewest that will do, rounded up, "
        "never down"
    )


@signature
def none_at_all(e: Evidence) -> str | None:
    have = e.observed[0]
    if not isinstance(have, int) or have >= 1:
        return None
    return f"the answer returned {have}. A step has 1 micro-batch at least, however large the bubble may be"


def is_that_of(mistaken: Callable, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the number is that of a mistaken version, the first of these that fits."""

    @signature
    def find(e: Evidence) -> str | None:
        have, want = e.observed[0], e.expected[0]
        if not isinstance(have, int) or have != mistaken(*e.inputs[0]):
            return None
        return f"{show.number(have)} micro-batch{'es' * (have != 1)}, it should be {want}. {sentence}"

    find.__name__ = mistaken.__name__
    return find


@signature
def one_off(e: Evidence) -> str | None:
    """At equality: the bubble is just what is allowed."""
    (n_ranks, share), have, want = e.inputs[0], e.observed[0], e.expected[0]
    if not isinstance(have, int) or have != want + 1 or simple.bubble(n_ranks, want) != share:
        return None
    quotient = (n_ranks - 1) * (1 - share) / share
    rounding = ""
    if quotient != want:
        rounding = (
            f" If you rounded a quotient up: (n_ranks - 1) * (1 - share) / share is {want} on paper, and {quotient!r} "
            "in floats. Ask `bubble` whether one fewer will do."
        )
    return (
        f"{have} micro-batches, it should be {want}: with {want} the bubble is just {percent(share)}, and that is "
        f"allowed (`>`, not `>=`).{rounding}"
    )


@signature
def another_count(e: Evidence) -> str | None:
    (n_ranks, share), have, want = e.inputs[0], e.observed[0], e.expected[0]
    if not isinstance(have, int):
        return None
    mine = simple.bubble(n_ranks, have)
    if have < want:
        return (
            f"{have} micro-batches, it should be {want}: with {have} the bubble is {percent(mine)}, and "
            f"{percent(share)} is allowed"
        )
    return (
        f"{have} micro-batches, it should be {want}: {have} will do, with a bubble of {percent(mine)}, but fewer will, "
        f"too: with {want} it is {percent(simple.bubble(n_ranks, want))}"
    )


MICRO_BATCHES_FOR = Exercise(
    name="micro_batches_for",
    lab="lab2b",
    title="How many micro-batches?",
    minutes=10,
    difficulty=1,
    reference=simple.micro_batches_for,
    worlds=(1,),
    cases=[
        wanted(5, 0.15),
        wanted(4, 0.25),
        wanted(4, 0.2),
        wanted(8, 0.1),
        wanted(2, 0.01),
        wanted(4, 0.9),
        wanted(3, 1.0),
        wanted(1, 0.1),
    ],
    call=found,
    signatures=[
        a_float,
        none_at_all,
        is_that_of(
            counts.of_the_working_time,
            "That is the other formula, (n_ranks - 1) / m: idle time over working time. The share asked for is one of "
            "the whole step, working and idle: (n_ranks - 1) / (m + n_ranks - 1).",
        ),
        is_that_of(
            counts.of_all_ranks,
            "A rank waits for the n_ranks - 1 others, not for itself: (n_ranks - 1) / (m + n_ranks - 1).",
        ),
        is_that_of(
            counts.a_multiple_of_the_ranks,
            "That is the next multiple of the number of ranks. The bubble knows of no multiples: any number will do.",
        ),
        is_that_of(
            counts.the_working_share,
            "With so few, ranks work for that share of the step, and idle for the rest.",
        ),
        one_off,
        another_count,
    ],
    hints=[
        "`bubble(n_ranks, m)` says what m micro-batches give. It only falls as m grows, so the first m that is good "
        "enough is the answer.",
        "4 ranks, at most 25%:\n"
        "    m    1     2     3     ...  8      9\n"
        "         75%   60%   50%   ...  27%    25%   enough: 9",
        "Start with `n_micro_batches = 1`, and add 1 while `bubble(n_ranks, n_micro_batches) > share`.",
    ],
    wrong=[
        Wrong(counts.of_the_working_time, "idle time over working time"),
        Wrong(counts.of_all_ranks, "not for itself"),
        Wrong(counts.a_multiple_of_the_ranks, "The bubble knows of no multiples"),
        Wrong(counts.the_working_share, "and idle for the rest"),
        Wrong(counts.strictly_less, "`>`, not `>=`"),
        Wrong(counts.rounded_up, "and 12.000000000000002 in floats"),
        Wrong(counts.rounded_down, "22 micro-batches, it should be 23"),
        Wrong(counts.one_too_few, "with 22 the bubble is 15.38%, and 15% is allowed"),
        Wrong(counts.one_too_many, "24 will do, with a bubble of 14.29%, but fewer will"),
        Wrong(counts.not_rounded, "A number of micro-batches is an `int`"),
        Wrong(counts.none_for_a_large_share, "A step has 1 micro-batch at least"),
        Wrong(counts.by_doubling, "but fewer will, too: with 23 it is 14.81%"),
        Wrong(counts.of_none, "returned None"),
    ],
    advice={"nothing_returned": "`return n_micro_batches` is below the blank: leave it there."},
    closing="To halve a small bubble takes twice as many micro-batches: 8 ranks need "
    f"{show.listing(simple.micro_batches_for(8, share) for share in (0.2, 0.1, 0.05))} for 20%, 10% and 5%.",
)
