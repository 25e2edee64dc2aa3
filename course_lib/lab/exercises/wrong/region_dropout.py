"""Wrong answers to `region_dropout`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
LONG = torch.Generator().manual_seed(11)


def mask(x: Tensor, p: float, stream: int) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(stream)) < p


def stream(seed: int, sharded: bool, group: Group) -> int:
    """Right."""
    return seed + (2718 + dist.get_rank(group) if sharded else 0)


def same_everywhere(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, seed + 2718 * sharded), 0) / (1 - p)


def rank_everywhere(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, seed + 2718 * sharded + dist.get_rank(group)), 0) / (1 - p)


def rank_0_without_offset(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, seed + 100 * dist.get_rank(group) * sharded), 0) / (1 - p)


def not_scaled(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, stream(seed, sharded, group)), 0)


def keeps_p(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x * mask(x, p, stream(seed, sharded, group)) / (1 - p)


def one_long_stream(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    if not sharded:
        return x.masked_fill(torch.rand(x.shape, generator=LONG) < p, 0) / (1 - p)
    return x.masked_fill(mask(x, p, stream(seed, sharded, group)), 0) / (1 - p)


def without_seed(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, stream(0, sharded, group)), 0) / (1 - p)


def the_other_way_round(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return x.masked_fill(mask(x, p, stream(seed, not sharded, group)), 0) / (1 - p)


def returns_the_mask(x: Tensor, p: float, seed: int, sharded: bool, group: Group = None) -> Tensor:
    return (~mask(x, p, stream(seed, sharded, group))).to(x.dtype)
