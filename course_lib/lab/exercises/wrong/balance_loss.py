"""Wrong answers to `balance_loss`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def counted(p: Tensor, chosen: Tensor) -> Tensor:
    """This rank's choices, (E,)."""
    return torch.bincount(chosen.flatten(), minlength=p.shape[-1])


def of_all(x: Tensor, group: Group) -> Tensor:
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def parts(p: Tensor, chosen: Tensor, group: Group) -> tuple[int, Tensor, Tensor, Tensor]:
    """As it should be: n, f, this rank's share of P, and the tokens of all."""
    n, counts = dist.get_world_size(group), of_all(counted(p, chosen), group)
    choices = counts.sum().clamp(min=1)
    tokens = choices / chosen.shape[1]
    return n, counts / choices, n * p.sum(0) / tokens, tokens


def of_counts_alone(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, _, _ = parts(p, chosen, group)
    return p.shape[1] * (f * f).sum()


def detached(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * sum(a * b for a, b in zip(f.tolist(), P.tolist(), strict=True)) * torch.tensor(1.0)


def mean_of_products(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    return p.shape[1] * (counted(p, chosen) / max(chosen.numel(), 1) * p.sum(0) / max(len(p), 1)).sum()


def own_counts(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, _, P, _ = parts(p, chosen, group)
    return p.shape[1] * (counted(p, chosen) / max(chosen.numel(), 1) * P).sum()


def own_tokens(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, _, _ = parts(p, chosen, group)
    return p.shape[1] * (f * p.sum(0) / max(len(p), 1)).sum()


def without_n(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P / n).sum()


def n_twice(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P * n).sum()


def without_E(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, group)
    return (f * P).sum()


def k_times(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, _, P, tokens = parts(p, chosen, group)
    return p.shape[1] * (of_all(counted(p, chosen), group) / tokens * P).sum()


def kth_part(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P / chosen.shape[1]).sum()


def counts_not_divided(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, _, P, _ = parts(p, chosen, group)
    return p.shape[1] * (of_all(counted(p, chosen), group) * P).sum()


def P_not_divided(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, f, _, _ = parts(p, chosen, group)
    return p.shape[1] * (f * n * p.sum(0)).sum()


def of_chosen_alone(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, f, _, tokens = parts(p, chosen, group)
    return n * p.shape[1] * (f[chosen] * p.gather(1, chosen)).sum() / tokens


def soft_counts(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, _, P, tokens = parts(p, chosen, group)
    return p.shape[1] * (of_all(p.sum(0), group) / tokens * P).sum()


def leaving_without_tokens(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    if len(p) == 0:
        return p.sum()
    _, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P).sum()


def without_clamp(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    n, counts = dist.get_world_size(group), of_all(counted(p, chosen), group)
    choices = counts.sum()
    return n * p.shape[1] * (counts / choices * p.sum(0)).sum() / (choices / chosen.shape[1])


def whole_loss_n_times(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, group)
    dist.all_reduce(P.data, group=group)
    return p.shape[1] * (f * P).sum()


def less_one(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P).sum() - 1


def without_group(p: Tensor, chosen: Tensor, group: Group = None) -> Tensor:
    _, f, P, _ = parts(p, chosen, None)
    return p.shape[1] * (f * P).sum()


def as_a_number(p: Tensor, chosen: Tensor, group: Group = None) -> float:
    _, f, P, _ = parts(p, chosen, group)
    return p.shape[1] * (f * P).sum().item()
