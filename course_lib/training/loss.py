"""The one loss rule: a step's gradient is that of the mean over all valid tokens of the global batch.

Whatever the layout: micro-batches, ranks, padding. The mean of means is something else as soon as two of them hold
different numbers of valid tokens. So a loss is never divided by a count of its own, but by that of the whole step,
which all ranks agree on before the first backward:

    total = valid_tokens(micro_batch.labels for micro_batch in window)
    dist.all_reduce(total, group=group)
    for micro_batch in window:
        losses, valid = token_losses(model(micro_batch.tokens), micro_batch.labels)
        share_of_total(losses, valid, total, group).backward()

A step without any valid token, on any rank, has the loss 0 and gradients of zeros. It is never NaN.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100  # the label of a token that has nothing to predict, as torch's cross_entropy has it


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token, in nats, and which of them count.

    logits: (..., V), of any float dtype; 16-bit ones are taken to float32 first, since exp and sum need the digits.
    labels: (...) int64, IGNORE where there is nothing to predict. Returns losses (T,), 0 where the label is IGNORE, and
    valid (T,) bool; T is the number of labels. Raises ValueError if the shapes do not belong together.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} need logits of shape {(*labels.shape, 'V')}, "
            f"not {tuple(logits.shape)}"
        )
    flat, targets = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    return F.cross_entropy(flat, targets, ignore_index=IGNORE, reduction="none"), targets != IGNORE


def share_of_mean(losses: Tensor, valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's loss for a step of data parallel training, in which gradients are averaged over the group.

    losses: (tokens,), the loss of each token. valid: (tokens,) bool, False where there is nothing to predict (padding).
    The number of valid tokens differs by rank and may be zero, on all ranks too: then the loss is 0. Returns a scalar,
    this rank's share: the mean of the shares over the ranks is the mean loss of all valid tokens of all ranks, and so
    it is with their gradients. Only numbers of tokens need to travel, no losses.
    """
    n = dist.get_world_size(group)
    # BEGIN SOLUTION
    total = losses[valid].sum()
    count = valid.sum()
    dist.all_reduce(count, group=group)
    loss = n * total / count.clamp(min=1)
    # END SOLUTION
    return loss


def valid_tokens(labels: Iterable[Tensor]) -> Tensor:
    """How many tokens of this rank's part of a step count: a scalar, int64, on the labels' device.

    labels: one tensor for each micro-batch, at least one, of any shapes. Add the ranks' counts up (`dist.all_reduce`)
    before the first backward: a few bytes, in which other small news may travel too.
    """
    return torch.stack([(part != IGNORE).sum() for part in labels]).sum()


def share_of_total(
    losses: Tensor, valid: Tensor, total: Tensor | int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """One micro-batch's loss for a step in which gradients are added over micro-batches and averaged over the group.

    losses, valid: (tokens,), as `token_losses` returns them. total: the valid tokens of the whole step, of all its
    micro-batches on all ranks (`valid_tokens`, added up). Returns the scalar n * sum / total: what a rank's shares add
    up to is, in the mean over the ranks, the step's loss. `share_of_mean` is the case of one micro-batch.
    """
    n = dist.get_world_size(group)
    # masked_fill and not losses[valid]: the size of that is only known on the device, and asking stops the host.
    mine = losses.masked_fill(~valid, 0).sum()
    return mine * n / (total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1))
