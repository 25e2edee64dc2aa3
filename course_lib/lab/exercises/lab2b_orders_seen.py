"""Lab 2b: the orders that an answer gives, as a schedule that can be validated and simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from course_lib.lab import show
from course_lib.parallel.pipeline.schedule import Schedule, from_kinds
from course_lib.parallel.pipeline.simulate import Simulation, simulate
from course_lib.parallel.pipeline.validate import problems

SHOWN = 12  # entries of an order in a sentence


class Orders:
    """The orders of all ranks as one value, which messages show rank by rank."""

    def __init__(self, ranks: list[list[Any]]) -> None:
        self.ranks = ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Orders) and self.ranks == other.ranks

    __hash__ = None


def all_ranks(answer: Callable, n_ranks: int, n_micro_batches: int) -> Any:
    """The orders of all ranks, whatever kind of sequences the answer makes of them; or the first that is none."""
    ranks = []
    for rank in range(n_ranks):
        order = answer(rank, n_ranks, n_micro_batches)
        try:
            ranks.append([_entry(entry) for entry in order])
        except TypeError:
            return order
    return Orders(ranks)


def _entry(entry: Any) -> Any:
    """Pairs alike, be they lists, tuples or Actions without a stage."""
    pair = isinstance(entry, tuple | list) and len(entry) == 2
    return (str(entry[0]), entry[1]) if pair else entry


def schedule_of(orders: Orders) -> Schedule:
    return from_kinds(orders.ranks)


def simulated(orders: Orders, n_ranks: int) -> Simulation:
    """Raises Deadlock."""
    return simulate(schedule_of(orders))


def written(order: list[tuple[str, int]]) -> str:
    more = " and so on" if len(order) > SHOWN else ""
    return " ".join(f"{kind}{mb}" for kind, mb in order[:SHOWN]) + more


def told_of_rank(have: Orders, want: Orders, rank: int) -> str:
    """What a rank does and should do, from the first difference on."""
    mine, right = have.ranks[rank], want.ranks[rank]
    return f"rank {rank}: {written(mine) or 'nothing'}, it should be {written(right)}."


def told(have: Orders, want: Orders, p: int, m: int) -> str:
    """What is wrong with orders that no known mistake explains: by the validator, else by their price."""
    rank = next(rank for rank in range(p) if have.ranks[rank] != want.ranks[rank])
    head = told_of_rank(have, want, rank)
    schedule = schedule_of(have)
    for at, order in enumerate(have.ranks):
        lost = [f"{kind}{mb}" for kind in "FB" for mb in range(m) if (kind, mb) not in order]
        if lost and len(set(order)) == len(order):
            more = f", nor {len(lost) - 1} more" if len(lost) > 1 else ""
            return f"{told_of_rank(have, want, at)} So rank {at} never runs {lost[0]}{more}."
    if found := problems(schedule):
        reason = str(found[0]).partition(f"place {found[0].index}: ")
        about = _plain(reason[2] or reason[0])
        kind, mb = found[0].action.kind, found[0].action.micro_batch
        return f"{told_of_rank(have, want, found[0].rank)} Rank {found[0].rank} cannot run {kind}{mb} there: {about}."
    if len({tuple(order) for order in want.ranks}) == 1 and len({tuple(order) for order in have.ranks}) > 1:
        return f"{head} The order is the same on every rank; only the waiting differs."
    mine, right = simulate(schedule), simulated(want, p)
    return (
        f"{head} This is possible. It takes {show.number(mine.makespan)} units of time, it should be "
        f"{show.number(right.makespan)} (forward takes 1, backward 2), and rank {rank} holds "
        f"{show.number(mine.peaks[rank])} micro-batches, it should be {show.number(right.peaks[rank])}."
    )


def _plain(reason: str) -> str:
    """The validator's words, without the numbers of stages: here they are those of the ranks."""
    if "deadlock" in reason:
        return reason
    return re.sub(r"\b\d+([FB]\d+)", r"\1", reason)
