"""Wrong answers to `fit_alpha_beta`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    ones = torch.ones_like(sizes)
    alpha, beta = torch.linalg.lstsq(torch.stack([ones, sizes], dim=1), seconds).solution
    return alpha.item(), beta.item()


def by_hand(sizes: Tensor, seconds: Tensor, weights: Tensor) -> tuple[float, float]:
    """The right fit if weights are 1 / seconds."""
    system = torch.stack([weights, sizes * weights], dim=1)
    alpha, beta = torch.linalg.lstsq(system, seconds * weights).solution
    return alpha.item(), beta.item()


def half_divided(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    ones = torch.ones_like(sizes)
    alpha, beta = torch.linalg.lstsq(torch.stack([ones, sizes / seconds], dim=1), ones).solution
    return alpha.item(), beta.item()


def swapped(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    return by_hand(sizes, seconds, 1 / seconds)[::-1]


def bandwidth(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    alpha, beta = by_hand(sizes, seconds, 1 / seconds)
    return alpha, 1 / beta


def through_the_ends(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return (seconds[0] - beta * sizes[0]).item(), beta.item()


def without_alpha(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    return seconds.min().item(), (seconds / sizes).mean().item()


def right_side_not_divided(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    system = torch.stack([1 / seconds, sizes / seconds], dim=1)
    alpha, beta = torch.linalg.lstsq(system, seconds).solution
    return alpha.item(), beta.item()


def least_and_largest(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    return seconds[0].item(), (seconds[-1] / sizes[-1]).item()
