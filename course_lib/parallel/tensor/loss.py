"""Cross-entropy from logits that are cut by vocabulary. They are never gathered: a few numbers per token travel.

    largest = max over ranks         one all-reduce, MAX, of T numbers
    sums    = sum over ranks         one all-reduce, SUM, of 2 T numbers: sum of exp, and the label's logit
    loss    = log(sum of exp) - the label's logit, both less the largest

Backward sends nothing: each rank has all it needs for the gradient of its own columns. Megatron-LM sends the two sums
apart, in three all-reduces. Label smoothing is over the whole vocabulary, not this rank's part of it, and padding
(`embedding.py`) takes no part in anything.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.parallel.tensor.embedding import place, require_known
from course_lib.training.loss import IGNORE

Group = dist.ProcessGroup | None


def token_losses(
    logits: Tensor, labels: Tensor, vocab_size: int, group: Group = None, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token, in nats, and which of them count; alike on all ranks. As `training.loss`'s.

    logits (..., ceil(V/n)), of any float dtype: this rank's columns; 16-bit ones are taken to float32. labels (...)
    int64, alike, IGNORE where there is nothing to predict. Returns losses (T,), 0 where the label is IGNORE, and valid
    (T,) bool. label_smoothing: epsilon of torch's cross_entropy: the target is 1 - epsilon on the label, and epsilon
    spread evenly over all V.

    ValueError if shapes or sizes do not belong together; RuntimeError for a label outside the vocabulary, on a GPU at
    its next synchronisation. Backward overwrites what forward kept, to hold one array of the logits' size in place of
    two: a second backward through the same losses raises RuntimeError.
    """
    n = dist.get_world_size(group)
    if logits.shape[:-1] != labels.shape or logits.shape[-1] != -(-vocab_size // n):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and a vocabulary of {vocab_size} on {n} ranks need logits of shape "
            f"{(*labels.shape, -(-vocab_size // n))}, not {tuple(logits.shape)}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to 1")
    targets = labels.reshape(-1)
    valid = targets != IGNORE
    require_known(~valid | ((targets >= 0) & (targets < vocab_size)), "a label", vocab_size)
    return _Losses.apply(logits.reshape(-1, logits.shape[-1]), targets, vocab_size, group, label_smoothing), valid


class _Losses(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, group: Group, smoothing: float) -> Tensor:
        n, columns = dist.get_world_size(group), logits.shape[-1]
        real = min(max(vocab_size - dist.get_rank(group) * columns, 0), columns)  # the rest is padding
        column, here = place(targets, columns, group)
        wide = logits.float() if logits.itemsize == 2 else logits
        largest = wide[:, :real].amax(-1) if real else wide.new_full(targets.shape, -torch.inf)
        if n > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        exp = wide - largest.unsqueeze(-1)
        exp[:, real:] = -torch.inf
        sums = [exp.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill_(~here, 0)]
        if smoothing:
            sums.append(exp[:, :real].sum(-1))
        sums.append(exp.exp_().sum(-1))
        together = torch.stack(sums)
        if n > 1:
            dist.all_reduce(together, group=group)
        label, *all_logits, total = together
        losses = total.log() - label * (1 - smoothing)
        if smoothing:
            losses -= all_logits[0] * (smoothing / vocab_size)
        ctx.save_for_backward(exp, total, targets, column, here)
        ctx.real, ctx.vocab_size, ctx.smoothing, ctx.dtype = real, vocab_size, smoothing, logits.dtype
        ctx.used = False
        return losses.masked_fill_(targets == IGNORE, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        if ctx.used:
            raise RuntimeError("a second backward through the same losses: forward must be run again before it")
        ctx.used = True
        exp, total, targets, column, here = ctx.saved_tensors
        grad = grad.masked_fill(targets == IGNORE, 0)
        grad_logits = exp.mul_((grad / total).unsqueeze(-1))  # softmax, times the upstream gradient
        on_label = (grad * (ctx.smoothing - 1)).masked_fill_(~here, 0)
        grad_logits.scatter_add_(-1, column.unsqueeze(-1), on_label.unsqueeze(-1))
        if ctx.smoothing:
            grad_logits[:, : ctx.real] -= (grad * (ctx.smoothing / ctx.vocab_size)).unsqueeze(-1)
        return grad_logits.to(ctx.dtype), None, None, None, None
