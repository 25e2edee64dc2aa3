"""Which all-reduce is the fastest, and where does that change? No picture, no widget: only times and sizes.

By the model of course_lib.collectives.cost each algorithm's time is a straight line in the size of the tensor. The
fastest at each size is the lowest line there. As the size grows, lines of few steps give way to lines of few bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from course_lib.collectives.cost import COSTS, Cost, crossover


class Reign(NamedTuple):
    """The range of tensor sizes, in bytes, in which one algorithm is the fastest."""

    name: str
    smallest: float
    largest: float


def all_reduce_costs(ranks: int) -> dict[str, Cost]:
    """The algorithms of the course, by name. (Without "direct", whose line is the ring's.)"""
    return {
        name: cost(ranks)
        for (collective, name), cost in COSTS.items()
        if collective == "all_reduce" and name != "direct"
    }


def reigns(costs: Mapping[str, Cost], low: float, high: float, alpha: float, beta: float) -> list[Reign]:
    """Who is the fastest from low to high bytes, in order of size; the borders are the crossovers.

    alpha: seconds a message, beta: seconds a byte, more than 0. Of two that are always equal the first one counts.
    """
    found: list[Reign] = []
    size, name = low, min(costs, key=lambda name: costs[name].seconds(low, alpha, beta))
    while True:
        # The next winner is the first of those with fewer bytes to get below the present one.
        ahead = []
        for other, cost in costs.items():
            border = crossover(costs[name], cost, alpha, beta)
            if border is not None:
                ahead.append((border, cost.volume, other))
        border, _, successor = min(ahead, default=(high, 0, ""))
        if border >= high:
            return [*found, Reign(name, size, high)]
        found.append(Reign(name, size, border))
        size, name = border, successor


def size_text(size: float) -> str:
    """A size as a person writes it, in powers of 1024: 512 B, 38 KB, 1.5 MB."""
    units = ("B", "KB", "MB", "GB", "TB")
    power = 0
    while size >= 999.5 and power < len(units) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.2g} {units[power]}" if size < 99.5 else f"{size:.0f} {units[power]}"


def time_text(seconds: float) -> str:
    """A time as a person writes it: 850 ns, 52 µs, 3.1 ms."""
    units = ("ns", "µs", "ms", "s")
    value, power = seconds * 1e9, 0
    while value >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.2g} {units[power]}" if value < 99.5 else f"{value:,.0f} {units[power]}"
