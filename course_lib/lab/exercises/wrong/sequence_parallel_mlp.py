"""Wrong answers to `sequence_parallel_mlp`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import all_gather, copy_to, gather, reduce_from, reduce_scatter, scatter

Group = dist.ProcessGroup | None


def norm(x: Tensor, weight: Tensor, group: Group) -> Tensor:
    """Right."""
    return F.rms_norm(x, weight.shape, copy_to(weight, group))


def two_matrices(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """This rank's part of the sum; right."""
    return F.linear(F.gelu(F.linear(x, up)), down)


def norm_not_reduced(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(F.rms_norm(x, norm_weight.shape, norm_weight), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def norm_after_the_gather(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = F.rms_norm(all_gather(x, 0, group), norm_weight.shape, norm_weight)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def norm_averaged(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    share = norm_weight / dist.get_world_size(group)
    weight = copy_to(share + (norm_weight - share).detach(), group)
    x = all_gather(F.rms_norm(x, weight.shape, weight), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def norm_reduced_twice(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(norm(x, copy_to(norm_weight, group), group), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def all_reduced(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(norm(x, norm_weight, group), 0, group)
    return reduce_from(two_matrices(x, up, down), group)


def all_reduced_and_cut(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    y = all_reduced(x, norm_weight, up, down, group)
    return y.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def all_reduced_and_scattered(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    return scatter(all_reduced(x, norm_weight, up, down, group), 0, group)


def cut_without_a_sum(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(norm(x, norm_weight, group), 0, group)
    return scatter(two_matrices(x, up, down), 0, group)


def gathered_for_the_same_work(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = gather(norm(x, norm_weight, group), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def f_beside_the_gather(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = copy_to(all_gather(norm(x, norm_weight, group), 0, group), group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def never_gathered(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    return reduce_from(two_matrices(norm(x, norm_weight, group), up, down), group)


def without_norm(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    return reduce_scatter(two_matrices(all_gather(x, 0, group), up, down), 0, group)


def without_norm_weight(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(F.rms_norm(x, norm_weight.shape), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)


def gathered_by_torch(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    mine = norm(x, norm_weight, group)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine.detach(), group=group)
    return reduce_scatter(two_matrices(torch.cat(parts), up, down), 0, group)


def without_group(x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: Group = None) -> Tensor:
    x = all_gather(norm(x, norm_weight, None), 0, group)
    return reduce_scatter(two_matrices(x, up, down), 0, group)
