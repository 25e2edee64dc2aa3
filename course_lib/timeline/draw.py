"""Draw a Timeline: one row per rank, time to the right.

Computing is plain and blue, communicating is striped and orange, idle is the bare row: the three differ in grey too.
A transfer in flight runs in a thin lane of its own below, because the program goes on beside it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from course_lib.timeline import picture
from course_lib.timeline.intervals import Piece, innermost
from course_lib.timeline.picture import BLUE, FAINT, GREEN, INK, NAVY, ORANGE, QUIET, SKY
from course_lib.timeline.spans import COMM, DROPPED, MAIN, NETWORK, Span
from course_lib.timeline.timeline import Timeline, dropped_count, dropped_notes


class Style(NamedTuple):
    """How one kind of bar looks. Stripes are white."""

    label: str
    color: str
    text: str = "white"
    stripes: str = ""


NAMED = ((BLUE, "white"), (SKY, INK), (NAVY, "white"))  # the three computing names that took longest
OTHER = Style("other computing", "#9DB4C6", INK)
COMMUNICATING = Style("communicating", ORANGE, INK, "////")
IN_FLIGHT = Style("transfer in flight", GREEN + "99")  # see-through: transfers that overlap darken each other
IDLE = Style("idle", FAINT)
MISSING = Style("not recorded", "#BBBBBB", INK, "xxxx")

WIDTH = 9.0  # inches
FINEST = 1 / 1500  # of the width: a column. Narrower pieces are joined with their neighbours: nobody sees them
LETTER = 0.075  # inches that a letter of a bar's label takes, a little more than the truth


def draw(timeline: Timeline, ax: Axes | None, title: str) -> Figure:
    """See Timeline.draw."""
    ranks = len(timeline.spans_by_rank)
    if ax is None:
        figure = picture.Picture(WIDTH, 1.5 + max(1, ranks) * (0.55 if ranks <= 8 else 0.4))
        ax = figure.add_subplot()
    total = timeline.end_ns - timeline.start_ns
    pieces_by_rank = [_main_pieces(spans) for spans in timeline.spans_by_rank]
    styles = _computing_styles(pieces_by_rank)
    has_network = any(span.lane == NETWORK for spans in timeline.spans_by_rank for span in spans)
    main = (-0.38, 0.54 if has_network else 0.76)  # top and height of the bars, in rows from the middle of the row
    used = {IDLE}

    for rank, pieces in enumerate(pieces_by_rank):
        top = rank + main[0]
        ax.broken_barh([(0, total / 1e6)], (top, main[1]), facecolor=IDLE.color, zorder=1)
        bars = _join_slivers(pieces, styles, total * FINEST)
        used |= _draw_bars(ax, bars, top, main[1], timeline)
        _label_bars(ax, bars, top + main[1] / 2, timeline)
        if has_network:
            _draw_in_flight(ax, timeline, rank)
    if has_network:
        used.add(IN_FLIGHT)

    _axes(ax, timeline)
    _legend(ax, [*styles.values(), OTHER, COMMUNICATING, IN_FLIGHT, IDLE, MISSING], used)
    picture.title(ax, title, pad=28)
    return ax.figure


class Bar(NamedTuple):
    start: float
    end: float
    name: str
    style: Style


def _main_pieces(spans: list[Span]) -> list[Piece]:
    """What the rank did at each moment. Where spans are missing but an outer span says what went on, that shows."""
    return innermost(span for span in spans if span.lane == MAIN)


def _computing_styles(pieces_by_rank: list[list[Piece]]) -> dict[str, Style]:
    """name -> style for the names that took longest, in order of first appearance."""
    time: dict[str, int] = defaultdict(int)
    for pieces in pieces_by_rank:
        for piece in pieces:
            if piece.span.kind not in (COMM, DROPPED):
                time[piece.span.name] += piece.end - piece.start
    longest = sorted(time, key=time.get, reverse=True)[: len(NAMED)]
    names = [name for name in time if name in longest]
    return {name: Style(_short(name), *look) for name, look in zip(names, NAMED, strict=False)}


def _style(span: Span, styles: dict[str, Style]) -> Style:
    if span.kind == DROPPED:
        return MISSING
    return COMMUNICATING if span.kind == COMM else styles.get(span.name, OTHER)


def _join_slivers(pieces: list[Piece], styles: dict[str, Style], column: float) -> list[Bar]:
    """Bars to draw, few enough that 100,000 spans draw in a moment.

    Pieces as wide as a column (ns) become a bar each. Of the narrower ones in a column only one style shows: of the
    kind (computing or communicating) with more time, the style with most. Neighbouring columns of one style make one
    bar.
    """
    bars = [Bar(p.start, p.end, p.span.name, _style(p.span, styles)) for p in pieces if p.end - p.start >= column]
    columns: dict[int, dict[Style, int]] = defaultdict(lambda: defaultdict(int))
    for piece in pieces:
        if piece.end - piece.start < column:
            columns[int(piece.start // column)][_style(piece.span, styles)] += piece.end - piece.start
    runs: list[Bar] = []
    for index in sorted(columns):
        time = columns[index]
        mostly_communicating = 2 * time.get(COMMUNICATING, 0) > sum(time.values())
        style = COMMUNICATING if mostly_communicating else max(time.keys() - {COMMUNICATING}, key=time.get)
        start, end = index * column, (index + 1) * column
        if runs and runs[-1].style == style and start - runs[-1].end < column / 2:
            runs[-1] = runs[-1]._replace(end=end)
        else:
            runs.append(Bar(start, end, style.label, style))
    return runs + bars  # later bars lie over earlier ones: what is wide enough to see is drawn true


def _draw_bars(ax: Axes, bars: list[Bar], top: float, height: float, timeline: Timeline) -> set[Style]:
    by_style: dict[Style, list[Bar]] = defaultdict(list)
    for bar in bars:
        by_style[bar.style].append(bar)
    total = timeline.end_ns - timeline.start_ns
    for style, group in by_style.items():
        ax.broken_barh(
            [((bar.start - timeline.start_ns) / 1e6, (bar.end - bar.start) / 1e6) for bar in group],
            (top, height),
            facecolor=style.color,
            hatch=style.stripes,
            edgecolor="white",
            # A white line parts two bars that touch, but would hide a bar as narrow as itself.
            linewidths=[0.8 if bar.end - bar.start > 6 * FINEST * total else 0 for bar in group],
            zorder=2,
        )
    return set(by_style)


def _label_bars(ax: Axes, bars: list[Bar], middle: float, timeline: Timeline) -> None:
    """Write the name into each bar that has room for it."""
    inches_per_ns = 0.8 * ax.figure.get_figwidth() / max(1, timeline.end_ns - timeline.start_ns)
    for bar in bars:
        if (bar.end - bar.start) * inches_per_ns < LETTER * (len(bar.name) + 1.5):
            continue
        # Letters on stripes are hard to read: give them a plain ground.
        ground = {"facecolor": bar.style.color, "edgecolor": "none", "pad": 1.2} if bar.style.stripes else None
        x = ((bar.start + bar.end) / 2 - timeline.start_ns) / 1e6
        ax.text(x, middle, bar.name, ha="center", va="center", fontsize=8, color=bar.style.text, bbox=ground, zorder=3)


def _draw_in_flight(ax: Axes, timeline: Timeline, rank: int) -> None:
    spans = [span for span in timeline.spans_by_rank[rank] if span.lane == NETWORK]
    bars = [((span.start_ns - timeline.start_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6) for span in spans]
    ax.broken_barh(bars, (rank + 0.22, 0.16), facecolor=IN_FLIGHT.color, edgecolor="white", linewidth=0.5, zorder=2)


def _axes(ax: Axes, timeline: Timeline) -> None:
    picture.plain_axes(ax)
    ranks = len(timeline.spans_by_rank)
    ax.set_xlim(0, max(timeline.end_ns - timeline.start_ns, 1) / 1e6)
    ax.set_ylim(max(1, ranks) - 0.45, -0.55)
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    ax.set_xlabel("time since the first span (ms)", color=INK, fontsize=9, loc="left")
    for t in timeline.summary():
        if t.total:
            parts = {"computing": t.busy, "communicating": t.communicating, "idle": t.idle}
            share = "\n".join(
                f"{name} {seconds / t.total:.0%}" for name, seconds in parts.items() if seconds >= 0.005 * t.total
            )
            ax.text(1.01, t.rank, share, transform=ax.get_yaxis_transform(), va="center", fontsize=7, color=QUIET)
    notes = dropped_notes([dropped_count(spans) for spans in timeline.spans_by_rank])
    if timeline.end_ns == timeline.start_ns:
        notes = ["No spans were recorded"]
        ax.set_xticks([])
    if notes:
        text = notes[0] + (f" (and {len(notes) - 1} more such ranks)" if len(notes) > 1 else "") + "."
        ax.annotate(text, (1, 0), (0, -32), "axes fraction", "offset points", ha="right", fontsize=8.5, color=INK)


def _legend(ax: Axes, styles: list[Style], used: set[Style]) -> None:
    patches = [
        Patch(facecolor=style.color, hatch=style.stripes, edgecolor="white", linewidth=0, label=style.label)
        for style in styles
        if style in used
    ]
    ax.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(-0.005, 1.0), ncols=len(patches), frameon=False,
        fontsize=8.5, borderaxespad=0.3, handlelength=1.6, columnspacing=1.4, labelcolor=INK,
    )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
