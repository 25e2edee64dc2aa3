"""Do the ranks' records of their collectives agree?

gloo checks nothing: two all-reduces in swapped order, or dtypes of the same size, give wrong sums without a word. All
ranks of a group must call the same collectives, in the same order, with the same shapes and dtypes; here that is
checked after the fact. Point-to-point calls differ from rank to rank by their nature and are not compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .report import Frame, Op

# Their tensors may differ in size from rank to rank.
_UNEVEN = {"all_to_all", "all_to_all_single", "all_gather", "gather", "reduce_scatter", "scatter"}

# What must be equal on all ranks, most telling first.
_ASPECTS: dict[str, Callable[[Op], Any]] = {
    "call": lambda op: op.name,
    "root": lambda op: op.root,
    "shape": lambda op: None if op.name in _UNEVEN or op.shape is None else _size(op),
    "dtype": lambda op: op.dtype,
    "reduction": lambda op: op.reduce,
}


@dataclass(frozen=True)
class Mismatch:
    """The first place where the ranks of a group part.

    `what`: one of _ASPECTS, or "splits" (of all_to_all_single), "order" (the same calls, two of them swapped), or
    "number" (a rank ended without this call). `ops[rank]` is what each rank called there, None if it called nothing.
    """

    what: str
    index: int
    ops: dict[int, Op | None]

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks in the minority; empty when there is no majority."""
        aspect = _ASPECTS.get(self.what, lambda op: _code(op.frame))
        sides: dict[Any, list[int]] = defaultdict(list)
        for rank, op in self.ops.items():
            sides[None if op is None else aspect(op)].append(rank)
        largest = max(map(len, sides.values()))
        small = [ranks for ranks in sides.values() if len(ranks) < largest]
        if len(sides) - len(small) > 1:
            return ()
        return tuple(sorted(rank for ranks in small for rank in ranks))


def first_mismatch(ops: Mapping[int, list[Op]], ended: bool) -> Mismatch | None:
    """The earliest mismatch among the ranks' records; None if they agree.

    ops: per rank, its collectives in order. ended: every rank returned, so that a missing call is a mismatch too
    (while some still run, it may yet come).
    """
    groups: dict[str, dict[int, list[Op]]] = {}
    for rank, calls in ops.items():
        for op in calls:
            groups.setdefault(op.key, {member: [] for member in op.group})[rank].append(op)
    found = [mismatch for members in groups.values() if (mismatch := _in_group(members, ended)) is not None]
    return min(found, key=lambda m: min(op.start_ns for op in m.ops.values() if op is not None), default=None)


def _in_group(members: dict[int, list[Op]], ended: bool) -> Mismatch | None:
    for index in range(max(map(len, members.values()))):
        here = {rank: calls[index] if index < len(calls) else None for rank, calls in sorted(members.items())}
        called = {rank: op for rank, op in here.items() if op is not None}
        what = _difference(list(called.values()))
        if what is None and _swapped(called, members, index):
            what = "order"
        if what is not None:
            return Mismatch(what, index, called)
        if len(called) < len(here):
            return Mismatch("number", index, here) if ended else None
    return None


def _difference(ops: list[Op]) -> str | None:
    first = ops[0]
    for what, aspect in _ASPECTS.items():
        if any(aspect(op) != aspect(first) for op in ops):
            return what
    if first.name == "all_to_all_single" and len(ops) == len(first.group) and _splits_differ(ops):
        return "splits"
    return None


def _splits_differ(ops: list[Op]) -> bool:
    """Does some rank send another a different number of rows than that one expects?"""
    splits = [op.splits or (None, None) for op in ops]
    if any(side is None or len(side) != len(ops) for pair in splits for side in pair):
        return False  # even splits, or a wrong number of them: torch checks both
    n = len(ops)
    return any(splits[i][0][j] != splits[j][1][i] for i in range(n) for j in range(n))


def _swapped(called: dict[int, Op], members: dict[int, list[Op]], index: int) -> bool:
    """Do two ranks make the same two calls here, told apart by their source, in opposite order?

    Calls that agree in all else can only be told apart by the line they are written on, and that alone proves little:
    a loop over owners, a helper chosen by rank, an early return, all make healthy ranks take turns with two lines.
    What is not healthy: within one function, one rank runs P then Q in one place, and another Q then P in another
    place, as in the two branches of an `if rank == 0`, and runs each of these lines once. (Tensors swapped within one
    line, as in a loop over a list, look alike here and are not found.)
    """
    (reference, first), *rest = called.items()
    if first.root is not None:
        return False
    for rank, op in rest:
        ours, theirs = members[reference][index : index + 2], members[rank][index : index + 2]
        if len(ours) < 2 or len(theirs) < 2:
            continue
        codes = [_code(op.frame) for op in (*ours, *theirs)]
        crossed = codes[0] == codes[3] and codes[1] == codes[2] and codes[0] != codes[1] and all(codes)
        frames = [op.frame for op in (*ours, *theirs)]
        places = {(frame.file, frame.function) for frame in frames}
        four_lines = len({frame.line for frame in frames}) == 4
        once = _once(frames[:2], members[reference]) and _once(frames[2:], members[rank])
        if crossed and len(places) == 1 and four_lines and once:
            return True
    return False


def _once(frames: list[Frame], calls: list[Op]) -> bool:
    """Does the rank make a call from each of these lines just once?"""
    return all(sum(op.frame == frame for op in calls) == 1 for frame in frames)


def _code(frame: Frame) -> str:
    """The line without its comment."""
    return frame.text.partition("#")[0].strip()


def _size(op: Op) -> object:
    """The number of elements, for shapes of as many elements give right values; of new_group the members."""
    return op.shape if op.dtype == "ranks" else math.prod(op.shape)
