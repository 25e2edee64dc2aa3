"""Where an answer is right and where it is wrong: often the pattern says more than any value does.

"Right on 2 ranks, wrong on 3 and 4." "Right where n divides the size, wrong where it does not." Each scope looks at the
record of all cases tried and returns such a sentence, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from course_lib.lab import show


@dataclass(frozen=True)
class Record:
    """One case on one world size: was the answer right? (A run that stopped is a wrong one.)"""

    n: int
    right: bool
    size: int | None = None
    root: int | None = None
    label: str = ""


Scope = Callable[[list[Record], list[Record]], "str | None"]  # (right ones, wrong ones); both are non-empty
SCOPES: list[Scope] = []


def scope(find: Scope) -> Scope:
    SCOPES.append(find)
    return find


def describe(records: list[Record]) -> tuple[str, str]:
    """(name of the scope, one sentence on where the answer is right and where wrong); ("", "") where there is none."""
    right, wrong = [r for r in records if r.right], [r for r in records if not r.right]
    if not right or not wrong:
        return "", ""
    return next(((find.__name__, text) for find in SCOPES if (text := find(right, wrong))), ("", ""))


@scope
def root_0_only(right: list[Record], wrong: list[Record]) -> str | None:
    if not any(r.root for r in wrong) or not all(r.root for r in wrong) or not all(r.root == 0 for r in right):
        return None
    return f"Right for root 0, wrong for {_roots(wrong)}."


@scope
def dividing_sizes_only(right: list[Record], wrong: list[Record]) -> str | None:
    if any(r.size is None for r in right + wrong):
        return None
    if any(r.size % r.n == 0 for r in wrong) or not all(r.size % r.n == 0 for r in right):
        return None
    return "Right where the number of ranks divides the size, wrong where it does not."


@scope
def powers_of_two_only(right: list[Record], wrong: list[Record]) -> str | None:
    if {r.n for r in wrong} != {3} or not {2, 4} <= {r.n for r in right}:
        return None
    return "Right on 2 and 4 ranks, wrong on 3: the answer counts on a power of two."


@scope
def even_sizes_only(right: list[Record], wrong: list[Record]) -> str | None:
    if any(r.size is None for r in right + wrong):
        return None
    if any(r.size % 2 == 0 for r in wrong) or any(r.size % 2 for r in right):
        return None
    return "Right on even sizes, wrong on odd ones."


@scope
def some_numbers_of_ranks_only(right: list[Record], wrong: list[Record]) -> str | None:
    good, bad = {r.n for r in right} - {r.n for r in wrong}, {r.n for r in wrong}
    if not good:
        return None
    return f"Right on {show.listing(sorted(good))} ranks, wrong on {show.listing(sorted(bad))}."


@scope
def one_kind_of_input(right: list[Record], wrong: list[Record]) -> str | None:
    labels = {r.label for r in wrong}
    if len(labels) != 1 or labels == {""} or any(r.label in labels for r in right):
        return None
    return "Right in all other cases."  # which one this is, is told beside it


def _roots(records: list[Record]) -> str:
    return show.listing(f"root {root}" for root in sorted({r.root for r in records}))
