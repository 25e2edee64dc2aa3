"""Gradient accumulation: several micro-batches for one optimizer step, and one exchange of gradients.

`train_in_windows` is the obvious version, for micro-batches of one size. `backward_window` is what the trainer runs:
its micro-batches may hold different numbers of valid tokens, and each token counts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.training.loss import share_of_total

T = TypeVar("T")


def train_in_windows(
    model: Any,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Any],
    window: int,
    loss_of: Callable[[Any, Any], Tensor],
) -> None:
    """One pass over `micro_batches`: an optimizer step after every `window` of them; the last window may be shorter.

    model: a DistributedDataParallel, of which `model.no_sync()` is a context: what runs forward and backward inside
    adds to this rank's gradients and sends nothing. loss_of(model, micro_batch): the mean loss of a micro-batch, a
    scalar; all micro-batches are of one size. Each step takes the gradient of the mean over its whole window, which is
    exchanged once. No more is held in memory than the activations of one micro-batch.
    """
    # BEGIN SOLUTION
    for start in range(0, len(micro_batches), window):
        taken = micro_batches[start : start + window]
        for i, micro_batch in enumerate(taken):
            last = i == len(taken) - 1
            with nullcontext() if last else model.no_sync():
                loss = loss_of(model, micro_batch) / len(taken)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # END SOLUTION


def backward_window(
    model: Any,
    window: Sequence[T],
    losses_of: Callable[[Any, T], tuple[Tensor, Tensor]],
    total: Tensor | int,
    group: dist.ProcessGroup | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Backward through all micro-batches of one step. Gradients are then those of the mean over `total` tokens.

    model: a DistributedDataParallel, ours or torch's: gradients are averaged over the group in the last backward.
    window: this rank's micro-batches, at least one, the same number on all ranks. losses_of(model, micro_batch) runs
    the model and returns (losses, valid), as `token_losses` does. total: the valid tokens of the whole step on all
    ranks: a rank that holds none of them still takes part. scale: fp16's loss scale.

    Returns a scalar without gradient, this rank's share: its mean over the ranks is the mean loss of the step (not
    scaled). Raises ValueError for an empty window, in which no exchange would take place while others wait for it.
    """
    if not window:
        raise ValueError("this step has no micro-batch on this rank; it needs at least one, of padding if need be")
    shares = []
    for i, micro_batch in enumerate(window):
        last = i == len(window) - 1
        # Forward runs inside too: the model decides there whether the backward to come will exchange gradients.
        with nullcontext() if last else model.no_sync():
            losses, valid = losses_of(model, micro_batch)
            share = share_of_total(losses, valid, total, group)
            (share * scale).backward()
        shares.append(share.detach())
    return torch.stack(shares).sum()
