"""Who sees which sample, and when: one order for the whole epoch, the same on every rank, and a share for each."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def epoch_share(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    """Numbers of the samples that rank `rank` of n sees in an epoch, in order.

    samples: how many there are, 0 to samples - 1. The epoch's order is `torch.randperm(samples, generator=...)`, from
    a generator with the seed `seed + epoch`; the ranks take from it in turn, as cards are dealt. All must get the same
    number of samples: where n does not divide, the order goes on from its beginning until it does. torch's own
    generator stays as it is. Equal to `torch.utils.data.DistributedSampler`.
    """
    # BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(samples, generator=generator).tolist()
    rounds = math.ceil(samples / n)
    order = (order * n)[: rounds * n]
    mine = order[rank::n]
    # END SOLUTION
    return mine


class Order:
    """The endless order of samples that the whole job goes through: epoch after epoch, each shuffled anew.

    Sample number i of the job is the same whatever the batch and the number of ranks. An epoch's order is that of
    `epoch_share`; a `seed` of None leaves every epoch in the order of the data. One epoch's order is held at a time, 8
    bytes a sample: a sample of 256 tokens takes 512 bytes itself.

    As with `DistributedSampler`, epoch 1 of seed 0 is epoch 0 of seed 1: to repeat a run, take seeds far apart.
    """

    def __init__(self, samples: int, seed: int | None) -> None:
        self.samples = samples
        self.seed = seed
        self.held: tuple[int, Tensor] = (-1, torch.empty(0))  # an epoch's number and its order

    def take(self, start: int, count: int) -> Tensor:
        """(count,) int64: the samples at the places start, ..., start + count - 1, counted from the job's beginning."""
        parts = []
        while count > 0:
            epoch, at = divmod(start, self.samples)
            part = self.epoch(epoch)[at : at + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def epoch(self, number: int) -> Tensor:
        """(samples,) int64: the order of one epoch."""
        if self.seed is None:
            return torch.arange(self.samples)
        if self.held[0] != number:
            generator = torch.Generator().manual_seed(self.seed + number)
            self.held = number, torch.randperm(self.samples, generator=generator)
        return self.held[1]
