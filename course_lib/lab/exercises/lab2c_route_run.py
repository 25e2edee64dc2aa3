"""What the check of `route_with_capacity` runs: a choice by an answer, and choices that are mistaken in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.lab.exercise import Case, generator
from course_lib.lab.exercises.lab2a_graded import gradient
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature
from course_lib.parallel.expert import simple


def tokens(count: int, n_experts: int, k: int, capacity: int, label: str = "", spread: float = 1.0) -> Case:
    """Probabilities of `count` tokens; the last experts are liked better. spread: of the scores within a token."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, int, int]:
        logits = torch.randn(count, n_experts, generator=rng) + torch.linspace(0, 1.5, n_experts)
        return (spread * logits).softmax(-1), k, capacity

    sizes = f"{count} tokens, {n_experts} experts, k = {k}, capacity {capacity}"
    return Case(make, label=f"{label}: {sizes}" if label else sizes)


def routed(answer: Callable, scores: Tensor, k: int, capacity: int) -> Any:
    """What the answer chooses, and by how much each score moves the weights."""
    scores = scores.clone().requires_grad_()
    found = answer(scores, k, capacity)
    if not isinstance(found, tuple | list) or len(found) != 3 or not all(isinstance(x, Tensor) for x in found):
        return found
    chosen, weights, kept = found
    if weights.requires_grad:
        slopes = torch.randn(weights.shape, generator=generator("slopes"), dtype=weights.dtype)
        (weights * slopes).sum().backward()
    # With one choice the weight is 1 whatever the score is, and the gradient what rounding leaves of nothing.
    moved = None if scores.grad is None else F.hardshrink(scores.grad, 1e-5)
    return {"chosen": chosen, "weights": weights.detach(), "kept": kept, gradient("scores"): moved}


def mistaken(part: str, compute: Callable[[Tensor, int, int], Any], name: str, sentence: str) -> Signature:
    """A signature: `part` is what compute(scores, k, capacity) gives."""
    return looks_like(lambda inputs, n: [{part: compute(*args)} for args in inputs], name, sentence, part=part)


def weighed(compute: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, int, int], Tensor]:
    """compute(scores, chosen, kept) -> weights, of the right choice."""

    def weights(scores: Tensor, k: int, capacity: int) -> Tensor:
        chosen, _, kept = simple.route_with_capacity(scores, k, capacity)
        return compute(scores, chosen, kept)

    return weights


def queued(keep: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[Tensor, int, int], Tensor]:
    """keep(chosen, scores of the chosen, capacity) -> kept, of the right choice; `wrong/` has most of them."""

    def kept(scores: Tensor, k: int, capacity: int) -> Tensor:
        best, chosen = scores.topk(k, dim=-1)
        return keep(F.one_hot(chosen, scores.shape[-1]), best, capacity)

    return kept


def sent_elsewhere(scores: Tensor, k: int, capacity: int) -> Tensor:
    room, rows = [capacity] * scores.shape[-1], []
    for order in scores.argsort(-1, descending=True).tolist():
        free = [e for e in order if room[e] > 0]
        rows.append((free + [e for e in order if e not in free])[:k])
        for e in rows[-1]:
            room[e] -= 1
    return torch.tensor(rows, dtype=torch.int64).view(-1, k)
