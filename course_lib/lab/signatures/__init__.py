"""Misconceptions, told from the values they leave behind.

Each signature looks at the evidence of one case and, if the values are just what one misconception produces, says so in
one sentence; otherwise it returns None. A right answer matches none of them. `VALUES` asks the most specific first: a
sum that is exactly n times too large is that before it is "a wrong value that all ranks agree on".

An exercise adds its own, asked before these, and may add a sentence of advice to any (`Exercise.advice`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from course_lib.lab.evidence import Evidence, same_parts
from course_lib.lab.signatures.counts import mixed_chunks, partial_sums, scaled, share_missing, share_twice
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
from course_lib.lab.signatures.words import Signature, signature

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
# These name an element already, or leave none to name.
NAMES_AN_ELEMENT = {"not_finite", "one_rank_right", "agree_but_wrong", "ranks_disagree", "an_element_differs"}


def explain(e: Evidence, own: Iterable[Signature] = ()) -> tuple[str, str]:
    """(name of the signature, its sentence) for evidence with a wrong rank. There always is one: the last fits all."""
    for find in (*own, *VALUES):
        if sentence := find(e):
            return find.__name__, sentence
    raise ValueError("nothing is wrong here: every rank has the right value")


def looks_like(compute: Callable[[list[tuple], int], list], name: str, sentence: str) -> Signature:
    """A signature for an exercise: what the wrong ranks returned is what `compute(inputs, n)` gives, rank by rank."""

    @signature
    def find(e: Evidence) -> str | None:
        mistaken = compute(e.inputs, e.n)
        returned = e.returned or e.observed
        return sentence if all(same_parts(returned[r], mistaken[r]) for r in e.wrong) else None

    find.__name__ = name
    return find
