"""Recursive halving and doubling: the collectives of few steps, for small tensors.

Halving (a reduce-scatter): two ranks half the group apart each keep one half of the tensor and send the other half to
their partner, who keeps that one. Both add what arrives. Then the same within their own half of the group, with a
quarter of the tensor, and so on. After log2(p) steps each of the p ranks has one complete block.
Doubling (an all-gather) is the same film played backwards: partners exchange the blocks they have, which doubles them.

n ranks that are no power of two: p is the largest power of two below n. The first 2(n - p) ranks make pairs. In each
pair the even rank hands its tensor to the odd one, sits the halving out, and is handed its part of the result. An odd
rank of a pair looks after both chunks, so that the blocks of the p ranks stay in order:

    n = 6, p = 4:   ranks (0 1) (2 3) 4 5      blocks: chunks 0-1, chunks 2-3, chunk 4, chunk 5

Cost: 2 log2(p) steps for all-reduce, 2(p-1)/p of the tensor sent; pairs add 2 steps and 1 tensor (Thakur, Rabenseifner
and Gropp 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import TAG, chunk_bounds, irecv, isend, rank_and_size, send_recv, wait


@dataclass(frozen=True)
class Cast:
    """Who takes part in the halving, and which chunks each of them looks after."""

    rank: int  # within the group
    n: int
    p: int  # the largest power of two that is not above n

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Cast:
        rank, n = rank_and_size(group)
        return cls(rank, n, 1 << (n.bit_length() - 1))

    @property
    def paired(self) -> int:
        """The ranks below this one are in pairs."""
        return 2 * (self.n - self.p)

    @property
    def sits_out(self) -> bool:
        return self.rank < self.paired and self.rank % 2 == 0

    @property
    def part(self) -> int:
        """This rank's number among the p that take part (for one that sits out: its partner's)."""
        return self.rank // 2 if self.rank < self.paired else self.rank - self.paired // 2

    def group_rank(self, part: int) -> int:
        """The group rank of the one that plays `part`."""
        return 2 * part + 1 if part < self.paired // 2 else part + self.paired // 2

    def first_chunk(self, part: int) -> int:
        """Where the block of `part` starts; it ends where that of the next part starts. n for part p."""
        return 2 * part if part < self.paired // 2 else part + self.paired // 2


def all_reduce_(x: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce flat, contiguous x over the group in place. Any size."""
    cast = Cast.of(group)
    bounds = chunk_bounds(x.numel(), cast.n)
    _fold(x, op, cast, group)
    if not cast.sits_out:
        _halve(x, bounds, op, cast, group)
        _double(x, bounds, cast, group)
    _unfold(x, x, cast, group)


def reduce_scatter(x: Tensor, out: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce x (n, k) over the group into out (k,), row `rank` of the result. x is left as it was."""
    cast = Cast.of(group)
    work = x.flatten().clone()
    bounds = chunk_bounds(work.numel(), cast.n)
    _fold(work, op, cast, group)
    if not cast.sits_out:
        _halve(work, bounds, op, cast, group)
    rows = work.view(cast.n, -1)
    _unfold(rows[cast.rank & ~1], rows[cast.rank], cast, group)
    out.copy_(rows[cast.rank])


def all_gather(chunk: Tensor, out: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Gather chunk (k,) of every rank into out (n, k). The chunk may be row `rank` of out itself."""
    cast = Cast.of(group)
    out[cast.rank].copy_(chunk)
    if cast.rank < cast.paired:  # the odd rank of a pair takes the even one's chunk along
        even = cast.rank & ~1
        works = isend(out[even], even + 1, group, TAG) if cast.sits_out else irecv(out[even], even, group, TAG)
        wait(works)
    if not cast.sits_out:
        _double(out.view(-1), chunk_bounds(out.numel(), cast.n), cast, group)
    _unfold(out, out, cast, group)


def _fold(x: Tensor, op: Op, cast: Cast, group: dist.ProcessGroup | None) -> None:
    """The even rank of a pair hands its tensor to the odd one, which adds it to its own."""
    if cast.sits_out:
        wait(isend(x, cast.rank + 1, group, TAG))
    elif cast.rank < cast.paired:
        theirs = torch.empty_like(x)
        wait(irecv(theirs, cast.rank - 1, group, TAG))
        op.combine(x, theirs)


def _unfold(give: Tensor, take: Tensor, cast: Cast, group: dist.ProcessGroup | None) -> None:
    """The odd rank of a pair hands the even one its part of the result."""
    if cast.sits_out:
        wait(irecv(take, cast.rank + 1, group, TAG))
    elif cast.rank < cast.paired:
        wait(isend(give, cast.rank - 1, group, TAG))


def _block(x: Tensor, bounds: list[tuple[int, int]], cast: Cast, first: int, last: int) -> Tensor:
    """The view of x that parts first .. last - 1 look after together."""
    return x[bounds[cast.first_chunk(first)][0] : bounds[cast.first_chunk(last) - 1][1]]


def _halve(x: Tensor, bounds: list[tuple[int, int]], op: Op, cast: Cast, group: dist.ProcessGroup | None) -> None:
    """Reduce-scatter among the parts: afterwards this part's block of x is complete."""
    distance = cast.p // 2
    while distance:
        partner = cast.part ^ distance
        keep = _block(x, bounds, cast, *_span(cast.part, distance))
        give = _block(x, bounds, cast, *_span(partner, distance))
        theirs = torch.empty_like(keep)
        peer = cast.group_rank(partner)
        op.combine(keep, send_recv(give, peer, theirs, peer, group, TAG))
        distance //= 2
    op.complete(_block(x, bounds, cast, cast.part, cast.part + 1), cast.n)


def _double(x: Tensor, bounds: list[tuple[int, int]], cast: Cast, group: dist.ProcessGroup | None) -> None:
    """All-gather among the parts: every part starts with its own block of x and ends with all of x."""
    distance = 1
    while distance < cast.p:
        partner = cast.part ^ distance
        have = _block(x, bounds, cast, *_span(cast.part, distance))
        lack = _block(x, bounds, cast, *_span(partner, distance))
        peer = cast.group_rank(partner)
        send_recv(have, peer, lack, peer, group, TAG)
        distance *= 2


def _span(part: int, width: int) -> tuple[int, int]:
    """The first and the last + 1 of the `width` parts that `part` is among, when all are counted off in such groups."""
    return part - part % width, part - part % width + width
