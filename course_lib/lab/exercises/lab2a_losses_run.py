"""Lab 2a: how an answer to `vocab_parallel_losses` is run, and what a loss is made of, rightly and wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.autograd import gather
from course_lib.lab.exercise import Case, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import cut, graded, joined
from course_lib.training.loss import IGNORE

T, V = 6, 24
LABELS = (3, V - 1, 0, IGNORE, 13, 7)
TOKENS, VOCABULARY = 512, 24_000  # of the timed call


def scored(label: str, scale: float = 1.0, offset: float = 0.0, labels: tuple[int, ...] = LABELS) -> Case:
    """A case: this rank's logits, the labels, and the gradient of the losses."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        shared = generator("losses", label)
        logits = random_tensor((T, V), shared) * scale + offset
        return cut(logits, 1, n)[rank], torch.tensor(labels), random_tensor((T,), shared)

    return Case(make, label=label)


def large(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
    shared = generator("losses", "timed")
    labels = torch.randint(VOCABULARY // n * n, (TOKENS,), generator=shared)
    return random_tensor((TOKENS, VOCABULARY // n), rng), labels, torch.ones(TOKENS)


def run(answer: Callable, logits: Tensor, labels: Tensor, upstream: Tensor, **group: Any) -> Any:
    return graded(answer, {"logits": logits}, upstream, labels, **group)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")


def logits_gathered(logits: Tensor, labels: Tensor) -> Tensor:
    """The rival: all logits on every rank."""
    return cross_entropy(gather(logits, -1), labels)


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    _, labels, upstream = inputs[0]
    whole = run(cross_entropy, joined(inputs, 0, 1), labels, upstream)
    return [whole | {"gradient of logits": part} for part in cut(whole["gradient of logits"], 1, n)]


# What is a loss made of: log of the sum, less the label's logit, each from all shards; and what mistakes make of it.


def shards(inputs: list[tuple]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """By rank: logits; the label's column, 0 if it is another's; whether it is this rank's."""
    found = []
    for rank, (logits, labels, _) in enumerate(inputs):
        local = labels - rank * logits.shape[1]
        here = (local >= 0) & (local < logits.shape[1])
        found.append((logits, local.where(here, 0).unsqueeze(-1), here))
    return found


def picked(logits: Tensor, column: Tensor) -> Tensor:
    return logits.gather(-1, column).squeeze(-1)


def made_of(log_sum: Callable, target: Callable, mask: bool = True) -> Callable[[list[tuple], int], list]:
    """log_sum and target of (shards, rank, largest logits of all): the losses are their difference."""

    def compute(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        parts, labels = shards(inputs), inputs[0][1]
        top = torch.cat([logits for logits, _, _ in parts], 1).amax(1)
        found = [log_sum(parts, r, top) - target(parts, r, top) for r in range(n)]
        return [{"result": x.masked_fill(labels == IGNORE, 0) if mask else x} for x in found]

    return compute


def right_sum(parts: list, rank: int, top: Tensor) -> Tensor:
    return sum((logits - top[:, None]).exp().sum(1) for logits, _, _ in parts).log()


def right_target(parts: list, rank: int, top: Tensor) -> Tensor:
    return sum(picked(logits - top[:, None], column) * here for logits, column, here in parts)


def own_sum(parts: list, rank: int, top: Tensor) -> Tensor:
    return (parts[rank][0] - top[:, None]).exp().sum(1).log()


def own_target(parts: list, rank: int, top: Tensor) -> Tensor:
    logits, column, here = parts[rank]
    return picked(logits - top[:, None], column) * here


def every_target(parts: list, rank: int, top: Tensor) -> Tensor:
    return sum(picked(logits - top[:, None], column) for logits, column, _ in parts)


def sum_by_own_max(parts: list, rank: int, top: Tensor) -> Tensor:
    return sum((logits - logits.amax(1, True)).exp().sum(1) for logits, _, _ in parts).log()


def target_by_own_max(parts: list, rank: int, top: Tensor) -> Tensor:
    return sum(picked(logits - logits.amax(1, True), column) * here for logits, column, here in parts)


def target_alone(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """The gradient without the term of the sum."""
    found = []
    for (logits, column, here), (_, _, upstream) in zip(shards(inputs), inputs, strict=True):
        one = torch.zeros_like(logits).scatter(1, column, 1.0) * here[:, None]
        found.append({"gradient of logits": -one * upstream[:, None]})
    return found


def sum_alone(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    """The gradient without the term of the target."""
    whole = joined(inputs, 0, 1).softmax(1) * (inputs[0][1] != IGNORE)[:, None] * inputs[0][2][:, None]
    return [{"gradient of logits": part} for part in cut(whole, 1, n)]
