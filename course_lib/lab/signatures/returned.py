"""What came back at all: nothing, the input, another kind of thing, another shape, values never written."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same, tensors
from course_lib.lab.signatures.words import elements, is_plain, kind, place, signature, who


@signature
def nothing_returned(e: Evidence) -> str | None:
    ranks = [r for r in e.wrong if e.observed[r] is None]
    if not ranks:
        return None
    return f"{who(e, ranks[0])} returned None, not {kind(e.expected[ranks[0]])}. Is a `return` missing?"


@signature
def unchanged_input(e: Evidence) -> str | None:
    def still_input(r: int) -> bool:
        value = e.observed[r]
        return isinstance(value, Tensor) and any(same(value, x) for x in tensors(e.inputs[r]))

    if not all(map(still_input, e.wrong)):
        return None
    if not e.on_ranks:
        return "the answer returned its input unchanged"
    if len(e.wrong) == e.n:
        return f"every rank's {e.where} is what it was" if e.where else "every rank returned its input unchanged"
    if e.where:
        return f"{show.ranks(e.wrong)}: {e.where} is what it was"
    return f"{show.ranks(e.wrong)} returned {_its(e.wrong)} input unchanged{_came_in(e)}"


def _came_in(e: Evidence) -> str:
    """What the messages say of ranks whose value is their input."""
    if e.messages is None or not any(e.messages):
        return ""
    numbers = [sum(m.kind == "recv" for m in e.messages[r]) for r in e.wrong]
    return "" if any(numbers) else ": no message came in there"


@signature
def wrong_kind(e: Evidence) -> str | None:
    for r in e.wrong:
        got, want = e.observed[r], e.expected[r]
        if not isinstance(got, Tensor) or not isinstance(want, Tensor):
            if is_plain(got) and is_plain(want):
                part = f", {e.where}" if e.where else ""
                return f"{who(e, r)}{part}: {got!r}, it should be {want!r}"
            return f"{who(e, r)} returned{_of(e)} {kind(got)}, not {kind(want)}"
    return None


@signature
def wrong_shape(e: Evidence) -> str | None:
    ranks = [r for r in e.wrong if e.observed[r].shape != e.expected[r].shape]
    if not ranks:
        return None
    r = ranks[0]
    got, want = e.observed[r], e.expected[r]
    text = f"{who(e, r)} returned{_of(e)} shape {tuple(got.shape)}, it should be {tuple(want.shape)}"
    if got.numel() == want.numel():
        return text + ": the number of elements is right, their arrangement is not"
    if e.on_ranks and got.numel() == e.n * want.numel():
        return text + f": {e.n} times as many elements. Keep this rank's chunk only"
    if e.on_ranks and want.numel() == e.n * got.numel():
        return text + f": one {_nth(e.n)} of the elements. All {e.n} ranks' chunks are needed"
    return text


@signature
def wrong_dtype(e: Evidence) -> str | None:
    for r in e.wrong:
        got, want = e.observed[r].dtype, e.expected[r].dtype
        if got != want:
            return f"{who(e, r)} returned{_of(e)} {_short(got)}, it should stay {_short(want)}"
    return None


@signature
def not_finite(e: Evidence) -> str | None:
    for r in e.wrong:
        bad = ~e.observed[r].isfinite() & e.expected[r].isfinite()
        if bad.any():
            where = bad.flatten().nonzero().flatten()
            value = e.observed[r].flatten()[where[0]].item()
            holds = "" if value == value else ". That is what a buffer made by `torch.empty` holds until it is written"
            return f"{who(e, r)}, {elements(where)}{_chunks(e, r, where)}: {value}{holds}"
    return None


def _chunks(e: Evidence, rank: int, where: Tensor) -> str:
    """The elements as chunks of the value, where they are whole ones: " (its own chunk)"."""
    size = e.expected[rank].numel()
    if not e.on_ranks or size % e.n or len(where) == size:
        return ""
    k = size // e.n
    found = sorted({int(i) // k for i in where})
    if len(found) * k != len(where):
        return ""
    return " (its own chunk)" if found == [rank] else f" (chunk{'s' * (len(found) > 1)} {show.listing(found)})"


@signature
def never_written(e: Evidence) -> str | None:
    if not e.comparable:
        return None
    for r in e.wrong:
        where = e.wrong_elements(r)
        if len(where) > 1 and not e.observed[r].flatten()[where].any():
            return f"{place(e, r, where)}: zeros, nothing was written there"
    return None


def _its(ranks: list[int]) -> str:
    return "its" if len(ranks) == 1 else "their"


def _of(e: Evidence) -> str:
    return f" as {e.where}" if e.where else ""


def _nth(n: int) -> str:
    return {2: "half", 3: "third", 4: "quarter"}.get(n, f"{n}th")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
