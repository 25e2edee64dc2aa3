"""Misconceptions, told from the values they leave behind.

Each signature looks at the evidence of one case and, if the values are just what one misconception produces, says so in
one sentence; otherwise it returns None. A right answer matches none of them. `VALUES` asks the most specific first: a
sum that is exactly n times too large is that before it is "a wrong value that all ranks agree on".

An exercise adds its own, asked before these, and may add a sentence of advice to any (`Exercise.advice`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from course_lib.lab.evidence import Evidence, parts, same
from course_lib.lab.signatures import contents
from course_lib.lab.signatures.counts import mixed_chunks, partial_sums, scaled, share_missing, share_twice
from course_lib.lab.signatures.messages import arrived_and_dropped, note
from course_lib.lab.signatures.places import another_ranks_input, another_ranks_value, chunks_permuted
from course_lib.lab.signatures.ranks import agree_but_wrong, an_element_differs, one_rank_right, ranks_disagree
from course_lib.lab.signatures.returned import (
    never_written,
    not_finite,
    nothing_returned,
    unchanged_input,
    wrong_dtype,
    wrong_kind,
    wrong_shape,
)
from course_lib.lab.signatures.words import Signature, first_difference, signature

VALUES: tuple[Signature, ...] = (
    nothing_returned,
    unchanged_input,
    wrong_kind,
    wrong_shape,
    wrong_dtype,
    not_finite,
    another_ranks_input,
    another_ranks_value,
    chunks_permuted,
    scaled,
    share_missing,
    share_twice,
    partial_sums,
    mixed_chunks,
    never_written,
    one_rank_right,
    agree_but_wrong,
    ranks_disagree,
    an_element_differs,
)
# These name an element, and no cause: if the messages show one, it comes first.
LAST_RESORT = {"one_rank_right", "agree_but_wrong", "ranks_disagree", "an_element_differs"}
# These leave no question that messages could answer.
PLAIN = {"nothing_returned", "wrong_kind", "wrong_shape", "wrong_dtype", "scaled", "another_ranks_value"}


@dataclass
class Told:
    """What is told of a wrong value. names: of the signature and of the note, to look advice up by."""

    names: list[str]
    sentence: str
    details: list[str] = field(default_factory=list)


def tell(e: Evidence, own: Iterable[Signature] = ()) -> Told:
    """The sentence for a wrong value, with what the messages add to it, and details on the same rank."""
    name, sentence = explain(e, own)
    named = re.search(r"\brank (\d+)", sentence)
    rank = int(named[1]) if named and int(named[1]) in e.wrong else e.wrong[0]
    known = arrived_and_dropped if name == "chunks_permuted" else None
    why, added = ("", "") if name in PLAIN else note(e, rank, without=known)
    element = [] if name in LAST_RESORT or name == "not_finite" or not e.comparable else [first_difference(e, rank)]
    details = element + ([] if name in PLAIN or why == "no_message" else contents.told(e, rank))
    if why and name in LAST_RESORT:
        return Told([why], added[0].lower() + added[1:], [sentence, *details])
    if why:
        sentence = f"{sentence.removesuffix('.')}. {added}"
    return Told([name, why] if why else [name], sentence, details)


def explain(e: Evidence, own: Iterable[Signature] = ()) -> tuple[str, str]:
    """(name of the signature, its sentence) for evidence with a wrong rank. There always is one: the last fits all."""
    for find in (*own, *VALUES):
        if sentence := find(e):
            return find.__name__, sentence
    raise ValueError("nothing is wrong here: every rank has the right value")


def looks_like(compute: Callable[[list[tuple], int], list], name: str, sentence: str, part: str = "") -> Signature:
    """A signature for an exercise: what the wrong ranks returned is what `compute(inputs, n)` gives, rank by rank.

    `compute` may leave out parts of a value. part: the sentence is about this one, and said only where it is wrong.
    """

    @signature
    def find(e: Evidence) -> str | None:
        if part and e.where != f"`{part}`":
            return None
        mistaken = compute(e.inputs, e.n)
        returned = e.returned or e.observed
        return sentence if all(_holds(returned[r], mistaken[r]) for r in e.wrong) else None

    find.__name__ = name
    return find


def _holds(value: Any, mistaken: Any) -> bool:
    have = dict(parts(value))
    return all(name in have and same(have[name], part) for name, part in parts(mistaken))
