"""The words signatures share, and the decorator that makes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence

Signature = Callable[[Evidence], "str | None"]


def signature(find: Signature) -> Signature:
    """A signature is asked only where some rank's value is wrong: a right answer has no misconception."""

    @wraps(find)
    def asked(e: Evidence) -> str | None:
        return find(e) if e.wrong else None

    return asked


def who(e: Evidence, rank: int) -> str:
    return f"rank {rank}" if e.on_ranks else "the answer"


def kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r}"[:80] if is_plain(value) else f"an object of type {type(value).__name__}"


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, int | float | str | bool | tuple | list)


def elements(where: Tensor) -> str:
    first, last = int(where[0]), int(where[-1])
    if first == last:
        return f"element {first}"
    if len(where) == last - first + 1:
        return f"elements {first} to {last}"
    return f"{len(where)} elements, the first of them {first}"


def place(e: Evidence, rank: int, where: Tensor) -> str:
    """ "rank 1", with the elements that are meant if they are not all."""
    part = f", {e.where}" if e.where else ""
    return f"rank {rank}{part}" if len(where) == e.expected[rank].numel() else f"rank {rank}{part}, {elements(where)}"


def first_difference(e: Evidence, rank: int | None = None) -> str:
    """An element that is wrong: the first, on the first wrong rank or on `rank`."""
    r = e.wrong[0] if rank is None else rank
    got, want = e.observed[r], e.expected[r]
    if not e.comparable:
        return f"{who(e, r)} returned {kind(got)}, not {kind(want)}"
    i = int(e.wrong_elements(r)[0])
    index = tuple(int(k) for k in torch.unravel_index(torch.tensor(i), want.shape)) if want.dim() > 1 else i
    element = f", element {index}" if want.dim() else ""
    part = f", {e.where}" if e.where else ""
    have, need = show.apart(*(t.flatten()[i].item() for t in (got, want)))
    return f"{who(e, r)}{part}{element}: {have}, it should be {need}"
