"""What the check of `dispatch_and_combine` runs: tokens to experts and back, on ranks, and in one process by steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.evidence import Aside
from course_lib.lab.exercise import Case, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import gradient

EXPERTS, DIM = 12, 3  # 2, 3 and 4 ranks divide the experts
UNEQUAL = re.compile(r"add up to (\d+) rows and x has (\d+)")  # of the library's all_to_all


def tokens(
    label: str,
    count: Callable[[int, int], int],
    k: int,
    experts: Callable[[int], tuple[int, int]] | None = None,
    moves: bool = True,
) -> Case:
    """A case. count(rank, n) tokens; they choose among experts(n), first and last, or all experts equally if None.

    moves: x has a gradient.
    """

    def chosen_by(rank: int, n: int) -> Tensor:
        rng = generator("chosen", label, rank, n)
        if experts is None:  # all experts once, and again
            return torch.cat([torch.randperm(EXPERTS, generator=rng) for _ in range(count(rank, n) * k // EXPERTS)])
        first, last = experts(n)
        rows = [torch.randperm(last - first + 1, generator=rng)[:k] + first for _ in range(count(rank, n))]
        return torch.cat([torch.empty(0, dtype=torch.int64), *rows])

    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        chosen, T = chosen_by(rank, n).view(-1, k), count(rank, n)
        incoming = sum(int((chosen_by(r, n) // (EXPERTS // n) == rank).sum()) for r in range(n))
        x, slopes = (random_tensor((T, DIM), rng) for _ in range(2))
        weights = torch.rand(T, k, generator=rng) + 0.1
        matrices = random_tensor((EXPERTS // n, DIM, DIM), rng)
        return x, chosen, weights, matrices, slopes, incoming, moves

    return Case(make, label=label)


def dispatched(
    answer: Callable,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    matrices: Tensor,
    slopes: Tensor,
    incoming: int,
    moves: bool,
    **group: Any,
) -> Any:
    """What comes back to the tokens, and every gradient. slopes: the gradient of it. incoming: rows that come here."""
    x = x.clone().requires_grad_(moves)
    weights, matrices = weights.clone().requires_grad_(), matrices.clone().requires_grad_()
    calls = []

    def experts(rows: Tensor, which: Tensor) -> Tensor:
        if len(rows) != len(which):
            raise ValueError(f"experts got {len(rows)} rows, and {len(which)} numbers that say whose they are")
        calls.append(len(rows))
        return by_experts(rows, which, matrices)

    try:
        y = answer(x, chosen, weights, experts, EXPERTS, **group)
    except ValueError as error:
        if found := UNEQUAL.search(str(error)):
            error.args = (str(error) + why(*map(int, found.groups()), chosen, incoming),)
        raise
    if not isinstance(y, Tensor):
        return y
    value = y.detach().clone()
    if y.shape == slopes.shape and y.requires_grad:
        y.backward(slopes.to(y.dtype))
    grads = {gradient("x"): x.grad, gradient("weights"): weights.grad, gradient("experts"): matrices.grad}
    return {"y": value, **grads, "seen": Aside({"calls": calls})}


def by_experts(rows: Tensor, which: Tensor, matrices: Tensor) -> Tensor:
    """tanh(row M_e), expert by expert. All take part in the graph, those without rows too."""
    out = torch.zeros_like(rows)
    for e, matrix in enumerate(matrices):
        here = (which == e).nonzero().flatten()
        out = out.index_add(0, here, torch.tanh(rows[here] @ matrix))
    return out


def why(counted: int, rows: int, chosen: Tensor, incoming: int) -> str:
    """What a call of all_to_all has mistaken, whose counts add up to another number of rows than it was given."""
    out, tokens = chosen.numel(), len(chosen)
    if (counted, rows) == (incoming, out):
        return " (those are the rows that come in: on the way out, send_counts come first)"
    if (counted, rows) == (out, incoming):
        return " (on the way back the counts swap: what came in is what is sent)"
    if rows == tokens:
        return " (that is a row for each token: it takes one for each of its k choices)"
    return ""


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    """All experts in one place: y_t = sum_j w_tj expert_tj(x_t), with the gradients."""
    matrices = torch.cat([args[3] for args in inputs]).requires_grad_()
    found, moved = [], []
    for x, chosen, weights, _, slopes, _, moves in inputs:
        x, weights = x.clone().requires_grad_(moves), weights.clone().requires_grad_()
        results = torch.tanh(torch.einsum("td,edf->tef", x, matrices))
        y = torch.einsum("tkf,tk->tf", results[torch.arange(len(x))[:, None], chosen], weights)
        y.backward(slopes)
        moved.append((x.grad, weights.grad))
        found.append(y.detach())
    parts = matrices.grad.chunk(n)
    return [
        {"y": y, gradient("x"): of_x, gradient("weights"): of_weights, gradient("experts"): part}
        for y, (of_x, of_weights), part in zip(found, moved, parts, strict=True)
    ]


def by_expert(chosen: Tensor, n: int) -> Tensor:
    """The order in which rows go out."""
    return chosen.flatten().argsort(stable=True)


def of_tokens(x: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    return x[order // weights.shape[1]]


def put_back(rows: Tensor, order: Tensor) -> Tensor:
    return rows[order.argsort()]


def weighed(rows: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """rows (T, k, D) -> (T, D)"""
    return (rows * weights.unsqueeze(-1)).sum(1)


def walked(
    order_of: Callable = by_expert,
    pick: Callable = of_tokens,
    back: Callable = put_back,
    combine: Callable = weighed,
    compute: Callable = by_experts,
) -> Callable[[list[tuple], int], list[dict[str, Tensor]]]:
    """The whole way in one process, with a step replaced by a mistaken one: what each rank would return as y."""

    def found(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        matrices = torch.cat([args[3] for args in inputs])
        ys = []
        for x, chosen, weights, *_ in inputs:
            order = order_of(chosen, n)
            # Whatever was sent, the counts say how many rows are for each expert.
            rows = compute(pick(x, order, weights), chosen.flatten().sort().values, matrices)
            ys.append({"y": combine(back(rows, order).view(*chosen.shape, DIM), weights, order)})
        return ys

    return found


def never_sent_back(inputs: list[tuple], n: int) -> list[dict[str, Tensor | None]]:
    """Each rank takes what its experts made for its own tokens' results; None where the numbers differ."""
    here = EXPERTS // n
    found = []
    for rank, (_, chosen, weights, matrices, *_, incoming, _) in enumerate(inputs):
        rows, which = [], []
        for x, theirs, *_ in inputs:
            order = by_expert(theirs, n)
            mine = order[theirs.flatten()[order] // here == rank]
            rows.append(x[mine // theirs.shape[1]])
            which.append(theirs.flatten()[mine] - rank * here)
        if incoming != chosen.numel():
            return [{"y": None}] * n
        results = by_experts(torch.cat(rows), torch.cat(which), matrices)
        found.append({"y": weighed(put_back(results, by_expert(chosen, n)).view(*chosen.shape, DIM), weights, results)})
    return found
