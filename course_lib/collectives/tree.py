"""Binomial trees: broadcast, reduce, scatter, gather, and the all-reduce made of two of them.

Ranks are counted from the root: `place` 0 is the root, whatever its rank. The parent of a place is that place with its
lowest 1-bit cleared, so the children of p are p + 1, p + 2, p + 4, ... as far as p's own lowest 1-bit:

    place    0  -> 4, 2, 1        with 8 ranks: the root reaches 4 first, and 4 serves 5, 6 and 7
             2  -> 3
             4  -> 6, 5
             6  -> 7

A place and all below it are the consecutive places p .. p + lowest bit - 1. This is what lets a scatter send each
child the chunks of all its descendants in one message.

Cost: ceil(log2(n)) steps. Broadcast and reduce pass the whole tensor at each step, scatter and gather (n-1)/n of it in
all through the root (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import TAG, irecv, isend, rank_and_size, wait


@dataclass(frozen=True)
class Place:
    """Where this rank stands in the binomial tree of its group."""

    place: int  # counted from the root
    root: int
    n: int

    @classmethod
    def of(cls, root: int, group: dist.ProcessGroup | None) -> Place:
        rank, n = rank_and_size(group)
        if not 0 <= root < n:
            raise ValueError(
                f"root {root} is not in this group of {n} ranks: choose 0 to {n - 1}, counted in the group"
            )
        return cls((rank - root) % n, root, n)

    @property
    def width(self) -> int:
        """How many places the branch that starts here may hold: the lowest 1-bit. The root's holds all."""
        return self.place & -self.place or 1 << (self.n - 1).bit_length()

    @property
    def parent(self) -> int:
        """The group rank above this one."""
        return self._rank(self.place - self.width)

    @property
    def children(self) -> list[tuple[int, int, int]]:
        """(group rank, first place, last + 1) of each branch below, the widest first."""
        found, width = [], self.width // 2
        while width:
            first = self.place + width
            if first < self.n:
                found.append((self._rank(first), first, min(first + width, self.n)))
            width //= 2
        return found

    def _rank(self, place: int) -> int:
        return (place + self.root) % self.n


def broadcast_(x: Tensor, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Copy the root's contiguous x to every rank, in place."""
    here = Place.of(root, group)
    if here.place:
        wait(irecv(x, here.parent, group, TAG))
    wait([work for child, _, _ in here.children for work in isend(x, child, group, TAG)])


def reduce_(x: Tensor, root: int, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce contiguous x to the root, in place. On other ranks x is left half-summed.

    The narrowest branch below is done first, so it is taken first.
    """
    here = Place.of(root, group)
    theirs = torch.empty_like(x) if here.children else x
    for child, _, _ in reversed(here.children):
        wait(irecv(theirs, child, group, TAG))
        op.combine(x, theirs)
    if here.place:
        wait(isend(x, here.parent, group, TAG))
    else:
        op.complete(x, here.n)


def all_reduce_(x: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce contiguous x over the group in place: to rank 0, and back."""
    reduce_(x, 0, op, group)
    broadcast_(x, 0, group)


def gather(chunk: Tensor, root: int, group: dist.ProcessGroup | None = None) -> Tensor | None:
    """Gather chunk (k,) of every rank into (n, k) on the root; None elsewhere."""
    here = Place.of(root, group)
    branch = chunk.new_empty(min(here.width, here.n - here.place), chunk.numel())  # the chunks of this place and below
    branch[0] = chunk
    for child, first, end in reversed(here.children):
        wait(irecv(branch[first - here.place : end - here.place], child, group, TAG))
    if here.place:
        wait(isend(branch, here.parent, group, TAG))
        return None
    return branch.roll(root, dims=0)  # from the order of the places to that of the ranks


def scatter(x: Tensor | None, out: Tensor, root: int, group: dist.ProcessGroup | None = None) -> None:
    """Give row r of the root's x (n, k) to rank r, in `out` (k,). x is read on the root only."""
    here = Place.of(root, group)
    if here.place:
        branch = out.new_empty(min(here.width, here.n - here.place), out.numel())
        wait(irecv(branch, here.parent, group, TAG))
    else:
        branch = x.roll(-root, dims=0)  # from the order of the ranks to that of the places
    sends = [
        isend(branch[first - here.place : end - here.place], child, group, TAG) for child, first, end in here.children
    ]
    out.copy_(branch[0])
    wait([work for works in sends for work in works])
