"""Which ranks are wrong, and do they agree? The last resort names an element."""

from __future__ import annotations

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, close, same
from course_lib.lab.signatures.words import first_difference, signature


@signature
def one_rank_right(e: Evidence) -> str | None:
    right = [r for r in range(e.n) if r not in e.wrong]
    if len(right) != 1 or e.n < 3:
        return None
    who = f"the root, rank {e.root}," if right == [e.root] else f"rank {right[0]}"
    return f"only {who} has the right value. {first_difference(e)}"


@signature
def agree_but_wrong(e: Evidence) -> str | None:
    if not e.comparable or e.n < 2 or len(e.wrong) < e.n:
        return None
    if not all(same(e.expected[r], e.expected[0]) and same(e.observed[r], e.observed[0]) for r in range(e.n)):
        return None
    return f"all ranks agree, but on a wrong value. {first_difference(e)}"


@signature
def ranks_disagree(e: Evidence) -> str | None:
    if not e.comparable or e.n < 2 or not all(same(e.expected[r], e.expected[0]) for r in range(e.n)):
        return None
    r = next((r for r in range(1, e.n) if not same(e.observed[r], e.observed[0])), None)
    if r is None:
        return None
    i = int((~close(e.observed[r].flatten(), e.observed[0].flatten())).nonzero()[0])
    a, b = (show.number(e.observed[k].flatten()[i].item()) for k in (0, r))
    want = show.number(e.expected[0].flatten()[i].item())
    return f"the ranks should agree and do not: element {i} is {a} on rank 0, {b} on rank {r}, and should be {want}"


@signature
def an_element_differs(e: Evidence) -> str | None:
    return first_difference(e)
