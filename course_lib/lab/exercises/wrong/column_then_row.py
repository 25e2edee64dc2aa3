"""Wrong answers to `column_then_row`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import copy_to, gather, reduce_from

Group = dist.ProcessGroup | None


def part(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, group: Group = None) -> Tensor:
    """What this rank's columns give; right."""
    return F.linear(F.gelu(F.linear(copy_to(x, group), up, up_bias)), down)


def bias_on_every_rank(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(x, up, up_bias, down, group) + down_bias, group)


def without_bias(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(x, up, up_bias, down, group), group)


def never_reduced(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return part(x, up, up_bias, down, group) + down_bias


def never_reduced_nor_biased(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return part(x, up, up_bias, down, group)


def row_then_column(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    hidden = reduce_from(F.linear(copy_to(x, group), up, up_bias), group)
    return F.linear(F.gelu(hidden), down, down_bias)


def reduced_between(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    hidden = F.gelu(reduce_from(F.linear(copy_to(x, group), up, up_bias), group))
    return reduce_from(F.linear(hidden, down), group) + down_bias


def hidden_gathered(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    hidden = gather(F.linear(copy_to(x, group), up, up_bias), -1, group)
    mine = F.gelu(hidden).chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
    return reduce_from(F.linear(mine, down), group) + down_bias


def without_gelu(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(F.linear(F.linear(copy_to(x, group), up, up_bias), down), group) + down_bias


def gelu_last(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None) -> Tensor:
    return F.gelu(reduce_from(F.linear(F.linear(copy_to(x, group), up, up_bias), down), group)) + down_bias


def input_not_copied(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(F.linear(F.gelu(F.linear(x, up, up_bias)), down), group) + down_bias


def reduced_in_backward_too(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return copy_to(reduce_from(part(x, up, up_bias, down, group), group), group) + down_bias


def copied_twice(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(copy_to(x, group), up, up_bias, down, group), group) + down_bias


def bias_on_rank_0(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    y = part(x, up, up_bias, down, group)
    return reduce_from(y + down_bias if dist.get_rank(group) == 0 else y, group)


def bias_divided(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(x, up, up_bias, down, group) + down_bias / dist.get_world_size(group), group)


def bias_copied(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None) -> Tensor:
    return reduce_from(part(x, up, up_bias, down, group), group) + copy_to(down_bias, group)


def weights_copied(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(x, copy_to(up, group), up_bias, down, group), group) + down_bias


def detached(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None) -> Tensor:
    y = part(x, up, up_bias, down, group).detach()
    dist.all_reduce(y, group=group)
    return y + down_bias


def without_group(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, group: Group = None
) -> Tensor:
    return reduce_from(part(x, up, up_bias, down)) + down_bias
