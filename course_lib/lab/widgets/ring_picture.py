"""Draw a state of the ring: one row per rank, one column per chunk, an arrow for every message.

A chunk is a box with one bar per share that is summed in it; the bar of rank i is always the i-th, so that a reader
sees the sum fill up. Complete boxes have a thick frame. Copies that only wait to be overwritten are pale.
"""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from course_lib.lab.widgets.ring import ALL_GATHER, REDUCE_SCATTER, State, run
from course_lib.timeline import picture
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, QUIET, SKY, VERMILION, YELLOW, Picture

GREY = "#777777"
# One colour per share. The place of a bar says the same, so nothing hangs on telling eight colours apart.
SHARES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)
DARK = (BLUE, GREEN, VERMILION, GREY)  # these take white letters
WIDE, HIGH = 0.80, 0.62  # a box, in columns and rows
PALE = 0.25
COMPLETE = "#111111"


def draw_step(ranks: int, step: int) -> Picture:
    """The picture of the stepper."""
    state = run(ranks)[step]
    figure = Picture(max(5.2, 1.0 + 1.05 * ranks), 1.5 + 0.62 * ranks)
    ax = figure.add_subplot()
    _draw_state(ax, state, scale=1.0)
    ax.set_xticks(range(ranks), [f"chunk {chunk}" for chunk in range(ranks)])
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.xaxis.tick_top()
    _write_shares(ax, state)
    picture.title(ax, _heading(state), pad=22)
    ax.legend(handles=_keys(), loc="upper left", bbox_to_anchor=(-0.01, 0), ncols=3, frameon=False, fontsize=8.5,
              labelcolor=QUIET, handlelength=1.4)  # fmt: skip
    return figure


def draw_all(ranks: int) -> Picture:
    """Every step as a small picture: reduce-scatter above, all-gather below."""
    panel = min(2.4, 9.2 / ranks)  # inches
    figure = Picture(max(7.0, panel * ranks), 2 * (0.85 * panel + 0.45) + 0.4)
    grid = figure.subplots(2, ranks, squeeze=False)
    for state in run(ranks):
        row, column = (0, state.step) if state.step < ranks else (1, state.step - ranks + 1)
        _draw_state(grid[row][column], state, scale=min(0.7, 2.4 / ranks))
        grid[row][column].set_title(f"step {state.step}" if state.step else "start", fontsize=9, color=INK, pad=3)
        if column == 0 or (row, column) == (1, 1):  # the first panel of each row: room for the names of its rows
            grid[row][column].set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=7)
        grid[row][column].set_xticks(range(ranks), [f"c{chunk}" for chunk in range(ranks)], fontsize=min(7, 42 / ranks))
    key = grid[1][0]
    _bare(key)
    key.legend(handles=_keys(), loc="center", fontsize=8 if ranks < 6 else 6, frameon=False, labelcolor=INK,
               handlelength=1.2, borderpad=0, borderaxespad=0)  # fmt: skip
    for row, phase in enumerate((REDUCE_SCATTER, ALL_GATHER)):
        grid[row][0].set_ylabel(phase, fontsize=10, fontweight="bold", color=INK)
    figure.suptitle(f"Ring all-reduce on {ranks} ranks: one row per rank, one column per chunk (c)",
                    x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)  # fmt: skip
    return figure


def _draw_state(ax: Axes, state: State, scale: float) -> None:
    """The boxes and the arrows of the step just made. scale: of lines and arrow heads; 1 for a picture of its own.

    All boxes go into three collections: one artist per box would make a slider stutter.
    """
    n = state.ranks
    _bare(ax)
    ax.set_xlim(-0.5, n - 0.5)
    ax.set_ylim(n - 0.32, -0.68)
    grounds, frames, bars, colors = [], [], [], []
    for rank in range(n):
        for chunk in range(n):
            left, top = chunk - WIDE / 2, rank - HIGH / 2
            box = Rectangle((left, top), WIDE, HIGH)
            grounds.append(box)
            if state.complete(rank, chunk):
                frames.append(box)
            strength = PALE if state.spent(rank, chunk) else 1.0
            for share in state.holds[rank][chunk]:
                bars.append(Rectangle((left + share * WIDE / n, top), WIDE / n, HIGH))
                colors.append(to_rgba(SHARES[share % len(SHARES)], strength))
    line = 0.8 if scale == 1 else min(0.6, 6 / n**2)
    ax.add_collection(PatchCollection(grounds, facecolor=FAINT, edgecolor="none", zorder=1))
    ax.add_collection(PatchCollection(bars, facecolor=colors, edgecolor="white", linewidth=line, zorder=2))
    ax.add_collection(PatchCollection(frames, facecolor="none", edgecolor=COMPLETE, linewidth=2.2 * scale, zorder=3))
    for move in state.moves:
        _arrow(ax, move.sender, move.receiver, move.chunk, n, scale)


def _write_shares(ax: Axes, state: State) -> None:
    """The rank's number on every bar. Markers, not texts: a slider cannot wait for hundreds of texts."""
    n = state.ranks
    places: dict[tuple[int, bool], list[tuple[float, int]]] = defaultdict(list)  # (share, spent) -> [(x, y)]
    for rank in range(n):
        for chunk in range(n):
            spent = state.spent(rank, chunk)
            for share in state.holds[rank][chunk]:
                places[share, spent].append((chunk - WIDE / 2 + (share + 0.5) * WIDE / n, rank))
    for (share, spent), points in places.items():
        color = "white" if SHARES[share % len(SHARES)] in DARK and not spent else INK
        ax.plot(*zip(*points, strict=True), linestyle="", marker=f"${share}$", markersize=6.5, color=color,
                markeredgewidth=0, alpha=0.45 if spent else 1.0, zorder=4)  # fmt: skip


def _arrow(ax: Axes, sender: int, receiver: int, chunk: int, n: int, scale: float) -> None:
    """Down the column; from the last rank out at the bottom and in at the top, for the ring closes there."""
    below, above = sender + HIGH / 2 + 0.02, receiver - HIGH / 2 - 0.03
    legs = [(below, above)] if receiver > sender else [(below, n - 0.34), (-0.66, above)]
    for start, end in legs:
        arrow = FancyArrowPatch((chunk, start), (chunk, end), arrowstyle="-|>", mutation_scale=14 * scale, shrinkA=0,
                                shrinkB=0, color=INK, linewidth=2 * scale, zorder=5)  # fmt: skip
        arrow.set_in_layout(False)
        ax.add_patch(arrow)


def _bare(ax: Axes) -> None:
    picture.plain_axes(ax, sides=())
    ax.tick_params(length=0, labelsize=9.5)
    ax.set_xticks([])
    ax.set_yticks([])


def _heading(state: State) -> str:
    last = 2 * (state.ranks - 1)
    if state.step == 0:
        return f"Start: {state.ranks} ranks, {last} steps to go"
    meaning = {REDUCE_SCATTER: "add what arrives", ALL_GATHER: "keep what arrives"}[state.phase]
    return f"Step {state.step} of {last} · {state.phase}: {meaning}"


def _keys() -> list:
    return [
        Patch(facecolor=BLUE, edgecolor="white", label="share of a rank"),
        Patch(facecolor=to_rgba(BLUE, PALE), edgecolor="white", label="sent on, spent"),
        Patch(facecolor="white", edgecolor=COMPLETE, linewidth=1.6, label="complete"),
    ]
