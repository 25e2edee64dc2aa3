"""All-reduce in two rounds: every rank sends each chunk straight to its owner; the owner sends the sum to everybody.

The bytes are the ring's, 2(n-1)/n of the tensor, and so are the 2(n-1) messages. But here none waits for another of its
round: a rank meets its peers twice, where a ring hands sums on 2(n-1) times and each time waits for the slowest. That
is worth most where ranks are slowed unevenly, as by sharing cores. The price: n - 1 messages from every rank at once
want a network in which each pair has a free path (memory on a laptop, a switch within a node), and a buffer for the
shares that arrive. Inference engines use it over NVLink, where it is called "two-shot".

The buffer is bounded by going through a large tensor block by block.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import TAG, irecv, isend, rank_and_size, split, wait

BLOCK_BYTES = 64 * 2**20  # of the tensor, at a time. Each block is two more rounds; its shares take less room than it

_kept = threading.local()


def all_reduce_(x: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce flat, contiguous x over the group in place."""
    for block in x.split(max(1, BLOCK_BYTES // x.element_size())):
        _block(block, op, group)


def _block(x: Tensor, op: Op, group: dist.ProcessGroup | None) -> None:
    rank, n = rank_and_size(group)
    chunks = split(x, n)
    own = chunks[rank]
    # Each rank begins with its right neighbour: were all to begin with rank 0, it would be flooded.
    peers = [(rank + distance) % n for distance in range(1, n)]
    shares = _room(own, n - 1)
    arriving = [irecv(share, peer, group, TAG) for share, peer in zip(shares, reversed(peers), strict=True)]
    sends = [work for peer in peers for work in isend(chunks[peer], peer, group, TAG)]
    for share, works in zip(shares, arriving, strict=True):
        wait(works)
        op.combine(own, share)
    op.complete(own, n)
    wait(sends)  # before what was sent is overwritten
    sums = [work for peer in reversed(peers) for work in irecv(chunks[peer], peer, group, TAG)]
    sums += [work for peer in peers for work in isend(own, peer, group, TAG)]
    wait(sums)


def _room(own: Tensor, count: int) -> list[Tensor]:
    """A buffer for each of `count` shares. Kept from call to call, for each thread: fresh memory costs like adding."""
    size = own.numel() * own.element_size()
    kept = _kept.__dict__
    if own.device not in kept or kept[own.device].numel() < size * count:
        kept[own.device] = torch.empty(size * count, dtype=torch.uint8, device=own.device)
    return [kept[own.device][i * size : (i + 1) * size].view(own.dtype) for i in range(count)]
