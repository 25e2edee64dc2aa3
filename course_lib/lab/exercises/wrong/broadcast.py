"""Wrong answers to `tree_broadcast`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import neighbours, rank_and_size


def _tree(x: Tensor, place: int, rounds_for: int, last: int) -> Tensor:
    """The right tree, but for the numbers it is given. last: one more than the last place there is said to be."""
    rank, n = rank_and_size()
    distance = 1
    while distance < rounds_for:
        if place < distance and place + distance < last:
            dist.send(x, (rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(x, (rank - distance) % n)
        distance *= 2
    return x


def ignoring_root(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, rank, n, n)


def one_round_short(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, (rank - root) % n, n / 2, n)


def without_bound(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, (rank - root) % n, n, 2 * n)


def by_root_alone(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    if rank != root:
        dist.recv(x, root)
        return x
    for peer in range(n):
        if peer != root:
            dist.send(x, peer)
    return x


def all_receive(x: Tensor, root: int = 0) -> Tensor:
    left, right = neighbours()
    dist.recv(x, left)
    dist.send(x, right)
    return x


def returning_input(x: Tensor, root: int = 0) -> Tensor:
    return x


def by_gloo(x: Tensor, root: int = 0) -> Tensor:
    dist.broadcast(x, root)
    return x
