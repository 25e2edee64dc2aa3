"""Tokens to their experts and back: counts first, then rows, then the results the same way in reverse.

All ranks of the group take part in every exchange, forward and backward, whether they have tokens or not, and whether
anybody chose their experts or not. So nothing here is left out where a count is 0.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from course_lib.collectives.autograd import all_to_all
from course_lib.collectives.p2p import rank_and_size
from course_lib.models.moe import Experts, swiglu


def exchange_counts(send: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Tell all ranks how many rows will come. send (n, ...) int64: row r is for rank r. Returns (n, ...), by sender."""
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send.contiguous(), group=group)
    return receive


class ParallelExperts(nn.Module):
    """Does as Experts does, of which each rank of the group holds E/n: rank r those from r E/n on. Names are the same.

    experts: all E of them, with values or on meta; each rank keeps a copy of its part. Frozen ones stay so.
    """

    def __init__(self, experts: Experts, group: dist.ProcessGroup | None = None):
        super().__init__()
        rank, n = rank_and_size(group)
        self.group = group
        for name, p in experts.named_parameters():
            part = p.detach().chunk(n)[rank].clone()  # a view would keep the whole
            self.register_parameter(name, Parameter(part, p.requires_grad))

    def forward(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The first counts_E[0] rows through the first of all E experts, and so on. Returns (R, D), in the same order.

        Five exchanges a step: counts, rows, outputs; and in backward the gradients of outputs and of rows. The host
        waits for the device once, for the counts: it must know them to make room.
        """
        rank, n = rank_and_size(self.group)
        send = counts_E.view(n, -1)
        receive = exchange_counts(send, self.group)
        send_counts, receive_counts = torch.stack([send.sum(1), receive.sum(1)]).tolist()
        rows_RD = all_to_all(rows_RD, send_counts, receive_counts, self.group)
        to = _by_expert(receive, sum(receive_counts))
        rows_RD = _placed(rows_RD, to)
        rows_RD = swiglu(rows_RD, self.gate, self.up, self.down, receive.sum(0))
        rows_RD = _placed(rows_RD, to.argsort())
        return all_to_all(rows_RD, receive_counts, send_counts, self.group)


def _by_expert(counts_nE: Tensor, total: int) -> Tensor:
    """Rows come sorted by sender, and there by expert. To which place each must go to be sorted by expert, (total,)."""
    n, experts = counts_nE.shape
    expert = torch.arange(experts, device=counts_nE.device).repeat(n)
    expert = expert.repeat_interleave(counts_nE.flatten(), output_size=total)  # the size: else the host waits for it
    return expert.argsort(stable=True).argsort()


def _placed(rows: Tensor, to: Tensor) -> Tensor:
    """Row i at place to[i]. Unlike that of an indexed read, its backward is a plain read, not a sum."""
    return torch.zeros_like(rows).index_copy(0, to, rows)
