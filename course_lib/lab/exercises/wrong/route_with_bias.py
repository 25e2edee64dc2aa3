"""Wrong answers to `route_with_bias`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
from torch import Tensor

Routes = tuple[Tensor, Tensor]


def of(scores: Tensor, chosen: Tensor) -> Routes:
    """As it should be, for whoever is chosen."""
    weights = scores.gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True)


def without_bias(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return of(scores, scores.topk(k).indices)


def bias_subtracted(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return of(scores, (scores - bias).topk(k).indices)


def bias_multiplied(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return of(scores, (scores * bias).topk(k).indices)


def worst(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return of(scores, (scores + bias).topk(k, largest=False).indices)


def biased_weights(scores: Tensor, bias: Tensor, k: int) -> Routes:
    best, chosen = (scores + bias).topk(k)
    return chosen, best / best.sum(-1, keepdim=True)


def biased_and_not_divided(scores: Tensor, bias: Tensor, k: int) -> Routes:
    best, chosen = (scores + bias).topk(k)
    return chosen, best


def not_divided(scores: Tensor, bias: Tensor, k: int) -> Routes:
    chosen = (scores + bias).topk(k).indices
    return chosen, scores.gather(1, chosen)


def weights_of_others(scores: Tensor, bias: Tensor, k: int) -> Routes:
    best = scores.topk(k).values
    return (scores + bias).topk(k).indices, best / best.sum(-1, keepdim=True)


def softmax_of_chosen(scores: Tensor, bias: Tensor, k: int) -> Routes:
    chosen = (scores + bias).topk(k).indices
    return chosen, torch.softmax(scores.gather(1, chosen), -1)


def by_all_experts(scores: Tensor, bias: Tensor, k: int) -> Routes:
    chosen = (scores + bias).topk(k).indices
    return chosen, scores.gather(1, chosen) / scores.sum(-1, keepdim=True)


def cut_off(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return of(scores.detach(), (scores + bias).topk(k).indices)


def chosen_alone(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    return (scores + bias).topk(k).indices


def weights_of_all(scores: Tensor, bias: Tensor, k: int) -> Routes:
    return (scores + bias).topk(k).indices, scores / scores.sum(-1, keepdim=True)
