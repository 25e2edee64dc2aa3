"""What a collective should cost: the alpha-beta model.

A message of m bytes takes alpha + beta * m seconds: alpha to get it under way (latency, in s), beta for each byte
(1 / bandwidth, in s/byte). An algorithm is a number of steps that follow one another, and a number of bytes that pass
the busiest rank's link one after the other:

    seconds = steps * alpha + volume * nbytes * beta        nbytes: the whole tensor, as nccl-tests counts it

Small tensors are ruled by the first term, large ones by the second. So the algorithm of few steps wins below some size
and the one of few bytes above it. The time to add what arrives is in beta: each byte of a reduction is added once.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), for the
formulas; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), for the
ring and for why no all-reduce sends less than 2(n-1)/n of the tensor; nccl-tests' PERFORMANCE.md for the bandwidths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """steps: latencies in a row. volume: bytes in a row through the busiest link, as a multiple of the tensor's."""

    steps: int
    volume: float

    def seconds(self, nbytes: int, alpha: float, beta: float) -> float:
        return self.steps * alpha + self.volume * nbytes * beta

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.steps + other.steps, self.volume + other.volume)


def _naive_all_reduce(n: int) -> Cost:
    return Cost(2 * (n - 1), 2 * (n - 1))


def _ring(n: int) -> Cost:
    return Cost(n - 1, (n - 1) / n)


def _tree(n: int) -> Cost:
    rounds = (n - 1).bit_length()
    return Cost(rounds, rounds)


def _halving(n: int) -> Cost:
    """Among the p ranks of the largest power of two."""
    p = 1 << (n.bit_length() - 1)
    return Cost(p.bit_length() - 1, (p - 1) / p)


def _fold(n: int, volume: float) -> Cost:
    """What the ranks beyond a power of two add: a message before and one after, of `volume` tensors together."""
    return Cost(0, 0) if n & (n - 1) == 0 else Cost(2, volume)


# (collective, algorithm) -> n -> Cost. The names are those of course_lib.collectives.
COSTS: dict[tuple[str, str], Callable[[int], Cost]] = {
    ("all_reduce", "naive"): _naive_all_reduce,
    ("all_reduce", "ring"): lambda n: _ring(n) + _ring(n),
    ("all_reduce", "direct"): lambda n: _ring(n) + _ring(n),  # as many messages: the model cannot see that none waits
    ("all_reduce", "halving"): lambda n: _halving(n) + _halving(n) + _fold(n, 2),
    ("all_reduce", "tree"): lambda n: _tree(n) + _tree(n),
    ("reduce_scatter", "ring"): _ring,
    ("reduce_scatter", "halving"): lambda n: _halving(n) + _fold(n, 1 + 1 / n),
    ("reduce_scatter", "fp32"): _ring,
    ("all_gather", "ring"): _ring,
    ("all_gather", "halving"): lambda n: _halving(n) + _fold(n, 1 + 1 / n),
    ("broadcast", "tree"): _tree,
    ("reduce", "tree"): _tree,
    ("gather", "tree"): lambda n: Cost((n - 1).bit_length(), (n - 1) / n),
    ("scatter", "tree"): lambda n: Cost((n - 1).bit_length(), (n - 1) / n),
    ("all_to_all", "direct"): _ring,
}


def cost(collective: str, algorithm: str, n: int) -> Cost:
    """The cost of an algorithm on n ranks. Raises ValueError for a name that is not in COSTS."""
    if (collective, algorithm) not in COSTS:
        known = ", ".join(f"{name} {how}" for name, how in COSTS)
        raise ValueError(f"no cost is known of {collective} {algorithm}: choose one of {known}")
    return COSTS[collective, algorithm](n)


def two_level(nodes: int, per_node: int) -> tuple[Cost, Cost]:
    """Two-level all-reduce: (within the nodes, across them). Each has an alpha and a beta of its own."""
    across = cost("all_reduce", "ring", nodes)
    return _ring(per_node) + _ring(per_node), Cost(across.steps, across.volume / per_node)


@dataclass(frozen=True)
class Fit:
    """alpha (s) and beta (s/byte) that explain some measurements, and how well they do."""

    alpha: float
    beta: float
    relative_error: float  # root mean square of (predicted - measured) / measured
    r2: float  # share of the measurements' spread that the model explains, each weighed as in the fit; 1 is perfect

    def seconds(self, cost: Cost, nbytes: int) -> float:
        return cost.seconds(nbytes, self.alpha, self.beta)

    def __str__(self) -> str:
        speed = f"{1e-9 / self.beta:.2f} GB/s" if self.beta else "no limit seen"
        beta = f"beta {self.beta * 1e9:.2f} ns/byte ({speed})"
        return f"alpha {self.alpha * 1e6:.0f} us, {beta}, off by {self.relative_error:.0%}"


def fit(samples: Sequence[tuple[Cost, int, float]]) -> Fit:
    """Fit alpha and beta to measurements (cost, nbytes, seconds), of one algorithm or of several.

    Least squares of the *relative* error: plain least squares would look at the largest tensor only, and alpha,
    which is a thousandth of its time, would come out as noise. A negative answer means that the term is too small
    to be seen: it is set to 0 and the other fitted alone. Raises ValueError when the samples cannot tell the two
    apart.
    """
    seconds = np.array([time for _, _, time in samples])
    terms = np.array([(cost.steps, cost.volume * nbytes) for cost, nbytes, _ in samples], dtype=float)
    if len(samples) < 2 or np.linalg.matrix_rank(terms / terms.max(axis=0, initial=1e-300)) < 2:
        raise ValueError(
            f"{len(samples)} samples cannot tell alpha from beta: measure two sizes or more, on 2 ranks or more"
        )
    relative = terms / seconds[:, None]
    answer = np.linalg.lstsq(relative, np.ones(len(samples)), rcond=None)[0]
    if answer.min() < 0:
        seen = int(answer.argmax())
        column = relative[:, seen]
        answer = np.zeros(2)
        answer[seen] = column.sum() / (column @ column)
    residual = relative @ answer - 1
    weights = 1 / seconds**2
    spread = weights @ (seconds - np.average(seconds, weights=weights)) ** 2
    return Fit(
        alpha=float(answer[0]),
        beta=float(answer[1]),
        relative_error=math.sqrt(np.mean(residual**2)),
        r2=float(1 - residual @ residual / spread) if spread else 1.0,
    )


def fit_alpha_beta(sizes: Tensor, seconds: Tensor) -> tuple[float, float]:
    """The line seconds = alpha + beta * size that fits measured times best. Returns (alpha, beta).

    sizes: (m,) float64, bytes. seconds: (m,) float64. alpha: seconds per message. beta: seconds per byte.

    The times span orders of magnitude, so it is the *relative* errors that should be small: divide each equation
    alpha + beta * size = t by its own t. `torch.linalg.lstsq(A, b).solution` is the (alpha, beta) for which
    A @ (alpha, beta) comes nearest to b. (`fit` does the same for algorithms of several steps, and says how well.)
    """
    # BEGIN SOLUTION
    ones = torch.ones_like(seconds)
    system = torch.stack([ones / seconds, sizes / seconds], dim=1)  # (m, 2)
    alpha, beta = torch.linalg.lstsq(system, ones).solution
    # END SOLUTION
    return alpha.item(), beta.item()


def crossover(few_steps: Cost, few_bytes: Cost, alpha: float, beta: float) -> float | None:
    """The tensor size, in bytes, above which `few_bytes` is faster. None when one of the two is faster at any size."""
    more_steps = few_bytes.steps - few_steps.steps
    more_bytes = few_steps.volume - few_bytes.volume
    if more_steps <= 0 or more_bytes <= 0 or beta == 0:
        return None
    return more_steps * alpha / (more_bytes * beta)
