"""Chrome trace JSON: the format that Perfetto and chrome://tracing open.

A rank is a process (pid), a lane is a thread (tid) of it. Times are microseconds from the first span.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from course_lib.timeline.spans import MAIN, NETWORK, Span


def trace(spans_by_rank: list[list[Span]], start_ns: int) -> dict:
    """The spans as a dict ready for json.dump. start_ns: the moment that becomes 0."""
    events: list[dict] = []
    for rank, spans in enumerate(spans_by_rank):
        events += [
            _metadata("process_name", rank, 0, name=f"rank {rank}"),
            _metadata("process_sort_index", rank, 0, sort_index=rank),
        ]
        tid = 0
        for lane in (MAIN, NETWORK):
            for track in nested_tracks([span for span in spans if span.lane == lane]):
                events.append(_metadata("thread_name", rank, tid, name=lane))
                events.append(_metadata("thread_sort_index", rank, tid, sort_index=tid))
                events += [_complete(span, rank, tid, start_ns) for span in track]
                tid += 1
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save(data: dict, path: Path) -> None:
    """Write a trace; a reader sees the old file or the whole new one, never half of it."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(data, allow_nan=False))
    os.replace(aside, path)


def nested_tracks(spans: list[Span]) -> list[list[Span]]:
    """Share out the spans over tracks so that within a track any two are disjoint or nested.

    The viewers demand this of a thread, and two transfers in flight at once often cross. First track that fits.
    Of two spans with the same times, the one recorded last is the outer one: a span is recorded when it ends.
    """
    tracks: list[list[Span]] = []
    open_ends: list[list[int]] = []  # per track: ends of its open spans, outermost first
    outer_first = spans[::-1]
    outer_first.sort(key=lambda span: (span.start_ns, -span.end_ns))
    for span in outer_first:
        index = next((i for i, ends in enumerate(open_ends) if _fits(span, ends)), len(tracks))
        if index == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[index].append(span)
        open_ends[index].append(span.end_ns)
    return tracks


def _fits(span: Span, open_ends: list[int]) -> bool:
    """Closes what has ended; then span fits if nothing is open or it ends inside the innermost open one."""
    while open_ends and open_ends[-1] <= span.start_ns:
        open_ends.pop()
    return not open_ends or span.end_ns <= open_ends[-1]


def _complete(span: Span, rank: int, tid: int, start_ns: int) -> dict:
    args = {key: _json_value(value) for key, value in (span.args or {}).items()}
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",  # a complete event: begin and duration in one
        "pid": rank,
        "tid": tid,
        "ts": (span.start_ns - start_ns) / 1e3,
        "dur": (span.end_ns - span.start_ns) / 1e3,
        "args": args,
    }


def _metadata(name: str, rank: int, tid: int, /, **args) -> dict:
    return {"name": name, "ph": "M", "pid": rank, "tid": tid, "args": args}


def _json_value(value):
    """JSON knows no NaN and no infinity."""
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
