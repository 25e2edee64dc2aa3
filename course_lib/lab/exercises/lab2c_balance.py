"""Lab 2c: the balance loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong
from course_lib.lab.exercises.lab2c_wanted import returns
from course_lib.lab.exercises.wrong import balance_loss as balances
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.expert import simple

EXPERTS = 6
EVERYBODY = "A rank without tokens takes part in the sum of the counts all the same."


def tokens(label: str, count: Callable[[int, int], int], k: int) -> Case:
    """Each rank's router likes others best; nobody chooses expert 0, and the last ones are chosen more often."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        T = count(rank, n)
        logits = torch.randn(T, EXPERTS, generator=rng) + torch.linspace(0, 1, EXPERTS).roll(rank)
        wanted = torch.randn(T, EXPERTS - 1, generator=rng) + torch.linspace(0, 2, EXPERTS - 1)
        return logits.softmax(-1), 1 + wanted.topk(k).indices

    return Case(make, label=label)


def balanced(answer: Callable, probabilities: Tensor, chosen: Tensor, **group: Any) -> Any:
    """By how much each probability moves what the answer returns, and the mean over the ranks of what it returns."""
    probabilities = probabilities.clone().requires_grad_()
    share = answer(probabilities, chosen, **group)
    scalar = isinstance(share, Tensor) and share.shape == ()
    if scalar and share.requires_grad:
        share.backward()
    dist.barrier(**group)  # who has returned early waits here, where the check knows that it has
    mean = share.detach().to(probabilities.dtype).clone() if scalar else torch.tensor(float("nan"))
    dist.all_reduce(mean, **group)
    if not scalar:
        return share
    grad = probabilities.grad
    if grad is None and not len(probabilities):
        grad = torch.zeros_like(probabilities)  # there is nothing to move
    return {"gradient": grad, "loss": mean / dist.get_world_size(**group)}


@dataclass
class Facts:
    """What the gradient of one rank may be made of. f, P: of all ranks, (E,). own_f, own_P: of this rank. T: its
    tokens, N: those of all.
    """

    f: Tensor
    P: Tensor
    own_f: Tensor
    own_P: Tensor
    chosen: Tensor
    T: int
    N: int
    n: int
    k: int


def facts_of(inputs: list[tuple], n: int) -> list[Facts]:
    """Means of nothing are 0."""
    counts = [torch.bincount(chosen.flatten(), minlength=EXPERTS).float() for _, chosen in inputs]
    sums = [p.sum(0) for p, _ in inputs]
    tokens, k = [len(p) for p, _ in inputs], inputs[0][1].shape[1]
    N = max(sum(tokens), 1)
    f, P = sum(counts) / (N * k), sum(sums) / N
    return [
        Facts(f, P, c / max(T * k, 1), s / max(T, 1), chosen, T, N, n, k)
        for c, s, T, (_, chosen) in zip(counts, sums, tokens, inputs, strict=True)
    ]


def slopes(row: Callable[[Facts], Tensor]) -> Callable[[list[tuple], int], list[dict[str, Tensor]]]:
    """row(facts): the gradient of each token's probabilities, (E,) or (T, E)."""
    return lambda inputs, n: [{"gradient": row(facts).expand(facts.T, EXPERTS)} for facts in facts_of(inputs, n)]


def right(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    loss = EXPERTS * (facts_of(inputs, n)[0].f * facts_of(inputs, n)[0].P).sum()
    return [{**rank, "loss": loss} for rank in slopes(lambda x: x.n * EXPERTS * x.f / x.N)(inputs, n)]


def gradient(row: Callable[[Facts], Tensor], name: str, sentence: str) -> Signature:
    """A signature: the gradient of each token's probabilities is row(facts)."""
    return looks_like(slopes(row), name, sentence, part="gradient")


def of_chosen(x: Facts) -> Tensor:
    return torch.zeros(x.T, EXPERTS).scatter(1, x.chosen, 1.0) * (x.n * EXPERTS * x.f / x.N)


@signature
def without_a_graph(e: Evidence) -> str | None:
    if e.where != "`gradient`" or any(e.observed[r] is not None for r in e.wrong):
        return None
    return (
        "the loss that you return has no graph behind it: it moves nothing. Counts have no gradient, however they are "
        "multiplied; what carries one is P, the mean of the probabilities as they came in"
    )


@signature
def soft_counts(e: Evidence) -> str | None:
    """Probabilities in place of counts: P times P."""
    if e.where != "`gradient`" or not e.comparable:
        return None
    facts = facts_of(e.inputs, e.n)
    for shares in ([x.P for x in facts], [x.own_P for x in facts]):
        for scale in (1.0, 2.0):
            rows = [scale * e.n * EXPERTS * P / facts[0].N for P in shares]
            if all(same(e.observed[r], rows[r].expand_as(e.observed[r])) for r in e.wrong):
                return (
                    "f is made of probabilities. It is the part of the choices that fell on each expert, counted: what "
                    "the load is, not what the router leans to"
                )
    return None


@signature
def zero_by_zero(e: Evidence) -> str | None:
    """No token on any rank, and what is returned is not finite."""
    if any(len(p) for p, _ in e.inputs) or e.where != "`loss`" or bool(e.observed[0].isfinite()):
        return None
    return "0 choices are divided by 0, which is NaN. Divide by at least 1, after the numbers have been added"


@signature
def whole_loss_on_each(e: Evidence) -> str | None:
    if e.where != "`loss`" or not e.comparable or not all(same(e.observed[r], e.n * e.expected[r]) for r in e.wrong):
        return None
    return (
        f"the gradients are right, but the mean over the ranks of what you return is {e.n} times the loss: P was "
        "summed over the ranks, and multiplied by n as a share is. Only the counts need travel"
    )


@signature
def off_by_a_constant(e: Evidence) -> str | None:
    if e.where != "`loss`" or not e.comparable:
        return None
    have, want = float(e.observed[e.wrong[0]]), float(e.expected[e.wrong[0]])
    return (
        f"the gradients are right, the loss is not: the mean over the ranks of what you return is {have:.4g}, the loss "
        f"is {want:.4g}. Something without a gradient is added to it, taken away, or left out"
    )


BALANCE_LOSS = Exercise(
    name="balance_loss",
    lab="lab2c",
    title="The balance loss",
    minutes=20,
    difficulty=2,
    reference=simple.balance_loss,
    cases=[
        tokens("3 tokens on rank 0, 5 on rank 1, and so on, k = 2", lambda rank, n: 3 + 2 * rank, 2),
        tokens("6 tokens on each rank, k = 1", lambda rank, n: 6, 1),
        tokens("no tokens on the last rank, k = 2", lambda rank, n: 0 if rank == n - 1 else 4 + rank, 2),
        tokens("no tokens on any rank", lambda rank, n: 0, 2),
    ],
    expected=right,
    call=balanced,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        returns("a scalar, a tensor of shape ()"),
        without_a_graph,
        gradient(
            lambda x: EXPERTS * x.own_f / max(x.T, 1),
            "mean_of_products",
            "each rank multiplies its own f and its own P, and the mean over the ranks of such products is another "
            "loss: a rank's few tokens need not be even by themselves. Count the choices of all ranks, and divide the "
            "sum of the probabilities by the tokens of all.",
        ),
        gradient(
            lambda x: x.n * EXPERTS * x.own_f / x.N,
            "own_counts",
            "f is counted on each rank alone. It is the part of the choices of all ranks: add up the counts.",
        ),
        gradient(
            lambda x: EXPERTS * x.f / max(x.T, 1),
            "own_tokens",
            "f is right, but P is the mean over this rank's own tokens. That gives a mean of means: a token counts for "
            "more on a rank that has few. Divide by the tokens of all ranks, and multiply by n.",
        ),
        gradient(
            lambda x: EXPERTS * x.f / x.N,
            "without_n",
            "every gradient is 1/n of what it should be. The gradients will be averaged over the ranks, which divides "
            "them by n: multiply by n here.",
        ),
        gradient(
            lambda x: x.n**2 * EXPERTS * x.f / x.N, "n_twice", "multiplied by n, the number of ranks, once too often."
        ),
        gradient(
            lambda x: x.n * x.f / x.N,
            "without_E",
            "E is missing: without it the loss of an even router is 1/E, and shrinks as experts are added.",
        ),
        gradient(
            lambda x: x.n * x.k * EXPERTS * x.f / x.N,
            "k_times",
            "k times too large: f is divided by the number of tokens. Each makes k choices; the parts must add up to "
            "1.",
        ),
        gradient(
            lambda x: x.n * EXPERTS * x.f / (x.N * x.k),
            "kth_part",
            "1/k of what it should be: the sum of the probabilities is divided by the number of choices. P is a mean "
            "over tokens.",
        ),
        gradient(
            lambda x: x.n * EXPERTS * x.f * x.k,
            "counts_not_divided",
            "f is a count. Divide it by the number of all choices.",
        ),
        gradient(
            lambda x: x.n * EXPERTS * x.f,
            "P_not_divided",
            "P is a sum. Divide it by the number of tokens of all ranks.",
        ),
        gradient(
            of_chosen,
            "of_chosen_alone",
            "only the probabilities of the chosen experts count. P is the mean of *all* probabilities: a token leans "
            "to an expert whether it chose it or not.",
        ),
        soft_counts,
        zero_by_zero,
        whole_loss_on_each,
        off_by_a_constant,
    ],
    hints=[
        "Two vectors of E numbers: f is counted, P is a mean of what the router gave. Which of the two must travel "
        "before it can be multiplied, and which may stay a share, each rank its own?",
        "Two ranks, two experts, k = 1; rank 0 has 1 token, rank 1 has 3:\n"
        "              counts      all ranks'    f\n"
        "    rank 0    1 0         3 1           3/4 1/4\n"
        "    rank 1    2 1         3 1           3/4 1/4\n"
        "P is a sum over 4 tokens, divided by 4. Each rank has its own part of that sum, and that part times n is its "
        "share: the mean over the ranks divides by n.",
        "`counts = torch.bincount(chosen.flatten(), minlength=n_experts)`, then `dist.all_reduce(counts, group=group)`."
        " There are `counts.sum()` choices, at least 1 to divide by, and a k-th as many tokens. "
        "`n * probabilities.sum(0) / tokens` is the share of P.",
    ],
    advice={"calls_left_out": EVERYBODY, "calls_differ": EVERYBODY},
    wrong=[
        Wrong(balances.of_counts_alone, "Counts have no gradient, however"),
        Wrong(balances.detached, "as they came in"),
        Wrong(balances.mean_of_products, "such products is another loss"),
        Wrong(balances.own_counts, "f is counted on each rank alone"),
        Wrong(balances.own_tokens, "P is the mean over this rank's own tokens"),
        Wrong(balances.without_n, "multiply by n here"),
        Wrong(balances.n_twice, "once too often"),
        Wrong(balances.without_E, "E is missing"),
        Wrong(balances.k_times, "k times too large"),
        Wrong(balances.kth_part, "1/k of what it should be"),
        Wrong(balances.counts_not_divided, "f is a count"),
        Wrong(balances.P_not_divided, "P is a sum. Divide it by"),
        Wrong(balances.of_chosen_alone, "only the probabilities of the chosen"),
        Wrong(balances.soft_counts, "f is made of probabilities"),
        Wrong(balances.leaving_without_tokens, EVERYBODY),
        Wrong(balances.without_clamp, "0 choices are divided by 0"),
        Wrong(balances.whole_loss_n_times, "Only the counts need travel"),
        Wrong(balances.less_one, "Something without a gradient is added"),
        Wrong(balances.as_a_number, "Wanted: a scalar, a tensor"),
        Wrong(balances.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="Of all this, E whole numbers travel. The gradient on a probability is f_e times a constant: it pushes "
    "down whom many chose, and leaves alone whom nobody did.",
)
