"""The obvious versions: experts in a few lines each. Lab 2c has you write them; the modules beside do it in earnest.

Shapes: T tokens of this rank (each rank has others, and perhaps none), D dim of the residual stream, E experts of all
ranks together, k experts for each token, n ranks of the group. Rank r holds the experts r E/n .. (r + 1) E/n - 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import all_to_all
from course_lib.parallel.expert.dispatch import exchange_counts


def route_with_capacity(scores: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each token chooses its k best experts; an expert takes the first `capacity` tokens that chose it.

    scores (T, E): each token's probabilities over the experts. Returns three tensors (T, k), each token's experts from
    the best on: `chosen`, int64, their numbers; `weights`, their scores divided by the sum of the token's k; `kept`,
    bool, False where the expert was full when the token's turn came, in the order of the tokens.

    What is not kept is not computed: that expert adds nothing to the token, which goes on with its other experts and
    the residual stream alone. Its weights stay as they are.

    Sources: GShard (Lepikhin et al. 2020, arXiv 2006.16668), section 2.2; Switch Transformer (Fedus et al. 2021, arXiv
    2101.03961), section 2.2.
    """
    n_experts = scores.shape[-1]
    # BEGIN SOLUTION
    best, chosen = scores.topk(k, dim=-1)
    weights = best / best.sum(-1, keepdim=True)
    queued = F.one_hot(chosen, n_experts).sum(1)  # (T, E): 1 where the token stands in the expert's queue
    place = queued.cumsum(0) - 1
    kept = place.gather(1, chosen) < capacity
    # END SOLUTION
    return chosen, weights, kept


def route_with_bias(scores: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each token chooses the k experts of the largest score + bias. The bias says who is chosen, never how much.

    scores (T, E); bias (E,). Returns `chosen` (T, k) int64, and `weights` (T, k): the scores of the chosen divided by
    the sum of the token's k.

    Source: Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing" (arXiv 2408.15664), section 2; DeepSeek-V3 (arXiv
    2412.19437), section 2.1.2.
    """
    # BEGIN SOLUTION
    chosen = (scores + bias).topk(k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    weights = weights / weights.sum(-1, keepdim=True)
    # END SOLUTION
    return chosen, weights


def dispatch_and_combine(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: Callable[[Tensor, Tensor], Tensor],
    n_experts: int,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Send every token to its experts, wherever they are, and add up what comes back: y_t = sum_j w_tj expert_tj(x_t).

    x (T, D), chosen (T, k) int64, weights (T, k). Returns y (T, D). n divides n_experts.

    experts(rows, which) is this rank's work: rows (R, D), which (R,) int64 in 0 .. E/n - 1 says which of its own
    experts each row is for; it returns (R, D), in the same order. R may be 0: it is called all the same, for what it
    returns must lead back to the experts' weights, or this rank's backward would leave out an exchange in which the
    others wait for it.

    `send` (n, E/n): how many rows this rank sends to each rank, for each of its experts. `receive` (n, E/n): how many
    it gets from each rank, for each of its own. all_to_all(rows, send_counts, receive_counts, group) wants its rows in
    the order of the ranks they go to, and returns those received in the order of the ranks they came from.
    """
    n = dist.get_world_size(group)
    T, k = chosen.shape
    send = torch.bincount(chosen.flatten(), minlength=n_experts).view(n, n_experts // n)
    receive = exchange_counts(send, group)
    which = torch.arange(n_experts // n, device=x.device).repeat(n).repeat_interleave(receive.flatten())
    send_counts, receive_counts = send.sum(1).tolist(), receive.sum(1).tolist()
    # BEGIN SOLUTION
    order = chosen.flatten().argsort(stable=True)  # the T k choices by expert; so by rank, and there by expert
    rows = x[order // k]
    rows = all_to_all(rows, send_counts, receive_counts, group)
    rows = experts(rows, which)
    rows = all_to_all(rows, receive_counts, send_counts, group)
    rows = rows[order.argsort()]  # each choice's own again
    y = (rows.unflatten(0, (T, k)) * weights.unsqueeze(-1)).sum(1)
    # END SOLUTION
    return y


def balance_loss(probabilities: Tensor, chosen: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's share of the balance loss, E * sum over experts of f_e P_e, over all tokens of all ranks.

    probabilities (T, E) of this rank's tokens, chosen (T, k) int64. f_e: the part of all choices of all ranks that fell
    on expert e. It is counted, and has no gradient. P_e: the mean probability of expert e over all tokens of all ranks;
    the gradient flows through it. The loss is 1 where both are even, and above where the router prefers who is chosen
    more often.

    Returns a scalar, such that the mean over the ranks of its values is the loss, and the mean over the ranks of its
    gradients is the loss's gradient, as `share_of_mean` does: T differs by rank, and may be 0.

    Source: Switch Transformer (arXiv 2101.03961), section 2.2, for k choices.
    """
    n = dist.get_world_size(group)
    n_experts, k = probabilities.shape[-1], chosen.shape[-1]
    # BEGIN SOLUTION
    counts = torch.bincount(chosen.flatten(), minlength=n_experts)
    dist.all_reduce(counts, group=group)
    choices = counts.sum().clamp(min=1)
    f = counts.to(probabilities.dtype) / choices
    P_share = n * probabilities.sum(0) / (choices / k)  # the mean over the ranks of this is P
    loss = n_experts * (f * P_share).sum()
    # END SOLUTION
    return loss


def update_bias(bias: Tensor, counts: Tensor, rate: float, group: dist.ProcessGroup | None = None) -> None:
    """After a step: raise the bias of experts that had less than the mean by `rate`, lower that of those with more.

    bias (E,) float32, alike on all ranks, changed in place; it stays alike. counts (E,) int64: how many of this rank's
    tokens chose each expert in this step; left as it is. An expert that had just the mean over the experts keeps its
    bias.

    Source: Wang et al. 2024 (arXiv 2408.15664), algorithm 1.
    """
    # BEGIN SOLUTION
    total = counts.clone()
    dist.all_reduce(total, group=group)
    load = total.to(bias.dtype)
    bias += rate * torch.sign(load.mean() - load)
    # END SOLUTION


def exchange_bytes(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> tuple[int, int]:
    """Bytes one rank sends to others for the experts of one layer: (in forward, in backward). Counts left out.

    tokens: this rank's own. itemsize: bytes of a number. The load is even: of the rows a rank sends, an n-th is for
    each rank, itself included; and as many come to it. Backward sends each row's gradient the way back. n divides
    tokens * top_k.
    """
    # BEGIN SOLUTION
    rows = tokens * top_k // n * (n - 1)
    dispatch = rows * dim * itemsize
    combine = dispatch
    forward = dispatch + combine
    backward = forward
    # END SOLUTION
    return forward, backward
