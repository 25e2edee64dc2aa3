"""The obvious versions: a few lines each, from send and receive alone. Lab 0 has you write four of them.

`tree_broadcast` works in place, as torch's does. All others leave their input alone and return a new tensor.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import equal_chunks, neighbours, rank_and_size, send_recv, split


def naive_all_reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum of x over the group, on every rank: everybody sends to rank 0, rank 0 adds and sends the sum back.

    x: any shape. Rank 0's link carries (n - 1) times the tensor in each direction, all others carry it once.
    """
    rank, n = rank_and_size(group)
    total = x.contiguous().clone()
    if rank > 0:
        dist.send(total, group=group, group_dst=0)
        dist.recv(total, group=group, group_src=0)
        return total
    share = torch.empty_like(total)
    for peer in range(1, n):
        dist.recv(share, group=group, group_src=peer)
        total += share
    for peer in range(1, n):
        dist.send(total, group=group, group_dst=peer)
    return total


def tree_broadcast(x: Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    """Copy the root's x to every rank of the group, in place. Returns x.

    x: any shape, the same on all ranks. A binomial tree: each round, every rank that has the data sends it to one
    that has not, so the number of ranks that have it doubles: 1, 2, 4, ... and ceil(log2(n)) rounds reach all n.

    `place` is the rank counted from the root, so that the root is at place 0 whatever its rank. In the round of
    distance d, places 0 .. d - 1 have the data, and place p sends it to place p + d.
    """
    rank, n = rank_and_size(group)
    place = (rank - root) % n
    data = x.contiguous()
    # BEGIN SOLUTION
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(data, group=group, group_dst=(rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(data, group=group, group_src=(rank - distance) % n)
        distance *= 2
    # END SOLUTION
    return x.copy_(data)


def ring_reduce_scatter(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum of x over the group, of which this rank keeps its own chunk.

    x: (n * k,), n = group size. Returns (k,): chunk `rank` of the sum.

    Partial sums travel round the ring. The sum that will end at rank r starts at its right neighbour, r + 1, and
    takes n - 1 steps to come round; every rank it passes adds its own share of that chunk. So at each step a rank
    sends one partial sum to the right, receives one from the left, and adds.
    """
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    chunks = equal_chunks(x, n)  # (n, k)
    # BEGIN SOLUTION
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left, group)
        partial = incoming + chunks[(left - step) % n]
    # END SOLUTION
    return partial


def ring_all_gather(chunk: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Every rank's chunk, in the order of the ranks, on every rank.

    chunk: (k,), the same k on all ranks. Returns (n * k,): rank 0's chunk, then rank 1's, ...

    n - 1 steps. In each, pass on to the right what came from the left the step before; in the first step, your own
    chunk.
    """
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    gathered = chunk.new_empty(n, chunk.numel())  # (n, k)
    # BEGIN SOLUTION
    gathered[rank] = chunk
    for step in range(n - 1):
        send = (rank - step) % n
        receive = (rank - step - 1) % n
        send_recv(gathered[send], right, gathered[receive], left, group)
    # END SOLUTION
    return gathered.flatten()


def all_reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum of x over the group, on every rank. Any size: chunks may differ by one element, or be empty.

    x: any shape. Returns the sum, in x's shape.

    A ring reduce-scatter, then a ring all-gather, on the n views in `chunks`. The first step sends chunk rank - 1, and
    each step receives the chunk before the one it sends. For n - 1 steps what arrives is added: then chunk `rank` is
    complete. For n - 1 more it replaces.
    """
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    total = x.contiguous().clone()
    chunks = split(total.view(-1), n)  # n views of total, some one element longer than others
    # BEGIN SOLUTION
    for step in range(2 * (n - 1)):
        send = (rank - 1 - step) % n
        receive = (rank - 2 - step) % n
        incoming = torch.empty_like(chunks[receive])
        send_recv(chunks[send], right, incoming, left, group)
        if step < n - 1:
            chunks[receive] += incoming
        else:
            chunks[receive].copy_(incoming)
    # END SOLUTION
    return total
