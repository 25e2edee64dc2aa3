"""Gradient accumulation: several micro-batches for one optimizer step, and one exchange of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


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
    exchanged once.
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
