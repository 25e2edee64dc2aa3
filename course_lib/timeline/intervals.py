"""Arithmetic on stretches of time: union, intersection, and who is innermost at each moment.

A list of intervals is [(start, end), ...]. "Disjoint" means sorted, not touching, none empty. Times are integers (ns).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from course_lib.timeline.spans import Span

Interval = tuple[int, int]


class Piece(NamedTuple):
    """A stretch of time in which `span` was the innermost span."""

    start: int
    end: int
    span: Span


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint intervals, so that nothing is counted twice."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """The time that lies in both. a and b: disjoint."""
    both: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            both.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return both


def length(intervals: list[Interval]) -> int:
    """Total time of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def innermost(spans: Iterable[Span]) -> list[Piece]:
    """Cut overlapping spans into pieces that do not overlap: each moment belongs to the innermost span only.

    Innermost is the span that started last; of two that started together, the shorter one. Spans of one thread are
    nested, so this is what a reader means by it; spans of several threads may cross, and then it is a choice.
    One sweep over the starts with a heap of open spans: O(n log n).
    """
    by_start = sorted((span for span in spans if span.start_ns < span.end_ns), key=lambda span: span.start_ns)
    pieces: list[Piece] = []
    open_spans: list[tuple[int, int, int, Span]] = []  # innermost on top: (-start, end, order, span)
    now = 0

    def advance(until: float) -> None:
        nonlocal now
        while open_spans and now < until:
            _, end, _, span = open_spans[0]
            if end <= now:
                heappop(open_spans)
                continue
            stop = min(end, until)
            pieces.append(Piece(now, stop, span))
            now = stop

    for order, span in enumerate(by_start):
        advance(span.start_ns)
        now = span.start_ns
        heappush(open_spans, (-span.start_ns, span.end_ns, order, span))
    advance(float("inf"))
    return pieces
