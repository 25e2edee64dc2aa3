"""The broadcast stepper: choose ranks and root, go through the rounds, see who has the data and who sends it on."""

from __future__ import annotations

from ipywidgets import IntSlider
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from course_lib.lab.widgets.stage import Stage, slider
from course_lib.lab.widgets.tree import State, rounds, run
from course_lib.timeline import picture
from course_lib.timeline.picture import BLUE, FAINT, INK, QUIET, VERMILION, Picture


def tree_stepper(ranks: int = 8, root: int = 0, round: int = 0) -> Stage:
    """The stepper, standing at `round`. ranks: 2 to 16. Without a front end it is a picture of all rounds."""
    if not 2 <= ranks <= 16:
        raise ValueError(f"The stepper draws 2 to 16 ranks; {ranks} were asked for.")
    ranks_slider = slider(IntSlider, "ranks", ranks, min=2, max=16)
    root_slider = slider(IntSlider, "root", root, min=0, max=ranks - 1)
    round_slider = slider(IntSlider, "round", round, min=0, max=rounds(ranks))
    return Stage(
        name="Broadcast along a tree",
        controls={"ranks": ranks_slider, "root": root_slider, "round": round_slider},
        draw=draw,
        words=lambda ranks, root, round: run(ranks, root)[round].text(),
        still=lambda: draw(ranks_slider.value, root_slider.value, round_slider.max),
        limits=lambda ranks, root, round: {"root": ranks - 1, "round": rounds(ranks)},
    )


def draw(ranks: int, root: int, round: int) -> Picture:
    """One column per rank, one row per round; rows after `round` are still empty."""
    states = run(ranks, root)
    figure = Picture(max(5.6, 1.4 + 0.52 * ranks), 1.4 + 0.72 * len(states))
    ax = figure.add_subplot()
    picture.plain_axes(ax, sides=())
    ax.set_xlim(-0.6, ranks - 0.4)
    ax.set_ylim(len(states) - 0.6, -0.5)
    ax.set_xticks(range(ranks), ["rank 0", *(str(rank) for rank in range(1, ranks))])
    ax.set_yticks(range(len(states)), ["start", *(f"round {state.round}" for state in states[1:])])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    for state in states:
        _draw_row(ax, state, shown=state.round <= round)
    picture.title(ax, f"Broadcast from rank {root} to {ranks} ranks", pad=24)
    labels = ("has the data", "has just got it", "has not")
    handles = [_dots(ax, [], 0, *look) for look in (HAS, NEW, HAS_NOT)]
    ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(-0.01, 0), ncols=3, frameon=False, fontsize=8.5,
              labelcolor=QUIET)  # fmt: skip
    return figure


# marker, face, edge: shape and filling tell them apart in grey
HAS = ("o", BLUE, BLUE)
NEW = ("s", VERMILION, VERMILION)
HAS_NOT = ("o", "white", "#AAAAAA")


def _draw_row(ax: Axes, state: State, shown: bool) -> None:
    ax.axhline(state.round, color=FAINT, linewidth=1, zorder=0)
    if not shown:
        return
    new = {receiver for _, receiver in state.moves}
    _dots(ax, sorted(state.have - new), state.round, *HAS)
    _dots(ax, sorted(new), state.round, *NEW)
    _dots(ax, sorted(set(range(state.ranks)) - state.have), state.round, *HAS_NOT)
    for sender, receiver in state.moves:
        start, end = (sender, state.round - 1), (receiver, state.round)
        arrow = FancyArrowPatch(start, end, arrowstyle="-|>", shrinkA=8, shrinkB=8, mutation_scale=12, color=INK,
                                linewidth=1.3, zorder=2)  # fmt: skip
        ax.add_patch(arrow)


def _dots(ax: Axes, ranks: list[int], row: int, marker: str, face: str, edge: str):
    (dots,) = ax.plot(ranks, [row] * len(ranks), linestyle="", marker=marker, markersize=11, markerfacecolor=face,
                      markeredgecolor=edge, markeredgewidth=1.5, zorder=3)  # fmt: skip
    return dots
