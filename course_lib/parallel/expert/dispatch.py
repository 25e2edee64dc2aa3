"""Tokens to their experts and back: counts first, then rows, then the results the same way in reverse."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def exchange_counts(send: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Tell all ranks how many rows will come. send (n, ...) int64: row r is for rank r. Returns (n, ...), by sender."""
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send.contiguous(), group=group)
    return receive
