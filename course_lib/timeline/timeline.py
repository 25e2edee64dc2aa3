"""The spans of all ranks, side by side: where did the time go?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from course_lib.timeline import chrome
from course_lib.timeline.intervals import innermost, intersection, length, union
from course_lib.timeline.spans import COMM, COMPUTE, DROPPED, MAIN, NETWORK, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class RankTime(NamedTuple):
    """Seconds of one rank. busy + communicating - overlapped + idle = total, and total is the same for all ranks.

    busy: computing. communicating: in a communication call, or with a transfer in flight. overlapped: both at once.
    idle: neither. dropped: number of spans that did not fit in the rank's buffer and are in none of these.
    """

    rank: int
    busy: float
    communicating: float
    overlapped: float
    idle: float
    total: float
    dropped: int


class Summary(list[RankTime]):
    """One RankTime per rank; prints as a table in milliseconds."""

    def __repr__(self) -> str:
        lines = ["rank   busy ms   communicating ms   of it overlapped ms   idle ms"]
        for t in self:
            busy, comm, both, idle = (1e3 * x for x in (t.busy, t.communicating, t.overlapped, t.idle))
            lines.append(f"{t.rank:>4}{busy:>10.2f}{comm:>19.2f}{both:>22.2f}{idle:>10.2f}")
        lines += [f"{note}; the figures above lack them." for note in dropped_notes([t.dropped for t in self])]
        return "\n".join(lines)

    __str__ = __repr__


class Timeline:
    """spans_by_rank[r]: what rank r's `spans.drain()` returned. Times are drawn and summed from the first span on."""

    def __init__(self, spans_by_rank: list[list[Span]]) -> None:
        self.spans_by_rank = [list(spans) for spans in spans_by_rank]
        everything = [span for spans in self.spans_by_rank for span in spans]
        self.start_ns = min((span.start_ns for span in everything), default=0)
        self.end_ns = max((span.end_ns for span in everything), default=0)

    def __repr__(self) -> str:
        count = sum(span.kind != DROPPED for spans in self.spans_by_rank for span in spans)
        milliseconds = (self.end_ns - self.start_ns) / 1e6
        return f"Timeline of {len(self.spans_by_rank)} ranks: {count:,} spans in {milliseconds:.1f} ms"

    def summary(self) -> Summary:
        """Per rank: busy, communicating, overlapped and idle seconds.

        A moment covered by nested spans counts once, for the innermost: inside `with span("step")` an all-reduce is
        communication, not computation.
        """
        return Summary(self._rank_time(rank, spans) for rank, spans in enumerate(self.spans_by_rank))

    def _rank_time(self, rank: int, spans: list[Span]) -> RankTime:
        pieces = innermost(span for span in spans if span.lane == MAIN and span.kind != DROPPED)
        busy = union((p.start, p.end) for p in pieces if p.span.kind == COMPUTE)
        calls = [(p.start, p.end) for p in pieces if p.span.kind == COMM]
        in_flight = [(span.start_ns, span.end_ns) for span in spans if span.lane == NETWORK]
        communicating = union(calls + in_flight)
        total = self.end_ns - self.start_ns
        active = length(union(busy + communicating))
        overlapped = length(intersection(busy, communicating))
        nanoseconds = (length(busy), length(communicating), overlapped, total - active, total)
        return RankTime(rank, *(x / 1e9 for x in nanoseconds), dropped_count(spans))

    def draw(self, ax: Axes | None = None, title: str = "What each rank did") -> Figure:
        """One row per rank: computing, communicating, idle; below each, what is in flight. Returns the figure."""
        from course_lib.timeline.draw import draw  # matplotlib takes a second to import: only when a picture is wanted

        return draw(self, ax, title)

    def to_chrome(self) -> dict:
        """The timeline as Chrome trace JSON (a dict), which https://ui.perfetto.dev and chrome://tracing open."""
        return chrome.trace(self.spans_by_rank, self.start_ns)

    def save_chrome(self, path: str | Path) -> None:
        """Write `to_chrome()` to a file; give it the suffix .json."""
        chrome.save(self.to_chrome(), Path(path))


def dropped_count(spans: list[Span]) -> int:
    """How many spans of a rank were lost because its buffer was full."""
    return sum(span.args["count"] for span in spans if span.kind == DROPPED)


def dropped_notes(dropped_by_rank: list[int]) -> list[str]:
    """One sentence start per rank that lost spans."""
    return [f"Rank {rank}: {n:,} spans did not fit in the buffer" for rank, n in enumerate(dropped_by_rank) if n]
