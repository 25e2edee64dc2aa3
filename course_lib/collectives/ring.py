"""The ring, pipelined: reduce-scatter, all-gather and all-reduce for large tensors.

The idea is that of `simple.py`. What makes it fast is that a chunk is cut into segments, and each segment is a message
of its own. When a segment has arrived it is added and sent on at once, while the next one is on its way. So the link
and the adder work at the same time, and no rank waits for a whole chunk.

Every variant of the ring is then a list of the messages that will arrive from the left, in order. A message says where
it lands, what is to be combined with it, and whether the result goes on to the right. `_run` does the rest.

Cost: 2(n-1) steps and 2(n-1)/n of the tensor sent by each rank for all-reduce; half of both for the other two. No
algorithm sends fewer bytes (Patarasuk and Yuan 2009). It needs 2(n-1) latencies, so small tensors go by `halving.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import TAG, irecv, isend, neighbours, rank_and_size, split, wait

SEGMENT_BYTES = 2 * 2**20  # smaller ones cost more in wake-ups than they hide; larger ones leave the cache
AHEAD = 2  # receives posted ahead: one segment is on its way while another is being added

_kept = threading.local()


@dataclass(frozen=True)
class Message:
    """A segment that will arrive from the left."""

    land: Tensor | None  # where it is received; None: in a scratch buffer
    own: Tensor | None  # this rank's share of the same elements, to be combined with it; None: nothing to combine
    result: Tensor  # where the combined segment stands afterwards: `land` or `own`
    forward: bool  # whether the result goes on to the right
    completes: bool = False  # whether all ranks' shares are in the result
    after_send: int | None = None  # land only when the send of this (earlier) message's result is through


def _run(first: Sequence[Tensor], messages: Sequence[Message], op: Op | None, group: dist.ProcessGroup | None) -> None:
    """Send the segments of `first` to the right; then take each message, combine it, and pass it on."""
    n = dist.get_world_size(group)
    left, right = neighbours(group)
    scratch = _scratch(messages[0].result) if messages else []
    sends: dict[int, list[dist.Work]] = {}  # by the number of the message that was passed on
    arriving: deque[tuple[Tensor, list[dist.Work]]] = deque()

    def post(number: int) -> None:
        message = messages[number]
        if message.after_send is not None:
            wait(sends.pop(message.after_send))
        land = message.land
        if land is None:
            land = scratch[number % AHEAD][: message.result.numel()]
        arriving.append((land, irecv(land, left, group, TAG)))

    for number in range(min(AHEAD, len(messages))):
        post(number)
    started = [work for segment in first for work in isend(segment, right, group, TAG)]
    for number, message in enumerate(messages):
        land, works = arriving.popleft()
        wait(works)
        if message.own is not None:
            op.combine(message.result, message.own if message.result is land else land)
        if message.completes:
            op.complete(message.result, n)
        if message.forward:
            sends[number] = isend(message.result, right, group, TAG)
        if number + AHEAD < len(messages):
            post(number + AHEAD)
    wait(started)
    for works in sends.values():
        wait(works)


def _scratch(like: Tensor) -> list[Tensor]:
    """Room for the segments that have no place of their own to land: one for each receive that is posted ahead.

    Kept from call to call: fresh memory would cost as much as the addition. One set for each thread, because
    collectives in flight run beside others.
    """
    kept = _kept.__dict__
    if like.device not in kept:
        kept[like.device] = torch.empty(AHEAD, SEGMENT_BYTES, dtype=torch.uint8, device=like.device)
    return list(kept[like.device].view(like.dtype))


def segments(chunk: Tensor) -> tuple[Tensor, ...]:
    """The chunk as views of SEGMENT_BYTES each, the last one shorter. An empty chunk is one empty segment."""
    return chunk.split(max(1, SEGMENT_BYTES // chunk.element_size()))


def all_reduce_(x: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce flat, contiguous x over the group in place.

    Step s brings chunk `rank - s - 1`. For n - 1 steps it lands in scratch, is added to our own, and the sum goes on.
    For n - 1 more it is complete, lands in x itself, and goes on.
    """
    n = dist.get_world_size(group)
    reduce_scatter_in_place(split(x, n), op, group, then_gather=True)


def reduce_scatter_in_place(
    chunks: Sequence[Tensor], op: Op, group: dist.ProcessGroup | None = None, *, then_gather: bool = False
) -> int:
    """Reduce the chunks (one for each rank, any sizes); afterwards one of them is complete here. Returns its number.

    All other chunks are left half-summed, unless `then_gather`: then all are complete.
    """
    rank, n = rank_and_size(group)

    def messages() -> Iterator[Message]:
        for step in range(n - 1):
            for own in segments(chunks[(rank - step - 1) % n]):
                completes = step == n - 2
                yield Message(None, own, own, forward=then_gather or not completes, completes=completes)
        for step in range(n - 1 if then_gather else 0):
            for segment in segments(chunks[(rank - step) % n]):
                yield Message(segment, None, segment, forward=step < n - 2)

    if n == 1:
        op.complete(chunks[0], 1)
    _run(segments(chunks[rank]) if n > 1 else (), list(messages()), op, group)
    return (rank + 1) % n


def reduce_scatter(x: Tensor, out: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce x (n, k) over the group into out (k,), row `rank` of the result. x is left as it was.

    A partial sum lands in a buffer, gets our share, and travels on from there. Two buffers take turns from step to
    step; one is free again when what it held has been sent. The last step lands in `out`, or is added there when `out`
    is our own row of x.
    """
    rank, n = rank_and_size(group)
    left, _ = neighbours(group)
    count = len(segments(x[0]))
    in_place = out.data_ptr() == x[rank].data_ptr()
    travel = [segments(torch.empty_like(x[0])) for _ in range(min(2, n - 2))]

    def messages() -> Iterator[Message]:
        for step in range(n - 1):
            last = step == n - 2
            lands = segments(out) if last else travel[step % 2]
            shares = segments(x[(left - step - 1) % n])
            for place, (land, own) in enumerate(zip(lands, shares, strict=True)):
                reused = (step - 2) * count + place if step >= 2 and not last else None
                if last and in_place:
                    yield Message(None, own, own, forward=False, completes=True)
                else:
                    yield Message(land, own, land, forward=not last, completes=last, after_send=reused)

    if n == 1:
        op.complete(out.copy_(x[0]), 1)
    _run(segments(x[left]) if n > 1 else (), list(messages()), op, group)


def all_gather(chunk: Tensor, out: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Gather chunk (k,) of every rank into out (n, k). The chunk may be row `rank` of out itself."""
    rank, n = rank_and_size(group)
    out[rank].copy_(chunk)
    all_gather_in_place(list(out), rank, group)


def all_gather_in_place(chunks: Sequence[Tensor], mine: int, group: dist.ProcessGroup | None = None) -> None:
    """Fill in the chunks of all other ranks. This rank holds chunk `mine`, its left neighbour the one before, ..."""
    _, n = rank_and_size(group)
    messages = [
        Message(segment, None, segment, forward=step < n - 2)
        for step in range(n - 1)
        for segment in segments(chunks[(mine - step - 1) % n])
    ]
    _run(segments(chunks[mine]) if n > 1 else (), messages, None, group)
