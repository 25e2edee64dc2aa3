"""Gradients of which each rank has found a part: summed once a step, many in one message.

A norm's gradient is a few thousand numbers, and there are two norms in each layer: sent one by one, their latency would
be all they cost. Sent after the last backward, micro-batches cost nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.collectives.p2p import rank_and_size

Group = dist.ProcessGroup | None


def sum_gradients(parameters: Iterable[Parameter], group: Group = None) -> None:
    """Replace each gradient by its sum over the group, in place. Parameters without a gradient are passed over.

    parameters: the same, in the same order, on every rank, and the same of them have gradients.
    """
    for flat, gradients in _together(parameters):
        dist.all_reduce(flat, group=group)
        _hand_back(flat, gradients)


def sum_over_copies(parameters: Iterable[Parameter], copies: int, group: Group = None) -> None:
    """Replace each gradient by its sum over the ranks that hold the same: `copies` neighbours in the group. In place.

    parameters: as for `sum_gradients`. Group ranks 0 .. copies - 1 hold one part, the next `copies` another, and so on.
    All of the group call it; each sends to its neighbours alone, so that no group of their own is needed, and adds in
    the order of the ranks, so that all have the same bits.
    """
    rank, n = rank_and_size(group)
    for flat, gradients in _together(parameters):
        counts = [flat.numel() if peer // copies == rank // copies else 0 for peer in range(n)]
        received = flat.new_empty(copies, flat.numel())
        dist.all_to_all_single(received.view(-1), flat.repeat(copies), counts, counts, group=group)
        _hand_back(received.sum(0), gradients)


def _together(parameters: Iterable[Parameter]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """All gradients of one dtype in one vector, and those gradients."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            by_dtype.setdefault(p.grad.dtype, []).append(p.grad)
    for gradients in by_dtype.values():
        yield torch.cat([grad.reshape(-1) for grad in gradients]), gradients


def _hand_back(flat: Tensor, gradients: list[Tensor]) -> None:
    for grad, part in zip(gradients, flat.split([grad.numel() for grad in gradients]), strict=True):
        grad.copy_(part.view_as(grad))
