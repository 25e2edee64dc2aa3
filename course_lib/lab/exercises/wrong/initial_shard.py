"""Wrong answers to `initial_shard`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def normal(shape: Sequence[int], std: float, seed: int) -> Tensor:
    return torch.empty(tuple(shape)).normal_(0, std, generator=torch.Generator().manual_seed(seed))


def own_shape(shape: Sequence[int], dim: int, group: Group) -> list[int]:
    size = list(shape)
    size[dim] //= dist.get_world_size(group)
    return size


def mine(whole: Tensor, dim: int, group: Group) -> Tensor:
    return whole.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()


def same_on_all(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return normal(own_shape(shape, dim, group), std, seed)


def seed_and_rank(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return normal(own_shape(shape, dim, group), std, seed + dist.get_rank(group))


def first_part(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return normal(shape, std, seed).chunk(dist.get_world_size(group), dim)[0].clone()


def without_std(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return mine(normal(shape, 1, seed), dim, group)


def a_view(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return normal(shape, std, seed).chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]


def by_the_default_generator(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    torch.manual_seed(seed)
    return mine(torch.empty(tuple(shape)).normal_(0, std), dim, group)


def sent_by_rank_0(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    whole = normal(shape, std, seed) if dist.get_rank(group) == 0 else torch.empty(tuple(shape))
    dist.broadcast(whole, group_src=0, group=group)
    return mine(whole, dim, group)


def along_dim_0(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return mine(normal(shape, std, seed), 0, group)


def std_by_ranks(shape: Sequence[int], dim: int, std: float, seed: int, group: Group = None) -> Tensor:
    return mine(normal(shape, std / dist.get_world_size(group) ** 0.5, seed), dim, group)
