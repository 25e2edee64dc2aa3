"""What the messages say about a wrong value: one more fact, told after what the value itself shows.

Each note looks at what was sent and what came in, and names what is certain: that nobody sent anything, that the right
values came in and are not in what was returned, that a rank sends to its left. Where there is nothing of the kind it
returns None. `NOTES` asks the most telling first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.lab.evidence import MOST_ELEMENTS, Evidence, close, same, tensors
from course_lib.lab.signatures import contents
from course_lib.lab.signatures.words import elements
from course_lib.lab.tape import Message

Note = Callable[[Evidence, int], "str | None"]  # of a wrong rank, the one that is talked about


def sends(e: Evidence, rank: int) -> list[Message]:
    return [m for m in (e.messages or [[]] * e.n)[rank] if m.kind == "send"]


def receives(e: Evidence, rank: int) -> list[Message]:
    return [m for m in (e.messages or [[]] * e.n)[rank] if m.kind == "recv"]


def no_message(e: Evidence, rank: int) -> str | None:
    if any(sends(e, r) for r in range(e.n)):
        return None
    return "No rank sent a message."


def no_collective(e: Evidence, rank: int) -> str | None:
    """Of collectives, where they may do the work."""
    return None if e.collectives is None or any(e.collectives) else "No rank called a collective."


def sends_what_was_never_written(e: Evidence, rank: int) -> str | None:
    if any(x.is_floating_point() and bool(x.isnan().any()) for args in e.inputs for x in tensors(args)):
        return None
    for r in range(e.n):
        for m in sends(e, r):
            if m.values is not None and m.values.is_floating_point() and bool(m.values.isnan().any()):
                return f"Rank {r} sends what was never written (nan) in {e.quote(m.line)}."
    return None


def arrived_and_dropped(e: Evidence, rank: int) -> str | None:
    """The values that are missing came in, and are not where they belong."""
    want, got = e.expected[rank], e.observed[rank]
    if not isinstance(want, Tensor) or not isinstance(got, Tensor) or not 0 < want.numel() <= MOST_ELEMENTS:
        return None
    fits = got.shape == want.shape and got.dtype == want.dtype
    wrong = set(e.wrong_elements(rank).tolist()) if fits else set(range(want.numel()))
    for m in receives(e, rank):
        at = find(m.values, want)
        if at is None or not wrong.intersection(range(at, at + m.count)):
            continue
        place = "" if m.count == want.numel() else f" of {elements(torch.arange(at, at + m.count))}"
        came = f"The right values{place} came to rank {rank} in {e.quote(m.line)}"
        elsewhere = find(m.values, got)
        if elsewhere is None:
            return f"{came}, but are not in what it returned."
        return f"{came}, but stand at {elements(torch.arange(elsewhere, elsewhere + m.count))}."
    return None


def arrived_but_its_own(e: Evidence, rank: int) -> str | None:
    """Of a sum, all but this rank's own share came in."""
    if e.shares is None or e.n < 3 or not e.comparable:
        return None
    others = sum(e.shares[rank][j] for j in range(e.n) if j != rank)
    for m in receives(e, rank):
        if m.count == others.numel() and find(m.values, others) is not None:
            return (
                f"The sum of all other ranks' values of this came to rank {rank} in {e.quote(m.line)}; what it "
                "returned is not that plus its own."
            )
    return None


def to_the_other_side(e: Evidence, rank: int) -> str | None:
    """The library's version sends round the ring one way, the answer the other."""
    if e.n < 3 or e.library is None:
        return None
    mine, theirs = ([_shifts(tapes[r], r, e.n) for r in range(e.n)] for tapes in (e.messages, e.library))
    if {frozenset(s) for s in mine} != {frozenset({e.n - 1})} or {frozenset(s) for s in theirs} != {frozenset({1})}:
        return None
    left, right = (rank - 1) % e.n, (rank + 1) % e.n
    return f"You send to the left: rank {rank} sends to rank {left}, to its right is rank {right}."


def another_number(e: Evidence, rank: int) -> str | None:
    """More or fewer messages than the library's version."""
    if e.library is None:
        return None
    who, mine, theirs = "Each rank sends", uniform(e.messages), uniform(e.library)
    if mine is None or theirs is None:  # a tree: who sends how much depends on its place
        who = "All ranks together send"
        mine, theirs = (sum(m.kind == "send" for tape in tapes for m in tape) for tapes in (e.messages, e.library))
    if mine == theirs or {m.count for m in sends(e, rank)} - {m.count for m in _ours(e, rank)}:
        return None  # as many, or other messages altogether: their number says nothing
    have, want = (in_n({n: both[i] for n, both in e.history.items()} | {e.n: k}) for i, k in ((0, mine), (1, theirs)))
    return f"{who} {have} message{'s' * (have != '1')}; the library's version, {want}."


def never_passed_on(e: Evidence, rank: int) -> str | None:
    """A rank sends the same values in all its messages, where the library's version sends what came in."""
    if e.n < 3 or e.library is None or len(sends(e, rank)) < 2:
        return None
    first, *rest = sends(e, rank)
    if _differ(first, *rest) or not _differ(*_ours(e, rank)):
        return None
    return f"Rank {rank} sends the same values in each of its {len(rest) + 1} messages: what comes in is not passed on."


def another_content(e: Evidence, rank: int) -> str | None:
    """The first message that sums more or fewer ranks' values than the library's message in its place."""
    if e.library is None or not e.messages:
        return None
    for k, (mine, theirs) in enumerate(zip(sends(e, rank), _ours(e, rank), strict=False), 1):
        have, want = contents.ranks_in(mine, e), contents.ranks_in(theirs, e)
        if not have or not want or mine.count != theirs.count:
            return None
        if len(have) != len(want):
            its = f"the sum of {len(want)} ranks" if len(want) > 1 else "the values of one rank"
            return f"Message {k} of rank {rank} carries {contents.words(mine, e)}; the library's, {its}."
    return None


def input_changed(e: Evidence, rank: int) -> str | None:
    changed = next((r for r, positions in enumerate(e.changed) if positions), None)
    return None if changed is None else f"Rank {changed} changed its input in place: work on a copy."


NOTES: tuple[Note, ...] = (
    no_message,
    no_collective,
    sends_what_was_never_written,
    arrived_and_dropped,
    to_the_other_side,
    another_number,
    arrived_but_its_own,
    never_passed_on,
    another_content,
    input_changed,
)


def note(e: Evidence, rank: int, without: Note | None = None) -> tuple[str, str]:
    """(name, sentence) of the most telling note; ("", "") where there is none. without: one that would add nothing."""
    if e.on_ranks and (text := no_collective(e, rank)):
        return no_collective.__name__, text
    if e.messages is None or not e.on_ranks or not any(map(len, e.messages + (e.library or []))):
        return "", ""
    return next(((find.__name__, text) for find in NOTES if find is not without and (text := find(e, rank))), ("", ""))


def find(part: Tensor | None, whole: Tensor) -> int | None:
    """Where `part` stands in `whole`, taken flat; None if it does not."""
    flat = whole.detach().flatten()
    if part is None or not 0 < len(part) <= len(flat) or part.dtype != flat.dtype:
        return None
    windows = flat.unfold(0, len(part), 1)
    hits = close(windows, part.expand_as(windows)).all(1).nonzero()
    return int(hits[0]) if len(hits) else None


def in_n(numbers: dict[int, int]) -> str:
    """Numbers by number of ranks, as a formula in n where one fits them all: {2: 1, 3: 2, 4: 3} is "n - 1"."""
    last = max(numbers)
    for factor in (0, 1, 2) if len(numbers) > 1 else ():
        rest = numbers[last] - factor * last
        if all(k == factor * n + rest for n, k in numbers.items()):
            if factor == 2 and rest % 2 == 0 and rest:
                return f"2(n {'-+'[rest > 0]} {abs(rest) // 2})"
            whole = {0: "", 1: "n", 2: "2n"}[factor]
            return str(rest) if not factor else whole + (f" {'-+'[rest > 0]} {abs(rest)}" if rest else "")
    return str(numbers[last])


def uniform(tapes: list[list[Message]]) -> int | None:
    """How many messages each rank sends, if it is the same on all."""
    numbers = {sum(m.kind == "send" for m in tape) for tape in tapes}
    return numbers.pop() if len(numbers) == 1 else None


def _ours(e: Evidence, rank: int) -> list[Message]:
    return [m for m in (e.library or [[]] * e.n)[rank] if m.kind == "send"]


def _shifts(tape: list[Message], rank: int, n: int) -> set[int | None]:
    """To whom a rank sends, counted from itself: 1 is its right neighbour."""
    return {None if m.peer is None else (m.peer - rank) % n for m in tape if m.kind == "send"}


def _differ(first: Message, *rest: Message) -> bool:
    if any(m.values is None for m in (first, *rest)):
        return True
    return any(not same(m.values, first.values) for m in rest)
