"""Wrong answers to `micro_batches_for`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import math

from course_lib.parallel.pipeline.simple import bubble


def of_the_working_time(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while (n_ranks - 1) / n_micro_batches > share:
        n_micro_batches += 1
    return n_micro_batches


def of_all_ranks(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while n_ranks / (n_micro_batches + n_ranks) > share:
        n_micro_batches += 1
    return n_micro_batches


def a_multiple_of_the_ranks(n_ranks: int, share: float) -> int:
    n_micro_batches = n_ranks
    while bubble(n_ranks, n_micro_batches) > share:
        n_micro_batches += n_ranks
    return n_micro_batches


def the_working_share(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while 1 - bubble(n_ranks, n_micro_batches) < share:
        n_micro_batches += 1
    return n_micro_batches


def strictly_less(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while n_ranks > 1 and bubble(n_ranks, n_micro_batches) >= share:
        n_micro_batches += 1
    return n_micro_batches


def rounded_up(n_ranks: int, share: float) -> int:
    return max(1, math.ceil((n_ranks - 1) * (1 - share) / share))


def rounded_down(n_ranks: int, share: float) -> int:
    return max(1, int((n_ranks - 1) * (1 - share) / share))


def one_too_few(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while bubble(n_ranks, n_micro_batches) > share:
        n_micro_batches += 1
    return max(1, n_micro_batches - 1)


def one_too_many(n_ranks: int, share: float) -> int:
    n_micro_batches = 0
    while True:
        n_micro_batches += 1
        if bubble(n_ranks, n_micro_batches) <= share:
            return n_micro_batches + 1


def not_rounded(n_ranks: int, share: float) -> float:
    return (n_ranks - 1) / share - (n_ranks - 1)


def none_for_a_large_share(n_ranks: int, share: float) -> int:
    n_micro_batches = 0
    while n_ranks - 1 > share * (n_micro_batches + n_ranks - 1):
        n_micro_batches += 1
    return n_micro_batches


def by_doubling(n_ranks: int, share: float) -> int:
    n_micro_batches = 1
    while bubble(n_ranks, n_micro_batches) > share:
        n_micro_batches *= 2
    return n_micro_batches


def of_none(n_ranks: int, share: float) -> None:
    for n_micro_batches in range(1, 10_000):
        if bubble(n_ranks, n_micro_batches) <= share:
            break
