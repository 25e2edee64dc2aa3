"""The obvious versions: which stage does what, in which order, and what the bubble costs. Lab 2 has you write them.

One stage per rank. An order is a list of pairs: ("F", 3) is the forward of micro-batch 3, ("B", 3) its backward.
`simulate.py` says what an order costs, and `runtime.py` runs it.
"""

from __future__ import annotations


def gpipe_order(rank: int, n_ranks: int, n_micro_batches: int) -> list[tuple[str, int]]:
    """GPipe: every forward, then every backward, micro-batches in order. So all of them are in memory at the turn.

    Huang et al., "GPipe" (1811.06965), section 2.3. The order is the same on every rank; only the waiting differs.
    """
    order: list[tuple[str, int]] = []
    # BEGIN SOLUTION
    for micro_batch in range(n_micro_batches):
        order.append(("F", micro_batch))
    for micro_batch in range(n_micro_batches):
        order.append(("B", micro_batch))
    # END SOLUTION
    return order


def one_f_one_b_order(rank: int, n_ranks: int, n_micro_batches: int) -> list[tuple[str, int]]:
    """1F1B: some forwards to fill the pipeline, then a forward and a backward in turns, then the backwards left over.

    Narayanan et al., "Efficient large-scale language model training on GPU clusters" (2104.04473), section 2.2.1.
    rank: 0 holds the first stage, n_ranks - 1 the last. No more than n_ranks - rank micro-batches are ever in memory
    here: as many as must be under way for the first backward to come back just in time. Right, too, if there are
    fewer micro-batches than ranks.
    """
    order: list[tuple[str, int]] = []
    # BEGIN SOLUTION
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    for micro_batch in range(warm_up):
        order.append(("F", micro_batch))
    for micro_batch in range(warm_up, n_micro_batches):
        order.append(("F", micro_batch))
        order.append(("B", micro_batch - warm_up))
    for micro_batch in range(n_micro_batches - warm_up, n_micro_batches):
        order.append(("B", micro_batch))
    # END SOLUTION
    return order


def bubble(n_ranks: int, n_micro_batches: int) -> float:
    """The share of its time that a rank idles, under GPipe or 1F1B, with stages of equal cost and free messages.

    Of the whole step: idle / makespan, from 0 (never) to under 1. Both orders take the time of n_micro_batches
    micro-batches on one stage, and of n_ranks - 1 more for the first to come in and the last to go out.
    """
    # BEGIN SOLUTION
    waiting = n_ranks - 1
    share = waiting / (n_micro_batches + waiting)
    # END SOLUTION
    return share


def micro_batches_for(n_ranks: int, share: float) -> int:
    """The fewest micro-batches for which the bubble is no more than `share` of the step, under GPipe or 1F1B.

    share: above 0. Raises ValueError for 0 or less: with two ranks or more some bubble always remains.
    """
    if share <= 0:
        raise ValueError(f"no number of micro-batches brings the bubble to {share}: ask for a share above 0")
    # BEGIN SOLUTION
    n_micro_batches = 1
    while bubble(n_ranks, n_micro_batches) > share:
        n_micro_batches += 1
    # END SOLUTION
    return n_micro_batches
