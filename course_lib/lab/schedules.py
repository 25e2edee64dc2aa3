"""Pictures of pipeline schedules: what was planned, what was measured, and both on one axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind
from course_lib.parallel.pipeline.simulate import Simulation
from course_lib.timeline import Timeline, picture
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, ORANGE, QUIET, SKY, VERMILION, Picture

WIDTH = 9.0  # inches
NARROWEST = 0.016  # of the width: a block that is to bear its number
LETTER = 0.009  # of the width: a figure of it
WORDS = {Kind.F: "forward", Kind.B: "backward", Kind.I: "backward, input", Kind.W: "backward, weights"}


class Block(NamedTuple):
    """An action and when it ran, in any unit."""

    action: Action
    start: float
    end: float


class Style(NamedTuple):
    color: str
    text: str


# The first stage of a rank and, lighter, its further ones.
FIRST = {
    Kind.F: Style(BLUE, "white"),
    Kind.B: Style(VERMILION, "white"),
    Kind.I: Style(VERMILION, "white"),
    Kind.W: Style(GREEN, "white"),
}
FURTHER = {
    Kind.F: Style(SKY, INK),
    Kind.B: Style(ORANGE, INK),
    Kind.I: Style(ORANGE, INK),
    Kind.W: Style("#8FD9C4", INK),
}


def plan(simulation: Simulation, title: str, unit: str = "time units") -> Picture:
    """The simulated step: one row for each rank, a block for each action with the number of its micro-batch."""
    ranks = simulation.schedule.n_ranks
    figure = Picture(WIDTH, 1.45 + 0.42 * ranks)
    ax = figure.add_subplot()
    rows = _planned(simulation)
    for rank, blocks in enumerate(rows):
        ax.broken_barh([(0, simulation.makespan)], (rank - 0.38, 0.76), facecolor=FAINT, zorder=1)
        _draw(ax, blocks, rank - 0.38, 0.76, simulation)
    _finish(ax, title, [f"rank {rank}" for rank in range(ranks)], list(range(ranks)), simulation.makespan, unit)
    _legend(ax, rows, simulation)
    return figure


def plan_and_measured(simulation: Simulation, measured: Timeline, title: str) -> Picture:
    """Two rows for each rank on one axis: the plan, pale, and under it what its actions took.

    simulation: with costs in seconds. measured: the timeline of a run of the same schedule (`Pipeline` records each
    action by its name); the last step in it. Both begin where their first action does. Raises ValueError if the
    timeline has none of the schedule's actions.
    """
    ranks, planned = simulation.schedule.n_ranks, _planned(simulation)
    ran = measured_blocks(simulation, measured)
    end = max(simulation.makespan, *(block.end for blocks in ran for block in blocks)) * 1e3
    figure = Picture(WIDTH, 1.45 + 0.66 * ranks)
    ax = figure.add_subplot()
    ticks, names = [], []
    for rank in range(ranks):
        for name, blocks, top, height, pale in (
            ("planned", planned[rank], rank - 0.42, 0.3, True),
            ("measured", ran[rank], rank - 0.08, 0.46, False),
        ):
            ax.broken_barh([(0, end)], (top, height), facecolor=FAINT, zorder=1)
            scaled = [Block(action, 1e3 * start, 1e3 * stop) for action, start, stop in blocks]
            _draw(ax, scaled, top, height, simulation, pale=pale, width=end)
            ticks.append(top + height / 2)
            names.append(f"rank {rank}, {name}" if name == "planned" else name)
    _finish(ax, title, names, ticks, end, "milliseconds")
    _legend(ax, planned, simulation)
    return figure


def measured_blocks(simulation: Simulation, measured: Timeline) -> list[list[Block]]:
    """When each action of the schedule ran, by rank, in seconds from the first one on; of the last step there."""
    schedule = simulation.schedule
    found: list[dict[Action, Block]] = []
    for order, spans in zip(schedule.orders, measured.spans_by_rank, strict=True):
        wanted = {str(action): action for action in order if action.kind in COMPUTE}
        last = {wanted[span.name]: span for span in spans if span.name in wanted}
        found.append({a: Block(a, span.start_ns / 1e9, span.end_ns / 1e9) for a, span in last.items()})
    if not any(found):
        raise ValueError("the timeline has no action of this schedule: was it another schedule that ran?")
    zero = min(block.start for blocks in found for block in blocks.values())
    return [[Block(a, start - zero, end - zero) for a, start, end in blocks.values()] for blocks in found]


def _planned(simulation: Simulation) -> list[list[Block]]:
    return [
        [Block(a, simulation.start[a], simulation.end[a]) for a in order if a.kind in COMPUTE and a in simulation.end]
        for order in simulation.schedule.orders
    ]


def _style(action: Action, simulation: Simulation) -> Style:
    """By kind, and by whether the stage is the rank's first."""
    placement = simulation.schedule.placement
    first = placement.index(placement[action.stage]) == action.stage
    return (FIRST if first else FURTHER)[action.kind]


def _draw(
    ax: Axes,
    blocks: Iterable[Block],
    top: float,
    height: float,
    simulation: Simulation,
    pale: bool = False,
    width: float = 0.0,
) -> None:
    width = width or simulation.makespan
    for action, start, end in blocks:
        color, text = _style(action, simulation)
        ax.broken_barh(
            [(start, end - start)], (top, height), facecolor=color, edgecolor="white", linewidth=0.6, zorder=2,
            alpha=0.45 if pale else 1.0,
        )  # fmt: skip
        number = str(action.micro_batch)
        if width and (end - start) / width >= max(NARROWEST, LETTER * len(number) + 0.004):
            ax.text((start + end) / 2, top + height / 2, number, ha="center", va="center", fontsize=8,
                    color=INK if pale else text, zorder=3)  # fmt: skip


def _finish(ax: Axes, title: str, names: list[str], ticks: list[float], end: float, unit: str) -> None:
    picture.plain_axes(ax)
    picture.title(ax, title, pad=28)
    ax.set_yticks(ticks, names)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, end or 1)
    ax.set_xlabel(unit, fontsize=9, color=INK)
    ax.invert_yaxis()


def _legend(ax: Axes, rows: list[list[Block]], simulation: Simulation) -> None:
    kinds = {block.action.kind for blocks in rows for block in blocks}
    handles = [Patch(facecolor=FIRST[kind].color, label=words) for kind, words in WORDS.items() if kind in kinds]
    if simulation.schedule.n_stages > simulation.schedule.n_ranks:
        handles.append(Patch(facecolor=SKY, label="lighter: further stage"))
    handles.append(Patch(facecolor=FAINT, edgecolor=QUIET, linewidth=0.4, label="idle: the bubble"))
    ax.legend(handles=handles, frameon=False, fontsize=9, labelcolor=INK, loc="lower left", bbox_to_anchor=(-0.01, 1.0),
              ncols=len(handles), handlelength=1.2, columnspacing=1.2)  # fmt: skip
