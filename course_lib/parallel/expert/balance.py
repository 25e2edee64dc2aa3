"""Keeping the experts' load even: by a loss, by a bias without a loss; and the z-loss, which keeps logits small.

A mean over what? A balance loss is a product of two means, and the mean of products over micro-batches or ranks is not
the product of the means over all: computed on each micro-batch by itself, its value and its gradient depend on the
layout, and it asks every small batch to be even in itself. The two forms here do not depend on it:

- `balance_share` is over all tokens of the step, of all micro-batches on all ranks. It needs the load of all of them
  before the first backward. With one micro-batch that is known after forward: one all-reduce of layers * E integers.
  With several, run them forward once without gradients, or use the other form.
- `sequence_balance_share` is over the tokens of each sequence by itself (DeepSeek-V3, arXiv 2412.19437, equation 17),
  and then the mean over sequences, weighted by their tokens. A sequence is never cut by micro-batches or data
  parallelism, so nothing need be known of others but the number of tokens.

All are shares, as `training/loss.py` has them: add them to a micro-batch's `share_of_total`, each with its factor. What
a rank's shares add up to is, in the mean over the ranks, the step's loss; summed over the layers.

In all of them, valid (B, S) bool leaves out padding: False where a token is there to fill the row. None: all count.
`total`: the valid tokens of the whole step, all micro-batches on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.models.moe import MoE, Routing

Group = dist.ProcessGroup | None


def expert_load(routings: Sequence[Routing], valid: Tensor | None = None) -> Tensor:
    """How many tokens chose each expert, (layers, E) int64, dropped or not. Of one micro-batch: they may be added up.

    routings: of one forward, one for each layer, at least one. `dist.all_reduce` makes it the load of all ranks.
    """
    return torch.stack([_counts(routing, valid).sum((0, 1)) for routing in routings])


def balance_share(
    routings: Sequence[Routing], load: Tensor, group: Group = None, valid: Tensor | None = None
) -> Tensor:
    """Of this micro-batch: the loss E * sum over experts of f_e P_e over all tokens of the step. A scalar.

    load (layers, E): `expert_load` of the whole step, of all ranks: f_e is an expert's part of it. P_e: the mean
    probability of expert e over all tokens of the step; through it alone flows the gradient. 1 in each layer where both
    are even. Source: Switch Transformer (arXiv 2101.03961), section 2.2; over the whole step: Qiu et al. 2025 (arXiv
    2501.11873).
    """
    n = dist.get_world_size(group)
    shares = []
    for routing, load_E in zip(routings, load, strict=True):
        E, k = routing.scores.shape[-1], routing.chosen.shape[-1]
        choices = load_E.sum().clamp(min=1)
        f_E = load_E.to(routing.scores.dtype) / choices
        shares.append(E * (f_E * _valid(routing.probabilities, valid).sum((0, 1))).sum() * k / choices)
    return n * torch.stack(shares).sum()


def sequence_balance_share(
    routings: Sequence[Routing], total: Tensor | int, group: Group = None, valid: Tensor | None = None
) -> Tensor:
    """Of this micro-batch: the mean over all tokens of the step of their sequence's balance loss. A scalar.

    A sequence's loss is that of `balance_share`, as if it were alone. With sequences of one length it is the mean over
    sequences.
    """
    n = dist.get_world_size(group)
    shares = []
    for routing in routings:
        E, k = routing.scores.shape[-1], routing.chosen.shape[-1]
        counts_BE = _counts(routing, valid).sum(1)
        tokens_B1 = (counts_BE.sum(1, keepdim=True) / k).clamp(min=1)
        f_BE = counts_BE.to(routing.scores.dtype) / (k * tokens_B1)
        # tokens * (f P), where P is the sum over tokens divided by their number: the number cancels.
        shares.append(E * (f_BE * _valid(routing.probabilities, valid).sum(1)).sum())
    return n * torch.stack(shares).sum() / _at_least_1(total)


def z_share(
    routings: Sequence[Routing], total: Tensor | int, group: Group = None, valid: Tensor | None = None
) -> Tensor:
    """Of this micro-batch: the mean over all tokens of the step of log(sum of exp(logits)) squared. A scalar.

    Source: ST-MoE (Zoph et al. 2022, arXiv 2202.08906), equation 5.
    """
    n = dist.get_world_size(group)
    squares = [_valid(routing.logits.logsumexp(-1, keepdim=True).square(), valid).sum() for routing in routings]
    return n * torch.stack(squares).sum() / _at_least_1(total)


@torch.no_grad()
def update_biases(model: nn.Module, load: Tensor, rate: float) -> None:
    """After a step: each router's bias up by `rate` for experts that had less than the mean load, down for the others.

    load (layers, E): of the whole step, of all ranks and micro-batches, so that the biases stay alike on all ranks; a
    row for each MoE layer of the model, in their order. Source: Wang et al. 2024 (arXiv 2408.15664), algorithm 1.

    ValueError if a router has no bias or `load` has another number of rows.
    """
    routers = [module.router for module in model.modules() if isinstance(module, MoE)]
    if len(routers) != len(load) or any(router.bias is None for router in routers):
        raise ValueError(
            f"the load of {len(load)} layers cannot move the biases of {len(routers)}, of which "
            f"{sum(router.bias is not None for router in routers)} have one: give a row for each layer, and "
            "biased=True in MoEConfig"
        )
    # Whole numbers, compared without division: an expert with the mean load must keep its bias to the bit.
    E = load.shape[1]
    for router, load_E in zip(routers, load, strict=True):
        router.bias += rate * torch.sign(load_E.sum() - E * load_E)


def _counts(routing: Routing, valid_BS: Tensor | None) -> Tensor:
    """1 where a token chose an expert, (B, S, E) int64."""
    chosen_BSE = torch.zeros(routing.scores.shape, dtype=torch.int64, device=routing.scores.device)
    return _valid(chosen_BSE.scatter(-1, routing.chosen, 1), valid_BS)


def _valid(x_BSE: Tensor, valid_BS: Tensor | None) -> Tensor:
    return x_BSE if valid_BS is None else x_BSE.masked_fill(~valid_BS.unsqueeze(-1), 0)


def _at_least_1(total: Tensor | int) -> Tensor | int:
    return total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
