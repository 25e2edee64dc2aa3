"""Wrong answers to `vocab_parallel_embedding`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import copy_to, gather, reduce_from

Group = dist.ProcessGroup | None


def mine(tokens: Tensor, weight: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """(row of this rank, 0 for others' tokens; whether it is this rank's); right."""
    rows = weight.shape[0]
    local = tokens - dist.get_rank(group) * rows
    here = (local >= 0) & (local < rows)
    return local.where(here, 0), here


def part(tokens: Tensor, weight: Tensor, group: Group) -> Tensor:
    """This rank's rows, and zeros; right."""
    local, here = mine(tokens, weight, group)
    return F.embedding(local, weight).masked_fill(~here.unsqueeze(-1), 0)


def reading_row_0(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return reduce_from(F.embedding(mine(tokens, weight, group)[0], weight), group)


def clamped(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    local = tokens - dist.get_rank(group) * weight.shape[0]
    return reduce_from(F.embedding(local.clamp(0, weight.shape[0] - 1), weight), group)


def wrapped_around(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return reduce_from(F.embedding(tokens % weight.shape[0], weight), group)


def masked_after_the_sum(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    local, here = mine(tokens, weight, group)
    return reduce_from(F.embedding(local, weight), group).masked_fill(~here.unsqueeze(-1), 0)


def never_added(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return part(tokens, weight, group)


def first_one_left_out(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    local = tokens - dist.get_rank(group) * weight.shape[0]
    here = (local > 0) & (local < weight.shape[0]) | (tokens == 0) & (local == 0)
    x = F.embedding(local.where(here, 0), weight).masked_fill(~here.unsqueeze(-1), 0)
    return reduce_from(x, group)


def reduced_in_backward_too(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return copy_to(reduce_from(part(tokens, weight, group), group), group)


def mask_outside_of_the_graph(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    local, here = mine(tokens, weight, group)
    x = F.embedding(local, weight)
    x.data[~here] = 0
    return reduce_from(x, group)


def table_gathered(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return F.embedding(tokens, gather(weight, 0, group))


def detached(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    x = part(tokens, weight, group).detach()
    dist.all_reduce(x, group=group)
    return x


def without_offset(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    return reduce_from(F.embedding(tokens, weight), group)


def rank_of_the_world(tokens: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    local = tokens - dist.get_rank() * weight.shape[0]
    here = (local >= 0) & (local < weight.shape[0])
    rows = F.embedding(torch.where(here, local, 0), weight)
    return reduce_from(rows * here.unsqueeze(-1), group)
