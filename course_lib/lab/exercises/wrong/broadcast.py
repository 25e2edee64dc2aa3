"""Wrong answers to `tree_broadcast`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
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


def forgetting_to_double(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    place, distance = (rank - root) % n, 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(x, (rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(x, (rank - distance) % n)
    return x


def into_a_fresh_buffer(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    incoming = torch.empty_like(x)
    if (rank - root) % n:
        dist.recv(incoming, (rank - 1) % n)
    if (rank - root) % n < n - 1:
        dist.send(incoming if (rank - root) % n else x, (rank + 1) % n)
    return x


def keeping_what_recv_returns(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    data = x.clone()
    if (rank - root) % n:
        data = dist.recv(data, (rank - 1) % n)
    if (rank - root) % n < n - 1:
        dist.send(x, (rank + 1) % n)
    return x.copy_(data)


def without_group(x: Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    rank, n = rank_and_size(group)
    return _tree_in(x, rank, n, (rank - root) % n)


def _tree_in(x: Tensor, rank: int, n: int, place: int) -> Tensor:
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(x, (rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(x, (rank - distance) % n)
        distance *= 2
    return x
