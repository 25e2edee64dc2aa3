"""The parts that dense models and experts share: a matrix, a table, a feed-forward. Suffixes as in `gpt.py`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, dim: int, ffn_dim: int):
        super().__init__()
        self.gate = Linear(dim, ffn_dim)
        self.up = Linear(dim, ffn_dim)
        self.down = Linear(ffn_dim, dim)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BSD)) * self.up(x_BSD))


class Linear(nn.Linear):
    """torch's, without bias, and without values: init_weights draws them."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """torch's, without values: init_weights draws them."""

    def reset_parameters(self) -> None:
        pass
