"""Wrong answers to `gpipe_order`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from typing import Any

from course_lib.parallel.pipeline import simple

Order = list[tuple[str, int]]


def newest_first(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    forwards = [("F", i) for i in range(n_micro_batches)]
    return forwards + [("B", i) for i in reversed(range(n_micro_batches))]


def one_at_a_time(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    order = []
    for micro_batch in range(n_micro_batches):
        order.append(("F", micro_batch))
        order.append(("B", micro_batch))
    return order


def one_f_one_b(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return simple.one_f_one_b_order(rank, n_ranks, n_micro_batches)


def forwards_alone(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [("F", i) for i in range(n_micro_batches)]


def never_appended(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    order: Order = []
    for micro_batch in range(n_micro_batches):
        order + [("F", micro_batch), ("B", micro_batch)]
    return order


def last_one_lost(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [(kind, i) for kind in "FB" for i in range(n_micro_batches - 1)]


def counted_from_one(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [(kind, i) for kind in "FB" for i in range(1, n_micro_batches + 1)]


def as_many_as_ranks(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [(kind, i) for kind in "FB" for i in range(n_ranks)]


def backward_first(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [(kind, i) for kind in "BF" for i in range(n_micro_batches)]


def waits_for_its_rank(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """The last rank starts backward at once."""
    if rank < n_ranks - 1:
        return [(kind, i) for kind in "FB" for i in range(n_micro_batches)]
    return [(kind, i) for i in range(n_micro_batches) for kind in "FB"]


def in_two_lists(rank: int, n_ranks: int, n_micro_batches: int) -> list[Any]:
    return [[("F", i) for i in range(n_micro_batches)], *(("B", i) for i in range(n_micro_batches))]


def in_small_letters(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return [(kind, i) for kind in "fb" for i in range(n_micro_batches)]


def returns_nothing(rank: int, n_ranks: int, n_micro_batches: int) -> None:
    [(kind, i) for kind in "FB" for i in range(n_micro_batches)]
