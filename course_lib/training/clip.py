"""The one norm rule: gradients are clipped by the norm of the whole, unsharded gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter


def clip_grad_norm(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
    """Scale the gradients in place so that their norm together is at most `max_norm`. Returns the norm before."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)
