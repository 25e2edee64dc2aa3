"""Draw the time of each algorithm against the size of the tensor, both logarithmic, and who wins where."""

from __future__ import annotations

from math import log2

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from course_lib.collectives.cost import Cost
from course_lib.lab.widgets.cost_curves import Reign, all_reduce_costs, reigns, size_text, time_text
from course_lib.timeline import picture
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, QUIET, VERMILION, Picture

SMALLEST, LARGEST = 64, 2**30  # bytes
# Colour and dashes both name the algorithm: the dashes survive grey.
LOOKS = (
    (QUIET, (0, (1.5, 1.5))),
    (BLUE, "-"),
    (VERMILION, (0, (6, 2))),
    (GREEN, (0, (6, 2, 1.5, 2))),
)


def draw(ranks: int, alpha: float, beta: float) -> Picture:
    """alpha: seconds a message, beta: seconds a byte."""
    costs = all_reduce_costs(ranks)
    looks = dict(zip(costs, LOOKS, strict=False))
    figure = Picture(8.6, 4.9)
    ax, strip = figure.subplots(2, 1, height_ratios=(12, 1), sharex=True)
    # A quarter of an octave from one point of a curve to the next.
    sizes = [SMALLEST * 2 ** (i / 4) for i in range(4 * round(log2(LARGEST / SMALLEST)) + 1)]
    for name, cost in costs.items():
        color, dashes = looks[name]
        times = [cost.seconds(size, alpha, beta) for size in sizes]
        ax.plot(sizes, times, color=color, linestyle=dashes, linewidth=2.2, label=name)
    winners = reigns(costs, SMALLEST, LARGEST, alpha, beta)
    _draw_crossovers(ax, costs, winners, alpha, beta)
    _draw_winners(strip, {name: color for name, (color, _) in looks.items()}, winners)
    _scales(ax, strip)
    picture.title(ax, f"All-reduce on {ranks} ranks: {time_text(alpha)} a message, {1e-9 / beta:.3g} GB/s")
    ax.legend(loc="upper left", frameon=False, fontsize=9, handlelength=4, labelcolor=INK)
    return figure


def _draw_crossovers(ax: Axes, costs: dict[str, Cost], winners: list[Reign], alpha: float, beta: float) -> None:
    for i, reign in enumerate(winners[:-1]):
        size = reign.largest
        time = costs[reign.name].seconds(size, alpha, beta)
        ax.axvline(size, color=QUIET, linewidth=0.9, zorder=0)
        ax.plot([size], [time], marker="o", markersize=7, color="white", markeredgecolor=INK, zorder=4)
        below = (7, -13 - 13 * (i % 2))  # points; every second one lower, for two crossovers may be close
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        ax.annotate(size_text(size), (size, time), below, textcoords="offset points", fontsize=9, color=INK,
                    fontweight="bold", bbox=ground)  # fmt: skip


def _draw_winners(strip: Axes, colors: dict[str, str], winners: list[Reign]) -> None:
    """A band under the curves: the name of the fastest, where its range has room for it."""
    inches_per_octave = 7.4 / log2(LARGEST / SMALLEST)
    for reign in winners:
        strip.axvspan(reign.smallest, reign.largest, facecolor=colors[reign.name], edgecolor="white", linewidth=1.5)
        if log2(reign.largest / reign.smallest) * inches_per_octave > 0.08 * (len(reign.name) + 1):
            middle = (reign.smallest * reign.largest) ** 0.5
            strip.text(
                middle, 0.5, reign.name, ha="center", va="center", fontsize=8.5, color="white", fontweight="bold"
            )


def _scales(ax: Axes, strip: Axes) -> None:
    for axes, sides in ((ax, ("left", "bottom")), (strip, ())):
        picture.plain_axes(axes, sides=sides)
        axes.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlim(SMALLEST, LARGEST)
    ax.yaxis.set_major_locator(LogLocator(base=10))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: time_text(y)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(axis="y", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelbottom=False, bottom=False)
    ax.set_ylabel("time, by the model", fontsize=9, color=INK)
    strip.set_ylim(0, 1)
    strip.set_yticks([0.5], ["fastest"])
    strip.tick_params(axis="y", length=0)
    strip.xaxis.set_major_locator(FixedLocator([2**power for power in range(6, 31, 4)]))
    strip.xaxis.set_minor_locator(NullLocator())
    strip.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_text(x)))
    strip.set_xlabel("size of the tensor", fontsize=9, color=INK)
