"""What each message carried, in words: "chunk 2 of ranks 0 and 3". The learner sees how the values travelled."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from course_lib.collectives.p2p import chunk_bounds
from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same, tensors
from course_lib.lab.tape import Message

MOST = 8  # messages told of


def told(e: Evidence, rank: int) -> list[str]:
    """Two lines: what a rank sent and what came in; none where too little of it is known."""
    lines = []
    for kind, verb in (("send", "sent"), ("recv", "received")):
        messages = [m for m in (e.messages or [[]] * e.n)[rank] if m.kind == kind]
        found = [words(m, e) for m in messages[:MOST]]
        if found and all(found):
            more = " ..." if len(messages) > MOST else ""
            lines.append(f"rank {rank} {verb}: {'; '.join(found)}{more}")
    return lines


def words(m: Message, e: Evidence) -> str:
    """ "chunk 2 of ranks 0 and 3"; "" where it is no sum of the ranks' inputs, or of one chunk of them."""
    if m.count and m.values is not None and m.values.is_floating_point() and bool(m.values.isnan().all()):
        return "nan"
    what, ranks = _look(m, e)
    if not ranks:
        return ""
    if not what:
        return f"rank {ranks[0]}'s input" if len(ranks) == 1 else f"the input of {show.ranks(ranks)}, added"
    return f"{what} of {'all ranks' if len(ranks) == e.n else show.ranks(ranks)}"


def ranks_in(m: Message, e: Evidence) -> tuple[int, ...]:
    """The ranks whose values are in a message; () where that is not known."""
    return _look(m, e)[1]


def _look(m: Message, e: Evidence) -> tuple[str, tuple[int, ...]]:
    """(chunk, "" for the whole input; the ranks it is the sum of)"""
    inputs = [next((x.detach().flatten() for x in tensors(args)), torch.empty(0)) for args in e.inputs]
    size = len(inputs[0])
    if m.values is None or e.n > 6 or any(len(x) != size for x in inputs):
        return "", ()
    pieces = [("", (0, size))] if m.count == size else []
    pieces += [(f"chunk {i}", piece) for i, piece in enumerate(chunk_bounds(size, e.n))]
    for name, (start, end) in pieces:
        if end - start == m.count and (ranks := _whose(m.values, [x[start:end] for x in inputs])):
            return name, ranks
    return "", ()


def _whose(values: Tensor, parts: list[Tensor]) -> tuple[int, ...]:
    """The ranks whose parts add up to the values; () if there are none."""
    for many in range(1, len(parts) + 1):
        for ranks in itertools.combinations(range(len(parts)), many):
            if same(sum(parts[r] for r in ranks), values):
                return ranks
    return ()
