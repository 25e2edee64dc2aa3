"""Who has which tokens. Alike: every rank has all of them. Sequence parallel: each keeps its n-th of them.

Between the matrices of a layer (norms, residual adds, dropout) tokens do not meet, so any cut of them will do. With
(B, S, D) in memory, the tokens are one row of B * S; rank r keeps the r-th n-th of that row, as (B, S/n, D). This is a
cut of memory without gaps, so that nothing is copied on the way: position p of sequence b is at (b, p) only after the
gather. In torch's and Megatron-LM's cut each rank keeps S/n positions of every sequence instead; on B = 1 they are one.

Everything here takes tensors (..., S, D) or (..., S/n, D), and may be waited for later: start, compute, then `wait()`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.native import all_gather_into, reduce_scatter_into

Pending = Callable[[], Tensor]  # waits, and returns the result


def start_gather(x: Tensor, group: dist.ProcessGroup | None) -> Pending:
    """All tokens, from every rank's part of them: (..., S/n, D) -> (..., S, D)."""
    n = dist.get_world_size(group)
    if n == 1:
        return lambda: x
    whole = x.new_empty(*x.shape[:-2], x.shape[-2] * n, x.shape[-1])
    work = all_gather_into(whole, x.contiguous(), group, async_op=True)
    return _waiting(work, whole)


def start_sum(x: Tensor, group: dist.ProcessGroup | None, keep_part: bool) -> Pending:
    """The sum over the ranks of x (..., S, D): the whole, which overwrites x, or this rank's part of the tokens.

    x must be the caller's own and contiguous. With keep_part, ValueError if n does not divide S.
    """
    n = dist.get_world_size(group)
    if n == 1:
        return lambda: x
    if not keep_part:
        return _waiting(dist.all_reduce(x, group=group, async_op=True), x)
    tokens = x.shape[-2]
    if tokens % n:
        raise ValueError(
            f"a sequence of {tokens} tokens cannot be cut into {n} equal parts, one for each rank: pad it to "
            f"{-(-tokens // n) * n} tokens, or do without sequence parallelism"
        )
    part = x.new_empty(*x.shape[:-2], tokens // n, x.shape[-1])
    return _waiting(reduce_scatter_into(part, x, group, async_op=True), part)


def _waiting(work: dist.Work, result: Tensor) -> Pending:
    def wait() -> Tensor:
        work.wait()
        return result

    return wait
