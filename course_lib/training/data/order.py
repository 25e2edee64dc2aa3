"""Who sees which sample, and when: one order for the whole epoch, the same on every rank, and a share for each."""

from __future__ import annotations

import math

import torch


def epoch_share(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    """Numbers of the samples that rank `rank` of n sees in an epoch, in order.

    samples: how many there are, 0 to samples - 1. The epoch's order is `torch.randperm(samples, generator=...)`, from
    a generator with the seed `seed + epoch`; the ranks take from it in turn, as cards are dealt. All must get the same
    number of samples: where n does not divide, the order goes on from its beginning until it does.
    Equal to `torch.utils.data.DistributedSampler`.
    """
    # BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(samples, generator=generator).tolist()
    rounds = math.ceil(samples / n)
    order = (order * n)[: rounds * n]
    mine = order[rank::n]
    # END SOLUTION
    return mine
