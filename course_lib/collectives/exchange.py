"""All-to-all: every rank has something else for every rank. And the reduce-scatter that adds in float32.

Nothing depends on anything else, so all messages start at once. Each rank begins with its right neighbour and goes on
round the circle. Were all to begin with rank 0, its link would be flooded while the others idle. n - 1 messages,
(n-1)/n of the rows sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import TAG, rank_and_size, start, wait


def all_to_all(
    x: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], group: dist.ProcessGroup | None = None
) -> Tensor:
    """Send the first send_counts[0] rows of x to rank 0, the next send_counts[1] to rank 1, ...; counts may be 0.

    x: (sum(send_counts), ...), contiguous. Returns (sum(receive_counts), ...): the rows from rank 0, from rank 1, ...
    receive_counts[r] must be what rank r sends here.
    """
    rank, n = rank_and_size(group)
    outgoing = x.split(list(send_counts))
    received = x.new_empty(sum(receive_counts), *x.shape[1:])
    incoming = received.split(list(receive_counts))
    incoming[rank].copy_(outgoing[rank])
    to_right = [(rank + distance) % n for distance in range(1, n)]
    sends = [(outgoing[peer], peer) for peer in to_right]
    receives = [(incoming[peer], peer) for peer in reversed(to_right)]
    wait(start(sends, receives, group, TAG))
    return received


def reduce_scatter_fp32(x: Tensor, out: Tensor, op: Op, group: dist.ProcessGroup | None = None) -> None:
    """Reduce x (n, k) over the group into out (k,), row `rank`: bfloat16 on the wire, float32 in the sum.

    A ring adds in the dtype it sends, and rounds n - 1 times: with many ranks small gradients vanish beside large
    sums. Here every share travels unrounded to the rank that owns the chunk, which adds all n in float32 and rounds
    once. It sends as many bytes as a ring in bfloat16. (Megatron-LM's reduce_scatter_with_fp32_accumulation does
    the same.)
    """
    n = dist.get_world_size(group)
    shares = all_to_all(x, [1] * n, [1] * n, group)  # (n, k): every rank's share of this rank's row
    total = shares[0].float()
    for share in shares[1:]:
        op.combine(total, share)
    op.complete(total, n)
    out.copy_(total)
