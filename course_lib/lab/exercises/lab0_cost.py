"""Lab 0: the line through the measured times of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.collectives import cost
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.wrong import alpha_beta
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature


def message_times(noise: float) -> Case:
    """Sizes as in the lab's ping-pong and times of 40 us + 0.4 ns a byte, each off by a factor of about 1 + noise."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        sizes = 4.0 ** torch.arange(1, 13, dtype=torch.float64)
        errors = 1 + noise * torch.rand(len(sizes), generator=rng, dtype=torch.float64)
        return sizes, (40e-6 + 0.4e-9 * sizes) * errors

    return Case(make, label=f"12 measured times, up to {noise:.0%} off" if noise else "12 times on a line")


def alpha_and_beta(answer: Callable, sizes: Tensor, seconds: Tensor) -> Any:
    """The answer's two numbers, to six digits or so: solvers differ in the rest. And how many points they depend on."""
    fit = pair(answer(sizes, seconds))
    if not isinstance(fit, tuple) or len(fit) != 2:
        return fit
    used = 0
    for i in range(len(seconds)):
        other = seconds.clone()
        other[i] *= 1.5
        used += pair(answer(sizes, other)) != fit
    return {**named(fit), "points": used}


def pair(fit: Any) -> Any:
    """Two numbers are two numbers, in a list or a tensor too."""
    if isinstance(fit, Tensor) and fit.numel() == 2:
        fit = fit.flatten().tolist()
    return tuple(fit) if isinstance(fit, list) else fit


@signature
def few_points(e: Evidence) -> str | None:
    """The line depends on a few of the measured points alone."""
    fit, points = (e.returned or e.observed)[0], len(e.inputs[0][0])
    if not isinstance(fit, dict) or 2 * fit["points"] > points:
        return None
    return f"you used {fit['points']} of {points} points: alpha and beta do not depend on the others"


def fitted(fit: Callable) -> Callable[[list[tuple], int], list]:
    return lambda inputs, n: [named(fit(*args)) for args in inputs]


def named(fit: tuple[float, float]) -> dict[str, Tensor]:
    # Less than a femtosecond is what rounding leaves of nothing.
    alpha, beta = (float(value) if abs(value) > 1e-15 else 0.0 for value in fit)
    return {"alpha": torch.tensor(alpha), "beta": torch.tensor(beta)}


FIT_ALPHA_BETA = Exercise(
    name="fit_alpha_beta",
    lab="lab0",
    title="Fit alpha and beta",
    minutes=15,
    difficulty=2,
    reference=cost.fit_alpha_beta,
    worlds=(1,),
    cases=[message_times(0.0), message_times(0.3)],
    call=alpha_and_beta,
    signatures=[
        few_points,
        looks_like(
            fitted(alpha_beta.plain),
            "plain_least_squares",
            "these are the alpha and beta of plain least squares, in which the largest messages outweigh all others. "
            "Divide each equation by its time first.",
        ),
        looks_like(
            fitted(alpha_beta.half_divided),
            "half_divided",
            "only a part of each equation is divided by its time. What stands before alpha is divided, too.",
        ),
        looks_like(
            fitted(alpha_beta.swapped), "swapped", "the numbers are right, their order is not: alpha, then beta."
        ),
        looks_like(
            fitted(alpha_beta.bandwidth), "bandwidth", "that is 1 / beta, the bandwidth. beta is the time of one byte."
        ),
        looks_like(
            fitted(alpha_beta.right_side_not_divided),
            "right_side_not_divided",
            "the left side of each equation is divided by its time, the right side is not: t / t is 1.",
        ),
    ],
    hints=[
        "Two unknowns, twelve equations `alpha + beta * size = t`: `torch.linalg.lstsq` finds what fits best.",
        "Divided by its `t`, each equation reads:\n"
        "    alpha * (1 / t)  +  beta * (size / t)  =  1\n"
        "so the matrix has a column of 1 / t and a column of size / t, and the right side is all ones.",
        "`system = torch.stack([1 / seconds, sizes / seconds], dim=1)`, then `torch.linalg.lstsq(system, ones)`. Its "
        "`.solution` holds alpha and beta.",
    ],
    wrong=[
        Wrong(alpha_beta.plain, "plain least squares"),
        Wrong(alpha_beta.half_divided, "only a part of each equation"),
        Wrong(alpha_beta.swapped, "their order is not: alpha, then beta"),
        Wrong(alpha_beta.bandwidth, "that is 1 / beta, the bandwidth"),
        Wrong(alpha_beta.through_the_ends, "used 2 of 12 points: alpha and beta do not"),
        Wrong(alpha_beta.least_and_largest, "you used 2 of 12 points"),
        Wrong(alpha_beta.right_side_not_divided, "the right side is not: t / t is 1"),
        Wrong(alpha_beta.without_alpha, "the answer, `alpha`"),
    ],
)
