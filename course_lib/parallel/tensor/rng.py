"""Random numbers under tensor parallelism: alike on all ranks where the data is alike, others on each where it is not.

Dropout on the residual stream must drop the same elements on every rank, or its copies go apart. Dropout on a rank's
own heads, or on its own tokens with sequence parallelism, must drop others on each, or the mask of the whole repeats.

Megatron-LM keeps a second stream of random numbers beside the default one, in a tracker whose state recomputation and
checkpoints must carry along. Here the second stream begins anew in each region, from a number that is drawn from the
default one. So the default stream is all the state there is: who restores it, as `torch.utils.checkpoint` does before
it recomputes, has the masks of both kinds of region again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from course_lib.collectives.p2p import rank_and_size


@contextmanager
def own_randomness(device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Inside, what `device` draws at random differs from rank to rank. Afterwards it goes on alike, as it was before.

    with own_randomness(q.device, group):
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    The CPU's default generator must be alike on the group on entry (`torch.manual_seed` with one seed, then the same
    draws on all). One number is drawn from it, which with the rank decides the numbers inside. The default generators,
    the CPU's and the device's, do not show how much was drawn inside: in regions where data is alike, draws stay alike.
    """
    rank, n = rank_and_size(group)
    # From the CPU's generator on a GPU too: nothing waits for the device.
    seed = int(torch.randint(2**31 // n, ())) * n + rank
    device = torch.device(device)
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(seed)
        yield
