"""Wrong answers to `one_f_one_b_order`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

Order = list[tuple[str, int]]


def turns(warm_up: int, n_micro_batches: int) -> Order:
    order = [("F", i) for i in range(warm_up)]
    for i in range(warm_up, n_micro_batches):
        order += [("F", i), ("B", i - warm_up)]
    return order + [("B", i) for i in range(n_micro_batches - warm_up, n_micro_batches)]


def one_too_few(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(min(max(n_ranks - 2 - rank, 0), n_micro_batches), n_micro_batches)


def without_warm_up(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(0, n_micro_batches)


def one_too_many(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(min(n_ranks - rank, n_micro_batches), n_micro_batches)


def twice_the_ranks(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """Of interleaved 1F1B, where messages go round twice."""
    return turns(min(2 * (n_ranks - 1 - rank), n_micro_batches), n_micro_batches)


def gpipe(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(n_micro_batches, n_micro_batches)


def the_same_on_all(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(min(n_ranks - 1, n_micro_batches), n_micro_batches)


def growing_with_the_rank(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(min(rank, n_micro_batches), n_micro_batches)


def without_cool_down(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order = [("F", i) for i in range(warm_up)]
    for i in range(warm_up, n_micro_batches):
        order += [("F", i), ("B", i - warm_up)]
    return order


def newest_first(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """Activations on a stack: the last one in is the first one out."""
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order, held = [("F", i) for i in range(warm_up)], list(range(warm_up))
    for i in range(warm_up, n_micro_batches):
        held.append(i)
        order += [("F", i), ("B", held.pop())]
    while held:
        order.append(("B", held.pop()))
    return order


def fewer_than_ranks_forgotten(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    return turns(n_ranks - 1 - rank, n_micro_batches)


def turns_from_zero(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """The turns begin with micro-batch 0 again."""
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order = [("F", i) for i in range(warm_up)]
    for i in range(n_micro_batches):
        order += [("F", i), ("B", i)]
    return order


def backward_of_the_same(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """In a turn, backward takes the micro-batch that was forward just now."""
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order = [("F", i) for i in range(warm_up)]
    for i in range(warm_up, n_micro_batches):
        order += [("B", i), ("F", i)]
    return order + [("B", i) for i in range(warm_up)]


def backward_before_forward(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    """The turns the wrong way round, each with the right micro-batches."""
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order = [("F", i) for i in range(warm_up)]
    for i in range(warm_up, n_micro_batches):
        order += [("B", i - warm_up), ("F", i)]
    return order + [("B", i) for i in range(n_micro_batches - warm_up, n_micro_batches)]


def cool_down_one_short(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    return turns(warm_up, n_micro_batches)[: -1 if warm_up else None]


def last_forward_lost(rank: int, n_ranks: int, n_micro_batches: int) -> Order:
    warm_up = min(n_ranks - 1 - rank, n_micro_batches)
    order = [("F", i) for i in range(warm_up)]
    for i in range(warm_up, n_micro_batches - 1):
        order += [("F", i), ("B", i - warm_up)]
    return order + [("B", i) for i in range(n_micro_batches - 1 - warm_up, n_micro_batches)]
