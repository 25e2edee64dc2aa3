"""Wrong answers to `vocab_parallel_losses`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import copy_to, gather, reduce_from
from course_lib.training.loss import IGNORE

Group = dist.ProcessGroup | None


def mine(logits: Tensor, labels: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """(column of the label, 0 if it is another rank's; whether it is this rank's); right."""
    local = labels - dist.get_rank(group) * logits.shape[-1]
    here = (local >= 0) & (local < logits.shape[-1])
    return local.where(here, 0).unsqueeze(-1), here


def shifted(logits: Tensor, group: Group, op: dist.ReduceOp = dist.ReduceOp.MAX) -> Tensor:
    """Less the largest of all shards; right."""
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, op, group=group)
    return logits - largest.unsqueeze(-1)


def target_of(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """The label's logit if it is here, else 0; right."""
    column, here = mine(logits, labels, group)
    return logits.gather(-1, column).squeeze(-1).masked_fill(~here, 0)


def done(total: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    return (total.log() - target).masked_fill(labels == IGNORE, 0)


def whole(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """Right from here on, whatever was subtracted."""
    total = reduce_from(logits.exp().sum(-1), group)
    return done(total, reduce_from(target_of(logits, labels, group), group), labels)


def without_max(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return whole(logits, labels, group)


def max_of_its_own_shard(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return whole(logits - logits.detach().amax(-1, keepdim=True), labels, group)


def max_of_its_own_shard_in_the_sum(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    total = reduce_from((logits - logits.detach().amax(-1, keepdim=True)).exp().sum(-1), group)
    return done(total, reduce_from(target_of(shifted(logits, group), labels, group), group), labels)


def max_added_up(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return whole(shifted(logits, group, dist.ReduceOp.SUM), labels, group)


def padding_not_masked(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    return reduce_from(logits.exp().sum(-1), group).log() - reduce_from(target_of(logits, labels, group), group)


def sum_not_reduced(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    return done(logits.exp().sum(-1), reduce_from(target_of(logits, labels, group), group), labels)


def target_not_reduced(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    return done(reduce_from(logits.exp().sum(-1), group), target_of(logits, labels, group), labels)


def each_its_own(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    return done(logits.exp().sum(-1), target_of(logits, labels, group), labels)


def target_of_every_rank(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    target = logits.gather(-1, mine(logits, labels, group)[0]).squeeze(-1)
    return done(reduce_from(logits.exp().sum(-1), group), reduce_from(target, group), labels)


def target_of_none(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    total = reduce_from(shifted(logits, group).exp().sum(-1), group)
    return done(total, torch.zeros_like(total), labels)


def target_not_shifted(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    total = reduce_from(shifted(logits, group).exp().sum(-1), group)
    return done(total, reduce_from(target_of(logits, labels, group), group), labels)


def reduced_in_backward_too(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return copy_to(whole(shifted(logits, group), labels, group), group)


def sum_detached(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    total = logits.exp().sum(-1).detach()
    dist.all_reduce(total, group=group)
    return done(total, reduce_from(target_of(logits, labels, group), group), labels)


def target_detached(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    logits = shifted(logits, group)
    target = target_of(logits, labels, group).detach()
    dist.all_reduce(target, group=group)
    return done(reduce_from(logits.exp().sum(-1), group), target, labels)


def max_with_gradient(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    largest = logits.amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return whole(logits - largest.unsqueeze(-1), labels, group)


def max_of_a_copy_with_gradient(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    largest = logits.amax(-1) + 0
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return whole(logits - largest.unsqueeze(-1), labels, group)


def gathering_logits(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return F.cross_entropy(gather(logits, -1, group), labels, ignore_index=IGNORE, reduction="none")


def mean_of_them(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    return whole(shifted(logits, group), labels, group).mean()


def without_group(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return whole(logits - largest.unsqueeze(-1), labels, group)
