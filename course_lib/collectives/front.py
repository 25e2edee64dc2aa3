"""The collectives as they are called: inputs checked, an algorithm chosen by size, run now or in flight.

In all of them `group=None` is the world and ranks count within the group. Ranks must agree on shape, dtype and
arguments. Inputs need not be contiguous. With `async_op=True` the call returns a Handle at once, whose wait() returns
what the call would have. With one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import direct, exchange, halving, hierarchical, ring, tree
from course_lib.collectives.handle import Handle, issue
from course_lib.collectives.ops import SUM, Op, as_op
from course_lib.collectives.p2p import rank_and_size

Group = dist.ProcessGroup | None

# Up to here the number of messages counts for more than their bytes. Measured with ranks that share cores, where each
# message also costs two of them a wake-up; `python -m course_lib.bench collectives` shows all sides.
SMALL_BYTES = 4 * 2**20

# The first of each is for small tensors, the second for large ones.
ALL_REDUCE = {
    "tree": tree.all_reduce_,
    "direct": direct.all_reduce_,
    "ring": ring.all_reduce_,
    "halving": halving.all_reduce_,
}
REDUCE_SCATTER = {
    "halving": halving.reduce_scatter,
    "ring": ring.reduce_scatter,
    "fp32": exchange.reduce_scatter_fp32,
}
ALL_GATHER = {"halving": halving.all_gather, "ring": ring.all_gather}


def all_reduce(
    x: Tensor, op: Op = SUM, group: Group = None, *, algorithm: str = "auto", async_op: bool = False
) -> Tensor | Handle:
    """Reduce x over the group, in place on every rank. Returns x. Any shape; any size, empty too.

    algorithm: "tree" (fewest messages), "ring" (fewest bytes, neighbours only), "direct" (fewest bytes in two rounds,
    everybody with everybody), "halving" (fewest bytes in few steps; any number of ranks, best at powers of two), or
    "auto": tree up to SMALL_BYTES, then direct.
    """
    return _all_reduce(x, op, group, _choose(ALL_REDUCE, algorithm, x), async_op)


def two_level_all_reduce(
    x: Tensor, groups: hierarchical.Levels, op: Op = SUM, *, async_op: bool = False
) -> Tensor | Handle:
    """all_reduce over all nodes, by way of each node. groups: from `levels(per_node)`, made once by all ranks."""

    def engine(flat: Tensor, op: Op, _: Group) -> None:
        hierarchical.all_reduce_(flat, op, groups)

    return _all_reduce(x, op, groups.node, engine, async_op)


def _all_reduce(x: Tensor, op: Op, group: Group, engine: Callable, async_op: bool) -> Tensor | Handle:
    op = as_op(op)
    op.check(x.dtype)
    rank_and_size(group)

    def job() -> Tensor:
        work = op.prepare(x.contiguous())
        engine(work.view(-1), op, group)
        return x.copy_(work)  # nothing to do where work is x itself

    return issue(job, x, group, async_op)


def broadcast(x: Tensor, root: int = 0, group: Group = None, *, async_op: bool = False) -> Tensor | Handle:
    """Copy the root's x to every rank, in place. Returns x."""
    tree.Place.of(root, group)

    def job() -> Tensor:
        work = x.contiguous()
        tree.broadcast_(work, root, group)
        return x.copy_(work)

    return issue(job, x, group, async_op)


def reduce(
    x: Tensor, root: int = 0, op: Op = SUM, group: Group = None, *, async_op: bool = False
) -> Tensor | None | Handle:
    """The reduction of x over the group, on the root; None elsewhere. x is left as it was."""
    op = as_op(op)
    op.check(x.dtype)
    tree.Place.of(root, group)

    def job() -> Tensor | None:
        work = op.prepare(x).clone(memory_format=torch.contiguous_format)
        tree.reduce_(work, root, op, group)
        return work if rank_and_size(group)[0] == root else None

    return issue(job, x, group, async_op)


def gather(x: Tensor, root: int = 0, group: Group = None, *, async_op: bool = False) -> Tensor | None | Handle:
    """All ranks' x, one after the other along dim 0, on the root: (k, ...) -> (n * k, ...). None elsewhere."""
    tree.Place.of(root, group)

    def job() -> Tensor | None:
        rows = tree.gather(x.reshape(-1), root, group)
        return None if rows is None else rows.view(-1, *x.shape[1:])

    return issue(job, x, group, async_op)


def scatter(
    out: Tensor, x: Tensor | None = None, root: int = 0, group: Group = None, *, async_op: bool = False
) -> Tensor | Handle:
    """Give each rank its part of the root's x (n * k, ...), in `out` (k, ...). Returns out. x: on the root only."""
    rank, n = rank_and_size(group)
    tree.Place.of(root, group)
    rows = None
    if rank == root:
        if x is None:
            raise ValueError(f"rank {rank} is the root of this scatter and passed no x: pass {n} parts shaped like out")
        if x.numel() != n * out.numel() or x.dtype != out.dtype:
            raise ValueError(
                f"scatter to {n} ranks needs {n} x {out.numel()} = {n * out.numel()} elements of {out.dtype} on the "
                f"root, and x has {x.numel()} of {x.dtype}"
            )
        rows = x.reshape(n, -1)

    def job() -> Tensor:
        flat = out.contiguous().view(-1)
        tree.scatter(rows, flat, root, group)
        return out.copy_(flat.view(out.shape))

    return issue(job, out, group, async_op)


def all_gather(
    x: Tensor, group: Group = None, *, out: Tensor | None = None, algorithm: str = "auto", async_op: bool = False
) -> Tensor | Handle:
    """All ranks' x, one after the other along dim 0: (k, ...) -> (n * k, ...).

    out: a contiguous tensor to write to; x may be this rank's part of it, and is then not copied.
    """
    _, n = rank_and_size(group)
    shape = (n * x.shape[0], *x.shape[1:]) if x.dim() else (n,)
    engine = _choose(ALL_GATHER, algorithm, x)
    out = _output(out, shape, x, "all_gather")

    def job() -> Tensor:
        if x.numel():
            engine(x.reshape(-1), out.view(n, -1), group)
        return out

    return issue(job, x, group, async_op)


def reduce_scatter(
    x: Tensor,
    op: Op = SUM,
    group: Group = None,
    *,
    out: Tensor | None = None,
    algorithm: str = "auto",
    async_op: bool = False,
) -> Tensor | Handle:
    """Reduce x over the group and keep this rank's part along dim 0: (n * k, ...) -> (k, ...). x is left as it was.

    algorithm: "halving", "ring", "auto", or "fp32": adds in float32 what travels in x's dtype, and rounds once.
    out: a contiguous tensor to write to; it may be this rank's part of x.
    """
    op = as_op(op)
    op.check(x.dtype)
    _, n = rank_and_size(group)
    rows = x.shape[0] if x.dim() else 1
    if rows % n:
        below = rows // n * n
        raise ValueError(
            f"reduce_scatter cannot deal {rows} rows equally to {n} ranks: pad x to {below + n} rows or pass {below}"
        )
    engine = _choose(REDUCE_SCATTER, algorithm, x)
    out = _output(out, (rows // n, *x.shape[1:]), x, "reduce_scatter")

    def job() -> Tensor:
        if x.numel():
            engine(op.prepare(x).reshape(n, -1), out.view(-1), op, group)
        return out

    return issue(job, x, group, async_op)


def all_to_all(
    x: Tensor,
    send_counts: Sequence[int] | None = None,
    receive_counts: Sequence[int] | None = None,
    group: Group = None,
    *,
    async_op: bool = False,
) -> Tensor | Handle:
    """Send rows of x (dim 0) to every rank: the first send_counts[0] to rank 0, ... Returns what arrived, by rank.

    Without counts every rank gets an equal part. Without receive_counts the ranks first tell each other.
    """
    _, n = rank_and_size(group)
    rows = x.shape[0] if x.dim() else 0
    if send_counts is None:
        if rows % n:
            raise ValueError(f"{rows} rows cannot be dealt equally to {n} ranks: pass send_counts, {n} numbers")
        send_counts = receive_counts = [rows // n] * n
    for name, counts in (("send_counts", send_counts), ("receive_counts", receive_counts)):
        if counts is not None and (len(counts) != n or min(counts) < 0):
            raise ValueError(f"{name} is {list(counts)}: it needs {n} numbers, one for each rank, none below 0")
    if sum(send_counts) != rows:
        raise ValueError(f"send_counts {list(send_counts)} add up to {sum(send_counts)} rows and x has {rows}")

    def job() -> Tensor:
        receives = receive_counts
        if receives is None:
            told = torch.tensor(send_counts, device=x.device)
            receives = exchange.all_to_all(told, [1] * n, [1] * n, group).tolist()
        return exchange.all_to_all(x.contiguous(), send_counts, receives, group)

    return issue(job, x, group, async_op)


def _choose(engines: dict[str, Callable], algorithm: str, x: Tensor) -> Callable:
    if algorithm == "auto":
        small, large, *_ = engines
        algorithm = small if x.numel() * x.element_size() <= SMALL_BYTES else large
    if algorithm not in engines:
        raise ValueError(f"unknown algorithm {algorithm!r}: choose auto, {', '.join(engines)}")
    return engines[algorithm]


def _output(out: Tensor | None, shape: tuple[int, ...], x: Tensor, name: str) -> Tensor:
    """`out`, checked, or a new tensor of that shape."""
    if out is None:
        return x.new_empty(shape)
    if out.numel() != torch.Size(shape).numel() or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"{name} writes {tuple(shape)} of {x.dtype}, contiguous; out is {tuple(out.shape)} of {out.dtype}"
            f"{'' if out.is_contiguous() else ', not contiguous'}"
        )
    return out
