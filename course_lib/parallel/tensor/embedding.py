"""The embedding table, cut by tokens of the vocabulary: each rank looks up what it has, and the rest adds zeros.

Rank r has rows r k .. (r + 1) k - 1, where k = ceil(V / n). Where n does not divide V, the last rows of the last ranks
belong to no token: padding, so that all ranks have tables of one shape. It stays zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from course_lib.parallel.tensor.tokens import start_gather, start_sum

Group = dist.ProcessGroup | None


class VocabParallelEmbedding(nn.Module):
    """This rank's rows of an embedding table: weight (ceil(V/n), D).

    forward: tokens (..., S) int64, alike -> (..., S, D), alike; with sequence_parallel (..., S/n, D). RuntimeError for
    a token outside the vocabulary, on a GPU at its next synchronisation; ValueError if n does not divide S with
    sequence_parallel.
    """

    def __init__(self, weight: Parameter, vocab_size: int, group: Group = None, sequence_parallel: bool = False):
        super().__init__()
        self.weight, self.vocab_size = weight, vocab_size
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, tokens: Tensor) -> Tensor:
        require_known((tokens >= 0) & (tokens < self.vocab_size), "a token", self.vocab_size)
        row, here = place(tokens, self.weight.shape[0], self.group)
        return _LookUp.apply(self.weight, row, here, self.group, self.sequence_parallel)

    def extra_repr(self) -> str:
        return f"weight {tuple(self.weight.shape)} of {self.vocab_size} rows"


def place(ids: Tensor, rows: int, group: Group) -> tuple[Tensor, Tensor]:
    """Where the ids are in this rank's part of the vocabulary, and whether they are in it. Elsewhere the place is 0."""
    local = ids - dist.get_rank(group) * rows
    here = (local >= 0) & (local < rows)
    return local.where(here, 0), here


def require_known(known: Tensor, what: str, vocab_size: int) -> None:
    """RuntimeError unless all are True. A rank that does not have the token would take it for another rank's."""
    # On a GPU the host does not wait for the answer, which would stop it at every forward.
    torch._assert_async(known.all(), f"{what} is outside the vocabulary of {vocab_size}: 0 to {vocab_size - 1} exist")


class _LookUp(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: Tensor, here: Tensor, group: Group, sequence_parallel: bool) -> Tensor:
        ctx.save_for_backward(row, here)
        ctx.rows, ctx.group, ctx.sequence_parallel = weight.shape[0], group, sequence_parallel
        x = F.embedding(row, weight).masked_fill_(~here.unsqueeze(-1), 0)
        return start_sum(x, group, keep_part=sequence_parallel)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        row, here = ctx.saved_tensors
        if ctx.sequence_parallel:
            grad = start_gather(grad, ctx.group)()
        grad = grad.masked_fill(~here.unsqueeze(-1), 0)
        return torch.ops.aten.embedding_dense_backward(grad, row, ctx.rows, -1, False), None, None, None, None
