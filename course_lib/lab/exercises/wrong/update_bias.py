"""Wrong answers to `update_bias`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def loaded(counts: Tensor, group: Group) -> Tensor:
    """The load of all ranks, as it should be."""
    total = counts.clone()
    dist.all_reduce(total, group=group)
    return total.float()


def step(load: Tensor) -> Tensor:
    return torch.sign(load.mean() - load)


def returned(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> Tensor:
    return bias + rate * step(loaded(counts, group))


def another_tensor(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias = bias + rate * step(loaded(counts, group))


def wrong_way(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias -= rate * step(loaded(counts, group))


def own_counts(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += rate * step(counts.float())


def own_counts_the_wrong_way(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias -= rate * step(counts.float())


def own_mean(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += rate * torch.sign(counts.float().mean() - loaded(counts, group))


def signs_added(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += rate * loaded(step(counts.float()), group)


def signs_averaged(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += rate * loaded(step(counts.float()), group) / dist.get_world_size(group)


def by_the_amount(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += rate * (load.mean() - load)


def by_the_relative_amount(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += rate * (1 - load / load.mean())


def by_the_share(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += rate * (1 / len(load) - load / load.sum())


def mean_goes_down(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += torch.where(load < load.mean(), rate, -rate)


def mean_goes_up(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += torch.where(load > load.mean(), -rate, rate)


def whole_mean(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group).long()
    bias += rate * torch.sign(load.sum() // len(load) - load)


def by_median(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias += rate * torch.sign(load.median() - load)


def without_rate(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += step(loaded(counts, group))


def down_alone(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias[load > load.mean()] -= rate


def up_alone(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    load = loaded(counts, group)
    bias[load < load.mean()] += rate


def counts_reduced(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    dist.all_reduce(counts, group=group)
    bias += rate * step(counts.float())


def leaving_without_tokens(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    if counts.any():
        bias += rate * step(loaded(counts, group))


def without_group(bias: Tensor, counts: Tensor, rate: float, group: Group = None) -> None:
    bias += rate * step(loaded(counts, None))
