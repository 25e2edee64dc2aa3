"""Lab 1: the loss of batches that hold unequal numbers of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.wrong import share_of_mean as shares
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.training import loss


def tokens(valid: Callable[[int, int], int], padding: int | None = None) -> Callable:
    """Makes the arguments of `gradient_of_share`: valid(rank, n) tokens and some padding, up to 6 tokens if None."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        size = 6 if padding is None else valid(rank, n) + padding
        losses = random_tensor((size,), rng).abs() + 0.1
        return losses, torch.randperm(size, generator=rng) < valid(rank, n)

    return make


def gradient_of_share(answer: Callable, losses: Tensor, valid: Tensor, **group: Any) -> Any:
    """By how much each token's loss moves what the answer returns, and what it returns."""
    losses = losses.clone().requires_grad_()
    share = answer(losses, valid, **group)
    if not isinstance(share, Tensor) or share.shape != ():
        return share
    value = share.detach().to(losses.dtype)
    if share.requires_grad:
        share.backward()
    return {"gradient": losses.grad, "loss": value}


def weights(weight: Callable[[Tensor, int, int, int], Any]) -> Callable[[list[tuple], int], list]:
    """weight(valid, tokens of all, tokens of this rank, n): the gradient of each token's loss."""

    def compute(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        total = int(sum(valid.sum() for _, valid in inputs))
        return [
            {"gradient": torch.zeros_like(losses) + weight(valid.float(), total, int(valid.sum()), n)}
            for losses, valid in inputs
        ]

    return compute


def right(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """The gradients, and the share of the loss that belongs to them."""
    found = weights(lambda valid, total, own, n: valid * n / max(total, 1))(inputs, n)
    return [
        {**rank, "loss": (rank["gradient"] * losses).sum()} for rank, (losses, _) in zip(found, inputs, strict=True)
    ]


def over(numerator: float, count: int) -> float:
    return numerator / count if count else float("nan")


def gradient(weight: Callable, name: str, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the gradient of each token's loss is weight(...), see `weights`."""
    return looks_like(weights(weight), name, sentence, part="gradient")


@signature
def without_a_graph(e: Evidence) -> str | None:
    if e.where != "`gradient`" or any(e.observed[r] is not None for r in e.wrong):
        return None
    return (
        "the loss that you return has no graph behind it: backward finds nothing to do. Numbers of `.item()` have none"
    )


@signature
def zero_by_zero(e: Evidence) -> str | None:
    """No token counts on any rank, and what is returned is not finite."""
    if any(bool(valid.any()) for _, valid in e.inputs):
        return None
    values = [value for r in e.wrong if isinstance(value := e.observed[r], Tensor)]
    if not values or all(bool(value.isfinite().all()) for value in values):
        return None
    return (
        "the sum is 0 and it is divided by 0, which is NaN: one such step makes NaN of the whole model. Divide by at "
        "least 1"
    )


@signature
def clamped_too_early(e: Evidence) -> str | None:
    """Each rank's own count, or their mean, is raised to 1, not their sum."""
    if e.where != "`gradient`" or not e.comparable:
        return None
    counts = [int(valid.sum()) for _, valid in e.inputs]
    told = sum(max(count, 1) for count in counts)
    if told == sum(counts) or not all(same(e.observed[r] * told, e.expected[r] * sum(counts)) for r in e.wrong):
        return None
    ways = "each rank's, or their mean over the ranks" if told == len(counts) > sum(counts) else "each rank's"
    return (
        f"the sum is divided by {told} in place of {sum(counts)}: a rank without tokens counts as if it had one. "
        f"Raise the whole number to 1, after the exchange; not {ways}"
    )


@signature
def losses_travel(e: Evidence) -> str | None:
    """The share of each rank is already the loss of all of them."""
    if e.where != "`loss`" or not e.comparable:
        return None
    whole = sum(e.expected)
    if not any(all(same(e.observed[r] * k, whole) for r in e.wrong) for k in (1, e.n)):
        return None
    return (
        "the gradients are right, and the losses themselves travel: every rank returns what all of them add up to. "
        "Averaging the gradients does that later; only the number of tokens need travel. Return this rank's share"
    )


@signature
def off_by_a_constant(e: Evidence) -> str | None:
    """Right gradients of a loss that is not the right one."""
    if e.where != "`loss`" or not e.comparable:
        return None
    r = e.wrong[0]
    have, want = float(e.observed[r]), float(e.expected[r])
    return (
        f"the gradients are right, the loss is not: rank {r} returned {have:.4g}, its share is {want:.4g}. Something "
        "without a gradient is added to it or taken away"
    )


@signature
def padding_counts(e: Evidence) -> str | None:
    """A token that is not valid moves the loss."""
    if e.where != "`gradient`" or not e.comparable:
        return None
    for r in e.wrong:
        padding = ~e.inputs[r][1]
        if bool((e.observed[r][padding].nan_to_num() != 0).any()):
            which = int((padding & (e.observed[r] != 0)).nonzero()[0])
            return f"rank {r}: token {which} is padding (valid is False), and it has a share in the loss"
    return None


SHARE_OF_MEAN = Exercise(
    name="share_of_mean",
    lab="lab1",
    title="The loss of uneven batches",
    minutes=15,
    difficulty=2,
    reference=loss.share_of_mean,
    cases=[
        Case(tokens(lambda rank, n: rank + 2, padding=0), label="2 tokens on rank 0, 3 on rank 1, and so on"),
        Case(tokens(lambda rank, n: rank + 2), label="6 tokens on each rank, of which 2, 3, ... are valid"),
        Case(tokens(lambda rank, n: 0 if rank == n - 1 else 5 - rank), label="no valid token on the last rank"),
        Case(tokens(lambda rank, n: 0), label="no valid token on any rank"),
        Case(tokens(lambda rank, n: int(rank == 0)), label="one valid token in all, on rank 0"),
    ],
    expected=right,
    call=gradient_of_share,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        without_a_graph,
        zero_by_zero,
        losses_travel,
        off_by_a_constant,
        clamped_too_early,
        gradient(
            lambda valid, total, own, n: valid * over(1, own),
            "mean_of_means",
            "each rank takes the mean of its own tokens. That gives a mean of means: a token counts for more on a rank "
            "that has few. Divide by the number of tokens on all ranks.",
        ),
        gradient(
            lambda valid, total, own, n: valid * over(n, own),
            "own_count",
            "divided by the number of valid tokens of this rank alone. Add the numbers of all ranks first.",
        ),
        gradient(
            lambda valid, total, own, n: valid / total,
            "without_n",
            "every gradient is 1/n of what it should be. The gradients will be averaged over the ranks, which divides "
            "them by n: multiply by n here.",
        ),
        gradient(
            lambda valid, total, own, n: valid / n,
            "sum_over_n",
            "the sum of the losses is divided by n, the number of ranks. It is a mean over tokens: divide by their "
            "number.",
        ),
        gradient(
            lambda valid, total, own, n: valid * n,
            "never_divided",
            "that is a sum, it is divided by no number of tokens.",
        ),
        gradient(
            lambda valid, total, own, n: valid * 1.0,
            "plain_sum",
            "that is the sum of this rank's losses, it is divided by no number of tokens.",
        ),
        gradient(
            lambda valid, total, own, n: valid / len(valid),
            "by_all_tokens",
            "divided by the number of all tokens, padding too. Count the valid ones, of all ranks.",
        ),
        padding_counts,
    ],
    hints=[
        "The mean over all tokens is a sum of losses, divided by a number of tokens. The sum may stay local, each rank "
        "its own share: gradients are added up later. The number may not.",
        "Two ranks, one with 2 valid tokens and one with 4:\n"
        "                         rank 0            rank 1\n"
        "    mean of its own      (a + b) / 2       (c + d + e + f) / 4     a counts twice as much as c\n"
        "    share of the mean    2 (a + b) / 6     2 (c + d + e + f) / 6   all count alike\n"
        "The 2 in front is n: averaging the gradients divides by it.",
        "`count = valid.sum()`, summed over the ranks by `dist.all_reduce(count, group=group)`. Return "
        "`n * losses[valid].sum() / count.clamp(min=1)`: with no valid token on any rank, count is 0.",
    ],
    advice={
        "calls_left_out": "A rank without a valid token must take part in the exchange of counts, too.",
        "calls_differ": "A rank without a valid token must take part in the exchange of counts, too.",
        "meets_none": "`dist.all_reduce` returns None: the sum is in the tensor that it got.",
    },
    wrong=[
        Wrong(shares.mean_of_means, "That gives a mean of means"),
        Wrong(shares.own_count, "of this rank alone. Add the numbers"),
        Wrong(shares.without_n, "multiply by n here"),
        Wrong(shares.without_mask, "is padding (valid is False), and it has a share"),
        Wrong(shares.counting_padding, "the number of all tokens"),
        Wrong(shares.as_a_number, "has no graph behind it"),
        Wrong(shares.leaving_early, "A rank without a valid token must take part"),
        Wrong(shares.sum_over_n, "is divided by n, the number of ranks"),
        Wrong(shares.never_divided, "it is divided by no number of tokens"),
        Wrong(shares.n_times_too_much, "exactly 4 times too large"),
        Wrong(shares.without_clamp, "makes NaN of the whole model"),
        Wrong(shares.infinite_weights, "the sum is 0 and it is divided by 0"),
        Wrong(shares.divided_by_pythons_zero, "ZeroDivisionError"),
        Wrong(shares.clamped_before_the_exchange, "after the exchange; not each rank's."),
        Wrong(shares.mean_number_clamped, "not each rank's, or their mean over the ranks"),
        Wrong(shares.losses_reduced, "the losses themselves travel"),
        Wrong(shares.losses_reduced_with_gradient, "only the number of tokens need travel"),
        Wrong(shares.constant_added, "Something without a gradient is added"),
        Wrong(shares.keeps_what_is_returned, "the sum is in the tensor that it got"),
        Wrong(shares.without_group, "ight on the whole world, wrong in a group"),
    ],
)
