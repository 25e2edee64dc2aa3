"""Wrong answers to `share_of_mean`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def counted(count: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    dist.all_reduce(count, group=group)
    return count


def mean_of_means(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].mean()


def own_count(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return dist.get_world_size(group) * losses[valid].sum() / valid.sum()


def without_n(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].sum() / counted(valid.sum(), group)


def without_mask(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return dist.get_world_size(group) * losses.sum() / counted(valid.sum(), group)


def counting_padding(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    total = counted(valid.new_tensor(len(losses), dtype=losses.dtype), group)
    return dist.get_world_size(group) * losses[valid].sum() / total


def as_a_number(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    total = losses[valid].sum().item()
    return dist.get_world_size(group) * total / counted(valid.sum(), group)


def leaving_early(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    if not valid.any():
        return 0 * losses.sum()
    return dist.get_world_size(group) * losses[valid].sum() / counted(valid.sum(), group)


def sum_over_n(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].sum() / dist.get_world_size(group)


def never_divided(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].sum()


def n_times_too_much(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    n = dist.get_world_size(group)
    return n * n * losses[valid].sum() / counted(valid.sum(), group)


def without_group(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return dist.get_world_size() * losses[valid].sum() / counted(valid.sum(), None).clamp(min=1)


def without_clamp(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return dist.get_world_size(group) * losses[valid].sum() / counted(valid.sum(), group)


def infinite_weights(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return (losses * valid).sum() * (dist.get_world_size(group) / counted(valid.sum(), group))


def divided_by_pythons_zero(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].sum() * (dist.get_world_size(group) / int(counted(valid.sum(), group)))


def clamped_before_the_exchange(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return dist.get_world_size(group) * losses[valid].sum() / counted(valid.sum().clamp(min=1), group)


def mean_number_clamped(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return losses[valid].sum() / (counted(valid.sum(), group) / dist.get_world_size(group)).clamp(min=1)


def losses_reduced(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    total = losses[valid].sum()
    dist.all_reduce(total, group=group)
    return dist.get_world_size(group) * total / counted(valid.sum(), group).clamp(min=1)


def losses_reduced_with_gradient(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    from torch.distributed.nn.functional import all_reduce

    total = all_reduce(losses[valid].sum(), group=group or dist.group.WORLD)
    return total / counted(valid.sum(), group).clamp(min=1)


def constant_added(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    share = dist.get_world_size(group) * losses[valid].sum() / counted(valid.sum(), group).clamp(min=1)
    return share + losses.detach().mean()


def keeps_what_is_returned(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    count = dist.all_reduce(valid.sum(), group=group)
    return dist.get_world_size(group) * losses[valid].sum() / count
