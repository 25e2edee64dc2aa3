"""Lab 1: which gradients travel together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.wrong import pack_buckets as packs
from course_lib.lab.signatures.words import signature
from course_lib.parallel.data import simple


def sizes(*values: int, cap: int, first_cap: int) -> Case:
    many = f"sizes {list(values)}" if values else "no gradients"
    return Case(lambda rank, n, rng: (list(values), cap, first_cap), label=f"{many}, cap {cap}, first cap {first_cap}")


def packed(answer: Callable, values: Sequence[int], cap: int, first_cap: int) -> Any:
    """Lists of lists, whatever kind of sequences the answer makes of them."""
    found = answer(values, cap, first_cap)
    try:
        return Packing([list(bucket) for bucket in found])
    except TypeError:
        return found


class Packing:
    """Buckets as one value, which messages show as a whole."""

    def __init__(self, buckets: list[list[int]]) -> None:
        self.buckets = buckets

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self.buckets == other.buckets

    __hash__ = None


def is_that_of(mistaken: Callable, name: str, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the buckets are exactly those of a mistaken version."""

    @signature
    def find(e: Evidence) -> str | None:
        found = e.observed[0]
        if not isinstance(found, Packing) or found.buckets != mistaken(*e.inputs[0]):
            return None
        return f"{found.buckets}, it should be {e.expected[0].buckets}. {sentence}"

    find.__name__ = name
    return find


@signature
def other_buckets(e: Evidence) -> str | None:
    """More than one mistake, or one that is not known: the rules that these buckets break."""
    found, want = e.observed[0], e.expected[0].buckets
    if not isinstance(found, Packing):
        missing = ". Is a `return` missing?" if found is None else ""
        return f"the answer returned {str(found)[:80]}, not a list of lists of indices{missing}"
    broken = broken_rules(found.buckets, *e.inputs[0])
    return f"{found.buckets}, it should be {want}. {' '.join(broken)}"


def broken_rules(buckets: list[list[int]], sizes: Sequence[int], cap: int, first_cap: int) -> list[str]:
    """A sentence for each rule of packing that the buckets break: at their first place, and once for each rule."""
    flat = [index for bucket in buckets for index in bucket]
    if strange := [index for index in flat if index not in range(len(sizes))]:
        return [f"{strange[0]!r} is no index into `sizes`: those are 0 to {len(sizes) - 1}."]
    broken = {}
    if [] in buckets:
        broken["empty"] = f"Bucket {buckets.index([])} is empty."
    if lost := [i for i in range(len(sizes)) if i not in flat]:
        broken["lost"] = f"Gradient {lost[0]} is in no bucket, so it would never be sent."
    if twice := [i for i in range(len(sizes)) if flat.count(i) > 1]:
        broken["twice"] = f"Gradient {twice[0]} is in two places."
    if rising := [(a, b) for a, b in itertools.pairwise(flat) if a < b]:
        before, after = rising[0]
        broken["order"] = f"Gradient {before} comes before {after}: backward begins with the last, so it goes first."
    for number, bucket in enumerate(buckets):
        limit, name = (cap, "cap") if number else (first_cap, "first_cap")
        held = list(itertools.accumulate(sizes[index] for index in bucket))
        if full := [count for count, size in enumerate(held[:-1], 1) if size >= limit]:
            at = held[full[0] - 1]
            last = bucket[full[0] - 1]
            text = f"Bucket {number} takes more when it is full: with gradient {last} it holds {at}, {name} is {limit}."
            broken.setdefault("late", text)
        elif held and held[-1] < limit and number < len(buckets) - 1:
            text = f"Bucket {number} is closed at {held[-1]}, before it is full: {name} is {limit}."
            broken.setdefault("early", text)
    return list(broken.values())


PACK_BUCKETS = Exercise(
    name="pack_buckets",
    lab="lab1",
    title="Pack the gradients into buckets",
    minutes=15,
    difficulty=1,
    reference=simple.pack_buckets,
    worlds=(1,),
    cases=[
        sizes(1, 4, 4, 2, 6, 2, 4, cap=10, first_cap=4),
        sizes(5, 5, 5, 5, 5, cap=10, first_cap=5),
        sizes(3, 3, 8, 3, 3, cap=7, first_cap=3),
        sizes(1, 1, 20, 1, cap=8, first_cap=4),
        sizes(6, cap=100, first_cap=50),
        sizes(cap=8, first_cap=4),
    ],
    call=packed,
    signatures=[
        is_that_of(
            packs.as_registered,
            "as_registered",
            "These are packed in the order of registration. Backward begins with the last layer: its gradients are "
            "there first, so they go first.",
        ),
        is_that_of(
            packs.without_first_cap,
            "without_first_cap",
            "The first bucket is as large as the others: it is full at `first_cap`.",
        ),
        is_that_of(
            packs.all_of_first_cap,
            "all_of_first_cap",
            "Only the first bucket is full at `first_cap`, the others at `cap`.",
        ),
        is_that_of(
            packs.last_bucket_lost,
            "last_bucket_lost",
            "The last bucket is missing: what is left when the loop ends is sent too, full or not.",
        ),
        is_that_of(packs.over_the_cap, "over_the_cap", "A bucket that holds exactly its cap is full: `>=`, not `>`."),
        is_that_of(
            packs.never_above_the_cap,
            "never_above_the_cap",
            "A bucket is closed here before it would grow beyond its cap. It is to be closed once it holds that much.",
        ),
        is_that_of(
            packs.never_starting_anew,
            "never_starting_anew",
            "The bytes held are not set back to 0 for a new bucket.",
        ),
        is_that_of(
            packs.places_in_reverse,
            "places_in_reverse",
            "These are places in the reversed list. What is wanted are indices into `sizes`: the last gradient is "
            "`len(sizes) - 1`.",
        ),
        is_that_of(
            packs.buckets_reversed,
            "buckets_reversed",
            "The buckets are right, their order is not: what is packed first is sent first.",
        ),
        is_that_of(
            packs.within_reversed,
            "within_reversed",
            "The buckets are right, but within each the order is not: the last gradient comes first.",
        ),
        is_that_of(packs.with_an_empty_last, "with_an_empty_last", "The last bucket is empty: leave it out."),
        is_that_of(
            packs.sizes_in_place_of_indices,
            "sizes_in_place_of_indices",
            "These are sizes. Return indices into `sizes`.",
        ),
        is_that_of(
            packs.counting_gradients,
            "counting_gradients",
            "The caps are compared with the number of gradients. They are bytes: add up `sizes[index]`.",
        ),
        is_that_of(
            packs.one_bucket_cleared,
            "one_bucket_cleared",
            "One list object is in all places: `bucket.clear()` empties what `buckets` holds already. Make a new list.",
        ),
        other_buckets,
    ],
    hints=[
        "One bucket is open at a time. Put gradients into it, the last one first, until it is full; then open another.",
        "sizes [5, 5, 5, 5, 5, 5], cap 10, first cap 5:\n"
        "    gradient 5   the first bucket holds 5, its cap: closed\n"
        "    gradient 4   the second holds 5\n"
        "    gradient 3   it holds 10, its cap: closed\n"
        "    ...\n"
        "    gradient 0   the fourth holds 5 when the gradients end: sent as it is",
        "`for index in reversed(range(len(sizes)))`: append, add `sizes[index]` to `held`; if `held >= (cap if buckets "
        "else first_cap)`, append the bucket to `buckets` and start a new one with `held = 0`. After the loop, append "
        "what is left, if anything.",
    ],
    advice={"changes_its_input": "Read `sizes`, and leave it as it is."},
    wrong=[
        Wrong(packs.as_registered, "in the order of registration"),
        Wrong(packs.without_first_cap, "as large as the others"),
        Wrong(packs.all_of_first_cap, "Only the first bucket is full at `first_cap`"),
        Wrong(packs.last_bucket_lost, "The last bucket is missing"),
        Wrong(packs.over_the_cap, "`>=`, not `>`"),
        Wrong(packs.never_above_the_cap, "before it would grow beyond its cap"),
        Wrong(packs.never_starting_anew, "not set back to 0"),
        Wrong(packs.places_in_reverse, "places in the reversed list"),
        Wrong(packs.buckets_reversed, "The buckets are right, their order is not"),
        Wrong(packs.within_reversed, "within each the order is not"),
        Wrong(packs.with_an_empty_last, "The last bucket is empty"),
        Wrong(packs.sizes_in_place_of_indices, "These are sizes"),
        Wrong(packs.counting_gradients, "the number of gradients. They are bytes"),
        Wrong(packs.one_bucket_cleared, "One list object is in all places"),
        Wrong(packs.emptying_sizes, "Read `sizes`, and leave it"),
        Wrong(packs.as_registered_without_first_cap, "so it goes first. Bucket 0 takes more when it is full"),
        Wrong(packs.as_registered_and_last_lost, "so it would never be sent. Gradient"),
        Wrong(packs.without_first_cap_within_reversed, "with gradient 4 it holds 6, first_cap is 4"),
        Wrong(packs.each_alone, "is closed at 2, before it is full: cap is 10"),
        Wrong(packs.counted_from_one, "7 is no index into `sizes`"),
        Wrong(packs.as_a_dictionary_of_counts, "not a list of lists of indices"),
    ],
)
