"""The pictures of Lab 0: what each rank's link carries, and the time of a message against its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from course_lib.lab.widgets.cost_curves import size_text, time_text
from course_lib.spmd import Traffic
from course_lib.timeline import picture
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, QUIET, SKY, VERMILION, Picture

_LINES = ((BLUE, "o", "-"), (VERMILION, "s", (0, (6, 2))), (GREEN, "^", (0, (6, 2, 1.5, 2))))
_MB = 1e6


def link_load(traffic: Mapping[str, Sequence[Traffic]]) -> Picture:
    """One panel per algorithm, one pair of bars per rank: megabytes sent and received.

    traffic: name of the algorithm -> what each rank moved.
    """
    ranks = len(next(iter(traffic.values())))
    figure = Picture(max(4.2, 1.1 + 3.6 * len(traffic)), 1.1 + 0.5 * ranks)
    panels = figure.subplots(1, len(traffic), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (name, moved) in zip(panels, traffic.items(), strict=True):
        sent = [t.sent / _MB for t in moved]
        received = [t.received / _MB for t in moved]
        rows = range(ranks)
        ax.barh([r - 0.19 for r in rows], sent, 0.36, color=BLUE, label="sent")
        ax.barh([r + 0.19 for r in rows], received, 0.36, color=SKY, hatch="////", edgecolor="white", label="received")
        for row, (out, into) in enumerate(zip(sent, received, strict=True)):
            for value, shift in ((out, -0.19), (into, 0.19)):
                ax.text(value, row + shift, f" {value:.3g}", va="center", fontsize=8, color=INK)
        picture.plain_axes(ax)
        picture.title(ax, name)
        ax.set_xlabel("MB through the link of the rank", fontsize=9, color=INK)
        ax.set_yticks(rows, [f"rank {r}" for r in rows])
        ax.tick_params(axis="y", length=0)
        ax.margins(x=0.14)
    panels[0].invert_yaxis()
    panels[-1].legend(frameon=False, fontsize=9, loc="lower right", labelcolor=INK)
    return figure


def message_cost(sizes: Sequence[float], seconds: Sequence[float], alpha: float, beta: float) -> Picture:
    """Measured times of one message (points) and the line alpha + beta * size through them. sizes: bytes."""
    figure = Picture(7.6, 4.0)
    ax = figure.add_subplot()
    ax.plot(sizes, seconds, "o", color=BLUE, markersize=7, label="measured")
    smooth = np.geomspace(min(sizes), max(sizes), 200)
    line = [alpha + beta * size for size in smooth]
    ax.plot(smooth, line, color=VERMILION, linewidth=2, label=f"{time_text(alpha)} + size / {1e-9 / beta:.2g} GB/s")
    both = alpha / beta
    ax.axvline(both, color=QUIET, linewidth=0.9, zorder=0)
    ax.annotate(f"half and half:\n{size_text(both)}", (both, 0.97), (5, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=9, color=INK)  # fmt: skip
    picture.title(ax, "The time of one message, by its size")
    _log_scales(ax, "message")
    ax.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=INK)
    return figure


def predicted_and_measured(
    sizes: Sequence[float], predicted: Mapping[str, Callable[[float], float]], measured: Mapping[str, Sequence[float]]
) -> Picture:
    """For each algorithm, the model's time (a line) and the measured times (markers).

    sizes: bytes. predicted: name -> seconds for a size in bytes. measured: name -> seconds at each of the sizes.
    """
    figure = Picture(7.6, 4.2)
    ax = figure.add_subplot()
    for (name, seconds), (color, marker, dashes) in zip(measured.items(), _LINES[: len(measured)], strict=True):
        ax.plot(sizes, seconds, marker, color=color, markersize=7, label=f"{name}, measured")
        smooth = np.geomspace(min(sizes), max(sizes), 200)
        times = [predicted[name](size) for size in smooth]
        ax.plot(smooth, times, color=color, linestyle=dashes, linewidth=1.8, label=f"{name}, by the model")
    picture.title(ax, "All-reduce: predicted and measured")
    _log_scales(ax, "tensor")
    ax.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=INK)
    return figure


def _log_scales(ax: Axes, what: str) -> None:
    picture.plain_axes(ax, sides=("left", "bottom"))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator([2**power for power in range(2, 31, 4)]))
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_text(x)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: time_text(y)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.grid(axis="y", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(f"size of the {what}", fontsize=9, color=INK)
    ax.set_ylabel("time", fontsize=9, color=INK)
