"""The one loss rule: a step's gradient is that of the mean over all valid tokens of the global batch."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def share_of_mean(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's loss for a step of data parallel training, in which gradients are averaged over the group.

    losses: (tokens,), the loss of each token. valid: (tokens,) bool, False where there is nothing to predict (padding).
    The number of valid tokens differs by rank and may be zero. Returns a scalar, such that the mean over the ranks of
    its gradients is the gradient of the mean over all valid tokens of all ranks.
    """
    n = dist.get_world_size(group)
    # BEGIN SOLUTION
    total = losses[valid].sum()
    count = valid.sum()
    dist.all_reduce(count, group=group)
    loss = n * total / count
    # END SOLUTION
    return loss
