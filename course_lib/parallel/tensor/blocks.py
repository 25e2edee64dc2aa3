"""Attention and feed-forward of which each rank has some heads, or some columns. Forward is the plain GPT's otherwise.

Matrices that read the same input are one call of `columns`: the input travels once for all of them, and so does its
gradient. silu, rotations and the attention core need nothing from other ranks.
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.gpt import Attention, Turns, rotate
from course_lib.models.layers import FeedForward
from course_lib.parallel.tensor.linear import RowLinear, columns

Group = dist.ProcessGroup | None


class ParallelAttention(nn.Module):
    """Self-attention over this rank's query heads, with the key and value heads that serve them.

    attention: a plain one whose weights are this rank's parts already. Its modules are taken over, names and all.
    """

    def __init__(self, attention: Attention, group: Group = None, sequence_parallel: bool = False):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.head_dim = attention.head_dim
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.core = attention.core
        self.out = RowLinear(attention.out.weight, None, group, sequence_parallel)

    def forward(self, x_BSD: Tensor, turns: Turns, mask: Tensor | None) -> Tensor:
        """x_BSD and the result: alike, or with sequence_parallel this rank's tokens, (B, S/n, D)."""
        weights = (self.query.weight, self.key.weight, self.value.weight)
        q, k, v = columns(x_BSD, weights, self.group, self.sequence_parallel)
        q_BSHE = rotate(q.unflatten(-1, (-1, self.head_dim)), turns)
        k_BSGE = rotate(k.unflatten(-1, (-1, self.head_dim)), turns)
        v_BSGE = v.unflatten(-1, (-1, self.head_dim))
        mixed_BHSE = self.core(q_BSHE.transpose(1, 2), k_BSGE.transpose(1, 2), v_BSGE.transpose(1, 2), mask)
        return self.out(mixed_BHSE.transpose(1, 2).flatten(2))


class ParallelFeedForward(nn.Module):
    """SwiGLU over this rank's columns. ffn: a plain one whose weights are this rank's parts already."""

    def __init__(self, ffn: FeedForward, group: Group = None, sequence_parallel: bool = False):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.gate, self.up = ffn.gate, ffn.up
        self.down = RowLinear(ffn.down.weight, None, group, sequence_parallel)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """x_BSD and the result: alike, or with sequence_parallel this rank's tokens, (B, S/n, D)."""
        gate, up = columns(x_BSD, (self.gate.weight, self.up.weight), self.group, self.sequence_parallel)
        return self.down(F.silu(gate) * up)
