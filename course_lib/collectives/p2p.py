"""What every collective here stands on: who is where in the group, how a tensor is cut, how two messages cross.

Ranks are always counted *within the group*: 0 .. n - 1. Torch's own `dst=` and `src=` count within the world, so a
collective that works on the world breaks on a sub-group. `group_dst=` and `group_src=` count within the group, and
are what is used here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

TAG = 1  # of the messages of our collectives, so that they never meet the caller's own, whose tag is 0


def rank_and_size(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """This rank's number within the group, and the number of ranks in it. Raises ValueError outside the group."""
    rank = dist.get_rank(group)
    if rank < 0:
        members = dist.get_process_group_ranks(group)
        raise ValueError(
            f"rank {dist.get_rank()} called a collective of a group it is not in: the group has ranks {members}"
        )
    return rank, dist.get_world_size(group)


def neighbours(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """(left, right): the group ranks before and after this one on the ring. The last rank's right one is rank 0."""
    rank, n = rank_and_size(group)
    return (rank - 1) % n, (rank + 1) % n


def chunk_bounds(numel: int, n: int) -> list[tuple[int, int]]:
    """Where each of n chunks of `numel` elements starts and ends. The first `numel % n` chunks have one element more.

    chunk_bounds(10, 4) = [(0, 3), (3, 6), (6, 8), (8, 10)]; with fewer elements than chunks the last ones are empty.
    """
    size, longer = divmod(numel, n)
    starts = [index * size + min(index, longer) for index in range(n + 1)]
    return list(zip(starts[:-1], starts[1:], strict=True))


def split(flat: Tensor, n: int) -> list[Tensor]:
    """The n chunks of a flat tensor, as views: writing to a chunk writes to `flat`."""
    return [flat[start:end] for start, end in chunk_bounds(flat.numel(), n)]


def equal_chunks(x: Tensor, n: int) -> Tensor:
    """x (n * k,) as n rows of k: (n, k). Raises ValueError when n does not divide the length."""
    if x.numel() % n:
        below = x.numel() // n * n
        raise ValueError(
            f"{x.numel()} elements cannot be cut into {n} equal chunks, one for each rank: "
            f"pad x to {below + n} elements or pass {below}"
        )
    return x.reshape(n, -1)


def isend(tensor: Tensor, to: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> list[dist.Work]:
    """Start sending to group rank `to`. Wait for what is returned before writing to the tensor. Empty: no message."""
    return [dist.isend(tensor, group=group, group_dst=to, tag=tag)] if tensor.numel() else []


def irecv(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> list[dist.Work]:
    """Start receiving into `tensor` from group rank `source`. Wait for what is returned before reading it."""
    return [dist.irecv(tensor, group=group, group_src=source, tag=tag)] if tensor.numel() else []


def wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def start(
    sends: Sequence[tuple[Tensor, int]],
    receives: Sequence[tuple[Tensor, int]],
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
) -> list[dist.Work]:
    """Start sending and receiving (tensor, group rank) pairs, all at once; in which order they meet does not matter."""
    if not any(tensor.is_cuda for tensor, _ in (*sends, *receives)):
        started = [work for tensor, source in receives for work in irecv(tensor, source, group, tag)]
        return started + [work for tensor, to in sends for work in isend(tensor, to, group, tag)]
    # NCCL runs what two ranks exchange in the order it was posted, so two sends that wait for each other would hang.
    # As one batch they run together.
    ops = [dist.P2POp(dist.irecv, t, group=group, tag=tag, group_peer=peer) for t, peer in receives if t.numel()]
    ops += [dist.P2POp(dist.isend, t, group=group, tag=tag, group_peer=peer) for t, peer in sends if t.numel()]
    return dist.batch_isend_irecv(ops) if ops else []


def send_recv(
    out: Tensor, to: int, into: Tensor, source: int, group: dist.ProcessGroup | None = None, tag: int = 0
) -> Tensor:
    """Send `out` to group rank `to` while receiving `into` from group rank `source`. Returns `into`, filled.

    Both are started before either is waited for, so a ring of ranks that all call this at once cannot deadlock. With
    plain `send` and `recv` everybody would stand in `send` and nobody would receive. Raises TypeError for arguments in
    another order.
    """
    if not (isinstance(out, Tensor) and isinstance(into, Tensor)):
        given = ", ".join(type(value).__name__ for value in (out, to, into, source))
        raise TypeError(
            f"send_recv(out, to, into, source) takes a tensor, a rank, a tensor and a rank; it was given {given}"
        )
    wait(start([(out, to)], [(into, source)], group, tag))
    return into
