"""Lab 2c: experts chosen with a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.exercise import Case, Exercise, Wrong, generator
from course_lib.lab.exercises.lab2a_graded import gradient, no_gradient
from course_lib.lab.exercises.lab2c_wanted import returns
from course_lib.lab.exercises.wrong import route_with_bias as routes
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature
from course_lib.parallel.expert import simple


def tokens(count: int, n_experts: int, k: int, size: float, label: str = "") -> Case:
    """Scores of a sigmoid, which do not add up to 1. size: of the bias."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, int]:
        scores = torch.randn(count, n_experts, generator=rng).sigmoid()
        return scores, size * torch.randn(n_experts, generator=rng), k

    sizes = f"{count} tokens, {n_experts} experts, k = {k}"
    return Case(make, label=f"{sizes}, {label}" if label else sizes)


def arranged(chosen: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """By the number of the expert: the order among a token's k is free."""
    chosen, order = chosen.sort(dim=-1)
    return {"chosen": chosen, "weights": weights.detach().gather(-1, order)}


def routed(answer: Callable, scores: Tensor, bias: Tensor, k: int) -> Any:
    """What the answer chooses, and by how much each score moves the weights."""
    scores = scores.clone().requires_grad_()
    found = answer(scores, bias, k)
    if not isinstance(found, tuple | list) or len(found) != 2 or not all(isinstance(x, Tensor) for x in found):
        return found
    chosen, weights = found
    if not chosen.shape == weights.shape == (len(scores), k) or chosen.dtype != torch.int64:
        chosen = chosen.sort(dim=-1).values if chosen.dim() else chosen
        return {"chosen": chosen, "weights": weights.detach(), gradient("scores"): None}
    if weights.requires_grad:  # the slope goes by the expert, so that the order is free here, too
        slopes = torch.randn(scores.shape[1], generator=generator("slopes")).to(weights.dtype)
        (weights * slopes[chosen]).sum().backward()
    # With one choice the weight is 1 whatever the score is, and the gradient what rounding leaves of nothing.
    moved = None if scores.grad is None else torch.nn.functional.hardshrink(scores.grad, 1e-5)
    return arranged(chosen, weights) | {gradient("scores"): moved}


def choice(compute: Callable[[Tensor, Tensor], Tensor], name: str, sentence: str) -> Signature:
    """A signature: the experts are those of the largest compute(scores, bias)."""

    def found(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        return [{"chosen": compute(scores, bias).topk(k).indices.sort(-1).values} for scores, bias, k in inputs]

    return looks_like(found, name, sentence, part="chosen")


def weight(compute: Callable[[Tensor, Tensor, Tensor], Tensor], name: str, sentence: str) -> Signature:
    """A signature: the weights are compute(scores, scores of the chosen, those with the bias)."""

    def found(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        both = []
        for scores, bias, k in inputs:
            best, chosen = (scores + bias).topk(k)
            both.append({"weights": arranged(chosen, compute(scores, scores.gather(1, chosen), best))["weights"]})
        return both

    return looks_like(found, name, sentence, part="weights")


def shares(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


ROUTE_WITH_BIAS = Exercise(
    name="route_with_bias",
    lab="lab2c",
    title="Choose with a bias",
    minutes=10,
    difficulty=1,
    reference=simple.route_with_bias,
    worlds=(1,),
    cases=[
        tokens(10, 6, 2, 0.4),
        tokens(6, 4, 1, 0.4),
        tokens(6, 5, 3, 8.0, "a bias larger than any score"),
        tokens(0, 4, 2, 0.4, "a rank without tokens"),
    ],
    call=routed,
    signatures=[
        returns("two tensors, chosen and weights"),
        choice(lambda scores, bias: scores, "without_bias", "the bias has no part in the choice: scores alone do."),
        choice(lambda scores, bias: scores - bias, "bias_subtracted", "the bias is subtracted. It is added."),
        choice(lambda scores, bias: scores * bias, "bias_multiplied", "scores times bias. It is added."),
        choice(lambda scores, bias: -scores - bias, "the_worst", "those are the k smallest."),
        weight(
            lambda scores, own, biased: shares(biased),
            "biased_weights",
            "the bias is in the weights. It says who is chosen, never how much: an expert must not count for more "
            "because it had little to do. Take the scores of the chosen, without it.",
        ),
        weight(
            lambda scores, own, biased: biased,
            "biased_and_not_divided",
            "the weights are score + bias, as `topk` found them. Take the scores of the chosen, without the bias, and "
            "divide each token's by their sum.",
        ),
        weight(
            lambda scores, own, biased: own,
            "not_divided",
            "the weights are the scores as they are. Divide each token's by the sum of its k.",
        ),
        weight(
            lambda scores, own, biased: shares(scores.topk(own.shape[1]).values),
            "weights_of_others",
            "the weights are those of the k largest scores, who need not be those that the bias has chosen. `gather` "
            "takes the scores of the chosen.",
        ),
        weight(
            lambda scores, own, biased: own.softmax(-1),
            "softmax_of_chosen",
            "softmax of the chosen scores. Divide them by their sum.",
        ),
        weight(
            lambda scores, own, biased: own / scores.sum(-1, keepdim=True),
            "by_all_experts",
            "divided by the sum over all experts. Divide by the sum of the token's k, so that they add up to 1.",
        ),
        no_gradient,
    ],
    hints=[
        "Two numbers for each expert: one to choose by, one to weigh by. `topk` returns both values and indices; which "
        "of them are of use here?",
        "One token, k = 1:\n"
        "               A       B\n"
        "    score      0.6     0.5\n"
        "    bias       0.0     0.2\n"
        "    together   0.6     0.7     B is chosen\n"
        "and B counts with its score, 0.5.",
        "`chosen = (scores + bias).topk(k, dim=-1).indices`, then `scores.gather(-1, chosen)`, divided by its sum.",
    ],
    wrong=[
        Wrong(routes.without_bias, "no part in the choice"),
        Wrong(routes.bias_subtracted, "the bias is subtracted"),
        Wrong(routes.bias_multiplied, "scores times bias"),
        Wrong(routes.worst, "those are the k smallest"),
        Wrong(routes.biased_weights, "never how much: an expert must not"),
        Wrong(routes.biased_and_not_divided, "as `topk` found them"),
        Wrong(routes.not_divided, "the weights are the scores as they are"),
        Wrong(routes.weights_of_others, "who need not be those"),
        Wrong(routes.softmax_of_chosen, "softmax of the chosen"),
        Wrong(routes.by_all_experts, "the sum over all experts"),
        Wrong(routes.chosen_alone, "Wanted: two tensors"),
        Wrong(routes.weights_of_all, "returned as `weights` shape (10, 6)"),
        Wrong(routes.cut_off, "backward never reaches `scores`"),
    ],
    closing="The bias decides, and leaves no trace in what the token gets: no gradient of the model is disturbed.",
)
