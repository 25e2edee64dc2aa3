"""Which algorithm is the fastest, and where does that change? No picture, no widget: only times and sizes.

A model gives the time of one algorithm: model(size, ranks, alpha, beta) -> seconds, for a message of `size` bytes,
alpha seconds a message and beta seconds a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2
from typing import NamedTuple

Model = Callable[[float, int, float, float], float]

PER_OCTAVE = 4  # places per doubling of the size where the winner is looked up
A_TIE = 1e-9  # closer than this, relatively, two times are equal, and the model named first wins


class Reign(NamedTuple):
    """The range of message sizes, in bytes, in which one algorithm is the fastest."""

    name: str
    smallest: float
    largest: float


def sizes_between(low: float, high: float) -> list[float]:
    """Sizes in bytes from low to high, evenly spaced on a logarithmic scale."""
    steps = ceil(PER_OCTAVE * log2(high / low) - 1e-9)
    return [low * 2 ** (i / PER_OCTAVE) for i in range(steps)] + [float(high)]


def curves(
    models: Mapping[str, Model], sizes: list[float], ranks: int, alpha: float, beta: float
) -> dict[str, list[float]]:
    """name -> seconds at each of the sizes."""
    return {name: [model(size, ranks, alpha, beta) for size in sizes] for name, model in models.items()}


def winner(models: Mapping[str, Model], size: float, ranks: int, alpha: float, beta: float) -> str:
    """The name of the fastest at this size."""
    best, best_time = "", float("inf")
    for name, model in models.items():
        time = model(size, ranks, alpha, beta)
        if not best or time < best_time * (1 - A_TIE):
            best, best_time = name, time
    return best


def reigns(models: Mapping[str, Model], low: float, high: float, ranks: int, alpha: float, beta: float) -> list[Reign]:
    """Who is the fastest from low to high bytes, in order of size. The borders are the crossovers."""
    sizes = sizes_between(low, high)
    names = [winner(models, size, ranks, alpha, beta) for size in sizes]
    found = [Reign(names[0], low, high)]
    for left, right, name in zip(sizes, sizes[1:], names[1:], strict=False):
        if name != found[-1].name:
            # A new winner somewhere in this step. Should two borders lie so close, only the last one is seen.
            border = _border(lambda size: winner(models, size, ranks, alpha, beta) == name, left, right)  # noqa: B023
            found[-1] = found[-1]._replace(largest=border)
            found.append(Reign(name, border, high))
    return found


def _border(is_new: Callable[[float], bool], left: float, right: float) -> float:
    """Halve the interval until its ends differ by a ten-millionth."""
    while right / left > 1 + 1e-7:
        middle = (left * right) ** 0.5
        left, right = (left, middle) if is_new(middle) else (middle, right)
    return right


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
