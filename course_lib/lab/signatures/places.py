"""Right values in a wrong place: another rank's, or a chunk where another belongs."""

from __future__ import annotations

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same, tensors
from course_lib.lab.signatures.words import signature


@signature
def another_ranks_input(e: Evidence) -> str | None:
    """The value is what some other rank passed in: it was copied from the wrong one."""
    if not e.comparable or e.n < 2:
        return None
    found = {}
    for r in e.wrong:
        found[r] = next((j for j in range(e.n) if any(same(e.observed[r], x) for x in tensors(e.inputs[j]))), None)
        if found[r] is None:
            return None
    r = next((r for r in e.wrong if found[r] != r), None)
    if r is None:
        return None
    right = next((j for j in range(e.n) if any(same(e.expected[r], x) for x in tensors(e.inputs[j]))), None)
    should = "" if right is None else f", it should hold rank {right}'s"
    return f"rank {r} holds rank {found[r]}'s input{should}"


@signature
def another_ranks_value(e: Evidence) -> str | None:
    if not e.comparable or e.n < 2:
        return None
    for shift in range(1, e.n):
        moved = [(r + shift) % e.n for r in range(e.n)]
        if all(same(e.observed[r], e.expected[moved[r]]) for r in range(e.n)):
            r = min(1, e.n - 1)
            behind = e.n - shift
            far = _far(shift, "far") if shift <= behind else _far(behind, "short")
            return (
                f"rank {r} returned what belongs to rank {moved[r]} (chunk {moved[r]}; it should keep chunk {r}). "
                f"The values are right, their place is {far}"
            )
    return None


@signature
def chunks_permuted(e: Evidence) -> str | None:
    """The value is n equal chunks along its first dimension; each is right, but where another belongs."""
    if not e.comparable or e.n < 2:
        return None
    for r in e.wrong:
        got, want = e.observed[r], e.expected[r]
        if got.dim() == 0 or got.shape[0] % e.n or not got.numel():
            return None
        have, need = got.chunk(e.n), want.chunk(e.n)
        found = [next((j for j in range(e.n) if same(have[i], need[j])), None) for i in range(e.n)]
        if None in found:
            return None
        if sorted(found) == list(range(e.n)):
            shift = found[0]
            if found == [(i + shift) % e.n for i in range(e.n)]:
                far = _far(e.n - shift, "far") if e.n - shift <= shift else _far(shift, "short")
                where = f"rank {r}: chunk {found[0]} stands where chunk 0 belongs"
                return f"{where}. The values are right, their place is {far}"
            order = show.listing(found)
            return f"rank {r}: the chunks are right, their order is not: they stand as {order}"
        twice = next(j for j in found if found.count(j) > 1)
        lost = next(j for j in range(e.n) if j not in found)
        return f"rank {r}: chunk {twice} stands in {found.count(twice)} places, chunk {lost} is missing"
    return None


def _far(steps: int, word: str) -> str:
    return f"one too {word}" if steps == 1 else f"{steps} too {word}"
