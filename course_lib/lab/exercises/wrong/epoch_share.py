"""Wrong answers to `epoch_share`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import math
import random

import torch


def shuffled(samples: int, seed: int) -> list[int]:
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).tolist()


def dealt(order: list[int], rank: int, n: int) -> list[int]:
    """As it should be: in turn, the order going on from its beginning."""
    return (order * n)[: math.ceil(len(order) / n) * n][rank::n]


def same_on_all(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(shuffled(samples, seed + epoch), 0, n)


def everything(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return shuffled(samples, seed + epoch)


def same_in_each_epoch(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(shuffled(samples, seed), rank, n)


def without_seed(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(shuffled(samples, epoch), rank, n)


def seed_by_rank(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(shuffled(samples, seed + epoch + rank), rank, n)


def unseeded(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(torch.randperm(samples).tolist(), rank, n)


def contiguous(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = shuffled(samples, seed + epoch)
    each = math.ceil(samples / n)
    return (order * n)[: each * n][rank * each : (rank + 1) * each]


def without_padding(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return shuffled(samples, seed + epoch)[rank::n]


def tail_dropped(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = shuffled(samples, seed + epoch)
    return order[: samples // n * n][rank::n]


def padded_once(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = shuffled(samples, seed + epoch)
    order += order[: -samples % n]
    return order[rank::n]


def padded_with_the_last(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = shuffled(samples, seed + epoch)
    order += order[-1:] * (-samples % n)
    return order[rank::n]


def one_round_too_many(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = shuffled(samples, seed + epoch)
    rounds = samples // n + 1
    return (order * (n + 1))[: rounds * n][rank::n]


def unshuffled(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(list(range(samples)), rank, n)


def share_shuffled(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    mine = dealt(list(range(samples)), rank, n)
    return [mine[i] for i in shuffled(len(mine), seed + epoch)]


def by_pythons_random(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    order = list(range(samples))
    random.Random(seed + epoch).shuffle(order)
    return dealt(order, rank, n)


def seed_times_epoch(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    return dealt(shuffled(samples, seed * epoch), rank, n)


def padded_before_the_shuffle(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    rounds = math.ceil(samples / n)
    return [i % samples for i in shuffled(rounds * n, seed + epoch)][rank::n]


def from_torchs_own_generator(samples: int, epoch: int, seed: int, rank: int, n: int) -> list[int]:
    torch.manual_seed(seed + epoch)
    return dealt(torch.randperm(samples).tolist(), rank, n)
