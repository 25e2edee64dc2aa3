"""Lab 1: all-reduces that run while backward goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import COLLECTIVES, Exercise, Timing, Wrong
from course_lib.lab.exercises.lab1_overlap_run import gradients, large, reduced, reduced_expected, step_bytes
from course_lib.lab.exercises.wrong import backward_with_overlap as overlaps
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.data import simple

IN_ORDER = "Gradients come in another order on each rank: launch bucket i only after bucket i - 1."
NO_GAIN = (
    "No time is gained: here backward and the all-reduces take turns on the same cores, so what overlaps on the "
    "timeline makes both slower. On GPUs, other hardware sends while the cores compute."
)


def of_part(part: str) -> Callable[[Callable[[Evidence, int], str]], Signature]:
    """Makes a signature of a sentence on a rank, told where this part of what was seen is wrong there."""

    def make(tell: Callable[[Evidence, int], str]) -> Signature:
        @signature
        @wraps(tell)
        def find(e: Evidence) -> str | None:
            return tell(e, e.wrong[0]) if e.where == f"`{part}`" else None

        return find

    return make


@signature
def no_backward(e: Evidence) -> str | None:
    r = e.wrong[0]
    return None if e.aside(r).get("backward", True) else f"rank {r} never ran backward: no gradient came"


@signature
def never_launched(e: Evidence) -> str | None:
    """A bucket that some rank leaves alone, though it launches others."""
    for r in e.wrong:
        launched = e.aside(r).get("launched", [])
        if None in launched or not launched:
            continue
        count = len(e.inputs[r][1])
        if lost := [i for i in range(count) if i not in launched]:
            last = (
                " When the last gradient has come, more than one bucket may be waiting."
                if lost[-1] == count - 1
                else ""
            )
            return f"rank {r} never launches bucket {lost[0]}, so it keeps its own gradients there.{last}"
    return None


@signature
def launched_twice(e: Evidence) -> str | None:
    for r in e.wrong:
        launched = [i for i in e.aside(r).get("launched", []) if i is not None]
        if twice := [i for i in launched if launched.count(i) > 1]:
            times = launched.count(twice[0])
            return (
                f"rank {r} reduces bucket {twice[0]} {'twice' if times == 2 else f'{times} times'}. Launch it once, "
                "when all its gradients have come"
            )
    return None


@signature
def launched_too_early(e: Evidence) -> str | None:
    for r in e.wrong:
        for index, have in e.aside(r).get("early", []):
            return (
                f"rank {r} launches bucket {index} when {have} of its {len(e.inputs[r][1][index])} gradients "
                f"{'has' if have == 1 else 'have'} come: the others are reduced as zeros. Count `missing[index]` down "
                "to 0"
            )
    return None


@signature
def in_another_order(e: Evidence) -> str | None:
    """The ranks launch the buckets in different orders."""
    orders = [e.aside(r).get("launched", []) for r in range(e.n)]
    r = next((r for r in range(e.n) if orders[r] != orders[0] and set(orders[r]) == set(orders[0])), None)
    if r is None or any(None in order for order in orders):
        return None
    return (
        f"rank 0 launches the buckets in the order {show.listing(orders[0])}, rank {r} in the order "
        f"{show.listing(orders[r])}: the all-reduces of different buckets meet, and nobody notices"
    )


@signature
def copies_reduced(e: Evidence) -> str | None:
    r = e.wrong[0]
    launched = e.aside(r).get("launched", [])
    if not e.where.startswith("`bucket") or not launched or any(i is not None for i in launched):
        return None
    return (
        f"rank {r} reduces tensors that are not `bucket.flat`, nor a view of it: the gradients never learn of the mean"
    )


@of_part("all-reduces")
def gradient_by_gradient(e: Evidence, r: int) -> str:
    have, want = e.observed[r], e.expected[r]
    return (
        f"right, but with {have} all-reduces for {want} buckets. `bucket.flat` holds all gradients of a bucket: one "
        "call takes them all"
    )


@of_part("waits in backward")
def waits_in_backward(e: Evidence, r: int) -> str:
    line = e.aside(r)["waits"][0]
    quoted = e.quote(line) if line else ""
    at = f" for the all-reduce of {quoted}" if quoted else ""
    keep = "Keep the work" if "async_op" in quoted else "Launch with `async_op=True`, keep the work"
    return (
        f"right, but rank {r} waits in the middle of backward{at}: backward stands still meanwhile, and nothing "
        f"overlaps. {keep}, and wait for it after backward"
    )


@of_part("launched in backward")
def launched_after_backward(e: Evidence, r: int) -> str:
    have, want = e.observed[r], e.expected[r]
    which = f"all {want} all-reduces are" if not have else f"{want - have} of {want} all-reduces are"
    return (
        f"right, but on rank {r} {which} launched after backward has ended, when nothing is left to overlap with. "
        "Launch them in `gradient_is_there`"
    )


def turned(rank: int) -> list[int]:
    """Even ranks compute the terms in order, odd ones in another."""
    return [0, 1, 2, 3] if rank % 2 == 0 else [2, 3, 0, 1]


BACKWARD_WITH_OVERLAP = Exercise(
    name="backward_with_overlap",
    lab="lab1",
    title="Reduce while backward runs",
    minutes=25,
    difficulty=3,
    reference=simple.backward_with_overlap,
    cases=[
        gradients("2 buckets of 2 and 3 gradients", [2, 3, 2, 4, 1], [[4, 3], [2, 1, 0]]),
        gradients("the last rank begins later", [300, 200, 100], [[2], [1, 0]], late=True),
        gradients("2 buckets, whose gradients come in another order on odd ranks", [2] * 4, [[3, 2], [1, 0]], turned),
        gradients("3 buckets, of which the first comes last", [4, 3, 5], [[0], [2], [1]]),
    ],
    expected=reduced_expected,
    call=reduced,
    may_change=True,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=step_bytes,
    timing=Timing(
        large,
        "a step of 6 layers, 6.3 MB of gradients,",
        {"all after backward": overlaps.after_backward},
        ranks=2,
        no_gain=NO_GAIN,
    ),
    timeline=True,
    overlap=True,
    causes=[no_backward, launched_twice, launched_too_early, never_launched, in_another_order],
    signatures=[
        copies_reduced,
        gradient_by_gradient,
        waits_in_backward,
        launched_after_backward,
    ],
    hints=[
        "`async_op=True` makes `dist.all_reduce` return at once, with a work to wait for. When is the earliest moment "
        "to launch a bucket, and when the latest to wait for it?",
        "Two buckets; backward on one rank:\n"
        "    backward   layer 4   layer 3   layer 2   layer 1\n"
        "    gradients         4         3         2         1   then: wait, wait, divide\n"
        "    network                     bucket 0 ......     bucket 1 ......\n"
        "On another rank, gradients may come in another order. All must launch bucket 0 first.",
        "In the hook: `missing[index] -= 1`. Then, while the next bucket to launch, number `len(works)`, has nothing "
        "missing: launch the all-reduce of its `flat` with `async_op=True` and append the work. After backward: for "
        "each bucket and its work, `work.wait()`, then `bucket.flat /= n`.",
    ],
    advice={
        "calls_differ": IN_ORDER,
        "calls_left_out": "One gradient may complete the bucket that others waited for: launch all that can go, not "
        "one.",
        "in_another_order": IN_ORDER,
        "touches_what_it_reduces": "Launch a bucket once all its gradients have come, and divide after `work.wait()`.",
        "scaled": "Divide once the sum is there: after `work.wait()`.",
        "never_waits": "Keep every work, and wait for all of them after backward.",
    },
    wrong=[
        Wrong(overlaps.after_backward, "launched after backward has ended"),
        Wrong(overlaps.waiting_in_the_hook, "Keep the work, and wait for it"),
        Wrong(overlaps.not_asynchronous, "Launch with `async_op=True`"),
        Wrong(overlaps.waiting_for_the_one_before, "backward stands still meanwhile"),
        Wrong(overlaps.as_ready, "the all-reduces of different buckets meet"),
        Wrong(overlaps.as_ready_zipped, "launches the buckets in the order"),
        Wrong(overlaps.one_at_a_time, "launch all that can go, not one"),
        Wrong(overlaps.last_never_sent, "never launches bucket 1, so it keeps"),
        Wrong(overlaps.last_never_waited_for, "is never waited for"),
        Wrong(overlaps.never_waiting, "Keep every work, and wait for all"),
        Wrong(overlaps.at_the_first_gradient, "the others are reduced as zeros. Count"),
        Wrong(overlaps.at_the_first_gradient_at_once, "rank 0 launches bucket 0 when 1 of its 2 gradients has come"),
        Wrong(overlaps.each_gradient_again, "Launch it once"),
        Wrong(overlaps.sums, "a sum where a mean is needed"),
        Wrong(overlaps.dividing_at_once, "so nobody knows which values are taken"),
        Wrong(overlaps.without_group, "ight on the whole world, wrong in a group"),
        Wrong(overlaps.gradient_by_gradient, "right, but with"),
        Wrong(overlaps.mean_in_a_copy, "nor a view of it"),
        Wrong(overlaps.without_backward, "never ran backward"),
    ],
)
