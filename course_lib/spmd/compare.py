"""Do the ranks' records of their collectives agree?

gloo checks nothing: two all-reduces in swapped order, or dtypes of the same size, give wrong sums without a word. All ranks
of a group must call the same collectives, in the same order, with the same shapes and dtypes; here that is checked after
the fact. Point-to-point calls differ from rank to rank by their nature and are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .report import Op

# Their tensors may differ in size from rank to rank.
_UNEVEN = {"all_to_all", "all_to_all_single", "all_gather", "gather", "reduce_scatter", "scatter"}


@dataclass(frozen=True)
class Mismatch:
    """The first place where the ranks of a group part.

    `what`: "call" (different operations), "root", "shape", "dtype", "reduction", "splits", or "number" (a rank ended
    without this call). `ops[rank]` is what each rank called there, None if it called nothing.
    """

    what: str
    index: int
    ops: dict[int, Op | None]

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks in the minority; empty when there is no majority."""
        sides: dict[object, list[int]] = defaultdict(list)
        for rank, op in self.ops.items():
            sides[None if op is None else _aspect(op, self.what)].append(rank)
        counts = Counter({side: len(ranks) for side, ranks in sides.items()}).most_common()
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            return ()
        return tuple(sorted(rank for side, ranks in sides.items() if side != counts[0][0] for rank in ranks))


def _aspect(op: Op, what: str) -> object:
    return {"root": op.root, "shape": op.shape, "dtype": op.dtype, "reduction": op.reduce, "splits": op.splits}.get(
        what, op.name
    )


def first_mismatch(ops: Mapping[int, list[Op]], ended: bool) -> Mismatch | None:
    """The earliest mismatch among the ranks' records; None if they agree.

    ops: per rank, its collectives in order. ended: every rank returned, so that a missing call is a mismatch too (while
    some still run, it may yet come).
    """
    groups: dict[str, dict[int, list[Op]]] = {}
    for rank, calls in ops.items():
        for op in calls:
            members = groups.setdefault(op.key, {member: [] for member in op.group})
            members.setdefault(rank, []).append(op)
    found = [m for members in groups.values() if (m := _in_group(members, ended)) is not None]
    return min(found, key=lambda m: min(op.start_ns for op in m.ops.values() if op is not None), default=None)


def _in_group(members: dict[int, list[Op]], ended: bool) -> Mismatch | None:
    for index in range(max(map(len, members.values()))):
        here = {rank: calls[index] if index < len(calls) else None for rank, calls in sorted(members.items())}
        called = [op for op in here.values() if op is not None]
        what = _difference(called)
        if what:
            return Mismatch(what, index, {rank: op for rank, op in here.items() if op is not None})
        if len(called) < len(here):
            return Mismatch("number", index, here) if ended else None
    return None


def _difference(ops: list[Op]) -> str | None:
    for what in ("call", "root", "shape", "dtype", "reduction"):
        if what == "shape" and ops[0].name in _UNEVEN:
            continue
        if len({_aspect(op, what) for op in ops}) > 1:
            return what
    if ops[0].name == "all_to_all_single" and len(ops) == len(ops[0].group) and _splits_differ(ops):
        return "splits"
    return None


def _splits_differ(ops: list[Op]) -> bool:
    """Does some rank send another a different number of rows than that one expects?"""
    sends: list[tuple[int, ...]] = []
    takes: list[tuple[int, ...]] = []
    for op in ops:
        inputs, outputs = op.splits or (None, None)
        if inputs is None or outputs is None:
            return False  # even splits: torch checks those against the tensor
        sends.append(inputs)
        takes.append(outputs)
    n = len(ops)
    return any(sends[i][j] != takes[j][i] for i in range(n) for j in range(n))
