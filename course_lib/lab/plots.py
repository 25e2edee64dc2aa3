"""Pictures that several labs need: curves on top of each other, bars with their values, times side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator
from torch import Tensor

from course_lib.lab import show
from course_lib.timeline import picture
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, QUIET, SKY, VERMILION, Picture

_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
# Wide below, narrow on top: curves that lie on each other can all be seen.
_WIDTHS = (6.0, 3.2, 1.4, 1.4, 1.4, 1.4)
_DASHES = ("-", "-", (0, (4, 3)), (0, (1, 2)), (0, (6, 2, 1, 2)), (0, (2, 4)))


def curves(
    series: Mapping[str, Sequence[float] | tuple[Sequence[float], Sequence[float]]],
    title: str,
    x: str,
    y: str,
    *,
    stacked: bool = False,
    log: str = "",
) -> Picture:
    """Lines over a common axis.

    series: name -> values (over 0, 1, 2, ...), or name -> (x values, y values). x, y: what the axes show, with units.
    stacked: the curves are expected to coincide, so each is drawn thinner than the one under it. log: "x", "y", "xy".
    """
    figure = Picture(7.6, 3.9)
    ax = figure.add_subplot()
    for i, (name, values) in enumerate(series.items()):
        over, points = values if isinstance(values, tuple) else (range(len(values)), values)
        style = {"linewidth": _WIDTHS[i], "linestyle": _DASHES[i]} if stacked else {"linewidth": 1.8}
        ax.plot(over, points, color=_COLORS[i], label=name, marker="o" if len(points) < 12 else None, **style)
    picture.plain_axes(ax, sides=("left", "bottom"))
    picture.title(ax, title)
    if "x" in log:
        ax.set_xscale("log", base=2)
        over = next((values[0] for values in series.values() if isinstance(values, tuple)), [])
        _ticks(ax.xaxis, FixedLocator(list(over)))
    if "y" in log:
        ax.set_yscale("log")
        _ticks(ax.yaxis, LogLocator(base=10, subs=(1, 2, 5)))
    ax.grid(axis="y", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(x, fontsize=9, color=INK)
    ax.set_ylabel(y, fontsize=9, color=INK)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure


def bars(values: Mapping[str, float], title: str, x: str) -> Picture:
    """One bar for each name, with its value. x: what they show, with units."""
    figure = Picture(7.6, 1.1 + 0.42 * len(values))
    ax = figure.add_subplot()
    rows = range(len(values))
    ax.barh(rows, list(values.values()), 0.62, color=BLUE)
    for row, value in enumerate(values.values()):
        ax.text(value, row, " " + show.number(value), va="center", fontsize=9, color=INK)
    picture.plain_axes(ax)
    picture.title(ax, title)
    ax.set_xlabel(x, fontsize=9, color=INK)
    ax.set_yticks(rows, list(values))
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.14)
    ax.invert_yaxis()
    return figure


def magnitudes(values: Mapping[str, Tensor], title: str, marks: Mapping[str, float]) -> Picture:
    """How large numbers are: a histogram for each name over the powers of two, with limits marked.

    values: name -> positive numbers, any shape. marks: words -> where a line stands.
    """
    figure = Picture(7.6, 3.6)
    ax = figure.add_subplot()
    for color, (name, numbers) in zip(_COLORS, values.items(), strict=False):
        powers = numbers.double().log2().flatten().numpy()
        share = np.full(len(powers), 100 / len(powers))
        bins = np.arange(np.floor(powers.min()), np.ceil(powers.max()) + 1)
        ax.hist(powers, bins, weights=share, color=color, alpha=0.55, label=name)
    for words, at in marks.items():
        ax.axvline(np.log2(at), color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)))
        ax.annotate(words, (np.log2(at), 1.0), (3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                    va="top", fontsize=9, color=INK)  # fmt: skip
    picture.plain_axes(ax, sides=("left", "bottom"))
    picture.title(ax, title, pad=30)
    ax.margins(y=0.15)
    ax.set_xlabel("power of two", fontsize=9, color=INK)
    ax.set_ylabel("% of the numbers", fontsize=9, color=INK)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2)
    return figure


def _ticks(axis: Axis, locator: Locator) -> None:
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
