"""The obvious versions: tensor parallelism in a few lines each. Lab 2a has you write them; `gpt.py` does it in earnest.

Shapes: T tokens (a batch of sequences is one long row of them), S positions, D dim of the residual stream, F width
inside the feed-forward, H query heads, G key and value heads, E head dim, V vocabulary, n ranks of the group. "Alike"
is what all ranks of the group hold the same; a "shard" is one rank's part of a tensor.

All that is alike has, after backward, the gradient of the whole on every rank, and each shard has its part of it.

Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3; sequence parallelism: Korthikanti et al. 2022
(arXiv 2205.05198), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from course_lib.collectives.autograd import all_gather, copy_to, reduce_from, reduce_scatter
from course_lib.training.loss import IGNORE


class CopyTo(Function):
    """f in the paper: into work that differs by rank. CopyTo.apply(x, group) -> x, which is alike, of any shape.

    Each rank computes another part of the layer from x, and so finds another part of x's gradient. Write `forward` and
    `backward`. forward returns x (a view of it: `x.view_as(x)`) and keeps in `ctx` what backward needs. backward gets
    the gradient of the output, in its shape, and must leave it as it is; it returns a gradient for each argument of
    forward, None for the group.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        # BEGIN SOLUTION
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
        # END SOLUTION


class ReduceFrom(Function):
    """g in the paper: out of it again. ReduceFrom.apply(x, group) -> the sum of x over the ranks, of any shape.

    What follows is done alike by all ranks: each of them holds the whole gradient of the sum. Write `forward`, which
    must leave x as it is, and `backward`, as for `CopyTo`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        # BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
        # END SOLUTION


def column_then_row(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """A feed-forward, gelu(x up^T + up_bias) down^T + down_bias, of which each rank computes F/n of the F columns.

    x (T, D), alike. up (F/n, D), up_bias (F/n,): this rank's rows. down (D, F/n): its columns. down_bias (D,), alike.
    Returns (T, D), alike. One all-reduce in forward (`reduce_from`, which is g) and one in backward (`copy_to`, f).

    gelu works on each element by itself, so it needs no other rank's columns; and the product with `down` is a sum over
    F, of which each rank has a part.
    """
    # BEGIN SOLUTION
    x = copy_to(x, group)
    hidden = F.gelu(F.linear(x, up, up_bias))
    part = F.linear(hidden, down)
    y = reduce_from(part, group) + down_bias
    # END SOLUTION
    return y


def qkv_rows(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    """Rank `rank`'s rows of the fused query, key and value matrix: whole heads of each of the three.

    weight ((H + 2G) E, D): the rows of H = n_heads query heads, then those of G = n_kv_heads key heads, then those of G
    value heads. n divides H. Either n divides G, or G divides n: then n / G ranks, one after the other, hold the same
    key and value head. Returns ((H/n + 2 max(G/n, 1)) E, D): queries, keys, values. A head is served by the key and
    value heads of its own rank: query head h belongs to key head h // (H/G).
    """
    head_dim = weight.shape[0] // (n_heads + 2 * n_kv_heads)
    # BEGIN SOLUTION
    q, k, v = weight.split([n_heads * head_dim, n_kv_heads * head_dim, n_kv_heads * head_dim])
    parts = min(n, n_kv_heads)
    place = rank * parts // n
    rows = torch.cat([q.chunk(n)[rank], k.chunk(parts)[place], v.chunk(parts)[place]])
    # END SOLUTION
    return rows


def vocab_parallel_embedding(tokens: Tensor, weight: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The embedding of each token, where every rank holds V/n rows of the table.

    tokens (...) int64, alike. weight (V/n, D): rank r holds the rows of tokens r V/n .. (r + 1) V/n - 1. Returns
    (..., D), alike. A token that another rank has is a row of zeros here; so the sum over the ranks is the embedding.
    """
    rank, rows = dist.get_rank(group), weight.shape[0]
    # BEGIN SOLUTION
    local = tokens - rank * rows
    here = (local >= 0) & (local < rows)
    x = F.embedding(local.where(here, 0), weight)
    x = x.masked_fill(~here.unsqueeze(-1), 0)
    x = reduce_from(x, group)
    # END SOLUTION
    return x


def vocab_parallel_losses(logits: Tensor, labels: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Cross-entropy of each token, in nats, from shards of its logits: log(sum_v exp(logit_v)) - logit_label.

    logits (T, V/n): rank r's are those of tokens r V/n .. (r + 1) V/n - 1. labels (T,) int64, alike, IGNORE (-100)
    where there is nothing to predict: there the loss is 0. Returns (T,), alike. The logits are never gathered: three
    all-reduces of T numbers each do it. The first makes it stable: less the largest logit of the token, no exp
    overflows, and the loss is the same. That one takes no part in the gradient.
    """
    local = labels - dist.get_rank(group) * logits.shape[-1]
    here = (local >= 0) & (local < logits.shape[-1])  # whether this rank has the label's logit, at column `local`
    # BEGIN SOLUTION
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    logits = logits - largest.unsqueeze(-1)
    total = reduce_from(logits.exp().sum(-1), group)
    target = logits.gather(-1, local.where(here, 0).unsqueeze(-1)).squeeze(-1)
    target = reduce_from(target.masked_fill(~here, 0), group)
    losses = (total.log() - target).masked_fill(labels == IGNORE, 0)
    # END SOLUTION
    return losses


def sequence_parallel_mlp(
    x: Tensor, norm_weight: Tensor, up: Tensor, down: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """RMSNorm, then a feed-forward, gelu(norm(x) up^T) down^T; between layers, each rank keeps S/n positions only.

    x (S/n, D): this rank's positions. norm_weight (D,), alike. up (F/n, D), down (D, F/n): shards, as in
    `column_then_row`. Returns (S/n, D). The feed-forward needs all S positions: `all_gather` before it (backward:
    reduce-scatter) and `reduce_scatter` after it (backward: all-gather) take the place of f and g. The norm sees this
    rank's positions only: what that means for norm_weight's gradient is yours to see to.
    """
    # BEGIN SOLUTION
    norm_weight = copy_to(norm_weight, group)
    x = F.rms_norm(x, norm_weight.shape, norm_weight)
    x = all_gather(x, 0, group)
    hidden = F.gelu(F.linear(x, up))
    y = reduce_scatter(F.linear(hidden, down), 0, group)
    # END SOLUTION
    return y


def initial_shard(
    shape: Sequence[int], dim: int, std: float, seed: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's part, along `dim`, of a matrix of normal numbers that does not depend on the number of ranks.

    shape: of the whole; n divides shape[dim]. Returns a tensor with memory of its own: a view would keep the whole.
    The whole is what one process draws: torch.empty(shape).normal_(0, std, generator=generator), with the generator
    torch.Generator().manual_seed(seed).
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    # BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed)
    whole = torch.empty(shape).normal_(0, std, generator=generator)
    shard = whole.chunk(n, dim)[rank].clone(memory_format=torch.contiguous_format)
    # END SOLUTION
    return shard


def region_dropout(x: Tensor, p: float, seed: int, sharded: bool, group: dist.ProcessGroup | None = None) -> Tensor:
    """Dropout of x, of any shape: each element becomes 0 with probability p, or else is divided by 1 - p.

    sharded: whether x is this rank's shard. If not, x is alike, and must be alike afterwards: all ranks drop the same
    elements. If so, each rank must drop other elements, or the mask of the whole would repeat n times. The masks of the
    two kinds of region must have nothing in common, though the seed is the same, on all ranks.
    """
    rank = dist.get_rank(group)
    # BEGIN SOLUTION
    stream = seed + (2718 + rank if sharded else 0)
    generator = torch.Generator(x.device).manual_seed(stream)
    dropped = torch.rand(x.shape, generator=generator, device=x.device) < p
    y = x.masked_fill(dropped, 0) / (1 - p)
    # END SOLUTION
    return y


def layer_bytes(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> tuple[int, int]:
    """Bytes that one rank sends for one transformer layer: (in forward, in backward). Norms' gradients left out.

    tokens: of the whole batch, all of which each rank works on; n divides them. itemsize: bytes of a number. The layer
    is attention and a feed-forward, each column, then row. Collectives are rings: an all-gather or a reduce-scatter of
    a whole of `size` bytes sends (n - 1)/n of it from each rank, an all-reduce twice that.

    With sequence_parallel, the input of each column-parallel matrix is kept as this rank's part only, to save memory:
    backward gathers it once more, for the gradient of the weight.
    """
    size = tokens * dim * itemsize
    # BEGIN SOLUTION
    once = size // n * (n - 1)
    forward = 2 * 2 * once
    backward = 2 * 2 * once
    if sequence_parallel:
        backward += 2 * once
    # END SOLUTION
    return forward, backward
