"""Wrong answers to `power_sgd_round`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
Round = tuple[Tensor, Tensor, Tensor]


def total(x: Tensor, group: Group) -> Tensor:
    dist.all_reduce(x, group=group)
    return x


def factors(wanted: Tensor, q: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """As they should be: p with orthonormal columns, and the mean q."""
    p = torch.linalg.qr(total(wanted @ q, group))[0]
    return p, total(wanted.T @ p, group) / dist.get_world_size(group)


def without_feedback(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p, q = factors(gradient, q, group)
    return p @ q.T, gradient - p @ q.T, q


def error_dropped(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p, q = factors(gradient + error, q, group)
    return p @ q.T, torch.zeros_like(error), q


def old_error(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p, q = factors(gradient + error, q, group)
    return p @ q.T, error, q


def error_of_the_gradient(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p, q = factors(gradient + error, q, group)
    return p @ q.T, gradient - p @ q.T, q


def error_turned_round(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, q = factors(wanted, q, group)
    return p @ q.T, p @ q.T - wanted, q


def error_of_its_own_approximation(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, q = factors(wanted, q, group)
    return p @ q.T, wanted - p @ (wanted.T @ p).T, q


def error_counted_twice(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, q = factors(wanted, q, group)
    return p @ q.T, error + wanted - p @ q.T, q


def not_orthonormal(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = total(wanted @ q, group) / dist.get_world_size(group)
    q = total(wanted.T @ p, group) / dist.get_world_size(group)
    return p @ q.T, wanted - p @ q.T, q


def orthonormal_too_soon(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = total(torch.linalg.qr(wanted @ q)[0], group) / dist.get_world_size(group)
    q = total(wanted.T @ p, group) / dist.get_world_size(group)
    return p @ q.T, wanted - p @ q.T, q


def q_not_averaged(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = torch.linalg.qr(total(wanted @ q, group))[0]
    q = total(wanted.T @ p, group)
    return p @ q.T, wanted - p @ q.T, q


def p_of_its_own(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = torch.linalg.qr(wanted @ q)[0]
    q = total(wanted.T @ p, group) / dist.get_world_size(group)
    return p @ q.T, wanted - p @ q.T, q


def q_of_its_own(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = torch.linalg.qr(total(wanted @ q, group))[0]
    q = wanted.T @ p
    return p @ q.T, wanted - p @ q.T, q


def returning_the_old_q(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, new = factors(wanted, q, group)
    return p @ new.T, wanted - p @ new.T, q


def everything_reduced(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    mean = total(wanted.clone(), group) / dist.get_world_size(group)
    p = torch.linalg.qr(mean @ q)[0]
    q = mean.T @ p
    return p @ q.T, wanted - p @ q.T, q


def order_of_results(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, q = factors(wanted, q, group)
    return p @ q.T, q, wanted - p @ q.T


def old_q_in_the_product(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = torch.linalg.qr(total(wanted @ q, group))[0]
    return p @ q.T, wanted - p @ q.T, q


def without_group(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p, q = factors(wanted, q, None)
    return p @ q.T, wanted - p @ q.T, q


def sum_not_orthonormal(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = total(wanted @ q, group)
    q = total(wanted.T @ p, group) / dist.get_world_size(group)
    return p @ q.T, wanted - p @ q.T, q


def neither_feedback_nor_orthonormal(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p = total(gradient @ q, group)
    q = total(gradient.T @ p, group) / dist.get_world_size(group)
    return p @ q.T, gradient - p @ q.T, q


def neither_feedback_nor_mean(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    p = torch.linalg.qr(total(gradient @ q, group))[0]
    q = total(gradient.T @ p, group)
    return p @ q.T, gradient - p @ q.T, q


def orthonormal_too_soon_and_sums(gradient: Tensor, error: Tensor, q: Tensor, group: Group = None) -> Round:
    wanted = gradient + error
    p = total(torch.linalg.qr(wanted @ q)[0], group) / dist.get_world_size(group)
    q = total(wanted.T @ p, group)
    return p @ q.T, wanted - p @ q.T, q
