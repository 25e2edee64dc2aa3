"""Sums of a timeline: by hand, and against counting nanoseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.timeline import Span, Timeline

MS = 1_000_000


def milliseconds(rank_time):
    return tuple(round(1e3 * x, 9) for x in rank_time[1:6])


def test_without_overlap_by_hand():
    rank0 = [Span("forward", 0, 4 * MS), Span("all_reduce", 4 * MS, 10 * MS, "comm")]
    rank1 = [Span("forward", 1 * MS, 6 * MS), Span("all_reduce", 6 * MS, 9 * MS, "comm")]
    summary = Timeline([rank0, rank1]).summary()
    assert [t.rank for t in summary] == [0, 1]
    assert milliseconds(summary[0]) == (4, 6, 0, 0, 10)  # busy, communicating, overlapped, idle, total
    assert milliseconds(summary[1]) == (5, 3, 0, 2, 10)  # idle before its first and after its last span


def test_a_transfer_under_a_computation_is_overlapped():
    spans = [
        Span("all_reduce", 2 * MS, 9 * MS, "comm", "network"),
        Span("backward", 0, 6 * MS),
        Span("wait", 6 * MS, 9 * MS, "comm"),
    ]
    assert milliseconds(Timeline([spans]).summary()[0]) == (6, 7, 4, 0, 9)


def test_a_call_inside_a_step_is_communication_and_counted_once():
    spans = [Span("all_reduce", 3 * MS, 5 * MS, "comm"), Span("train", 1 * MS, 7 * MS), Span("step", 0, 8 * MS)]
    assert milliseconds(Timeline([spans]).summary()[0]) == (6, 2, 0, 0, 8)


def test_adding_inside_a_communication_span_is_computing():
    spans = [Span("add", 2 * MS, 3 * MS), Span("ring", 0, 4 * MS, "comm")]
    assert milliseconds(Timeline([spans]).summary()[0]) == (1, 3, 0, 0, 4)


def test_two_transfers_at_once_count_once():
    spans = [Span("a", 0, 4 * MS, "comm", "network"), Span("b", 2 * MS, 6 * MS, "comm", "network")]
    assert milliseconds(Timeline([spans]).summary()[0]) == (0, 6, 0, 0, 6)


@st.composite
def some_spans(draw):
    start, long = draw(st.integers(0, 25)), draw(st.integers(0, 12))
    kind, lane = draw(st.sampled_from([("compute", "main"), ("comm", "main"), ("comm", "network")]))
    return Span("s", start, start + long, kind, lane)


@given(st.lists(st.lists(some_spans(), max_size=7), max_size=3))
def test_summary_against_counting_nanoseconds(spans_by_rank):
    starts = [s.start_ns for spans in spans_by_rank for s in spans]
    ends = [s.end_ns for spans in spans_by_rank for s in spans]
    window = range(min(starts), max(ends)) if starts else range(0)
    for spans, got in zip(spans_by_rank, Timeline(spans_by_rank).summary(), strict=True):
        busy = communicating = both = idle = 0
        for t in window:
            covering = [(i, s) for i, s in enumerate(spans) if s.start_ns <= t < s.end_ns]
            main = [(i, s) for i, s in covering if s.lane == "main"]
            inner = min(main, key=lambda x: (-x[1].start_ns, x[1].end_ns, x[0]))[1].kind if main else None
            computes = inner == "compute"
            talks = inner == "comm" or any(s.lane == "network" for _, s in covering)
            busy += computes
            communicating += talks
            both += computes and talks
            idle += not (computes or talks)
        assert tuple(round(1e9 * x) for x in got[1:6]) == (busy, communicating, both, idle, len(window))


@given(st.lists(some_spans(), max_size=8))
def test_the_parts_make_the_whole(spans):
    t = Timeline([spans]).summary()[0]
    assert t.busy + t.communicating - t.overlapped + t.idle == pytest.approx(t.total)


def test_dropped_spans_are_said_and_counted_nowhere():
    lost = Span("not recorded", 4 * MS, 10 * MS, "dropped", "main", {"count": 1234})
    timeline = Timeline([[Span("forward", 0, 4 * MS), lost], [Span("forward", 0, 10 * MS)]])
    summary = timeline.summary()
    assert summary[0].dropped == 1234 and summary[1].dropped == 0
    assert milliseconds(summary[0]) == (4, 0, 0, 6, 10)
    assert "Rank 0: 1,234 spans did not fit in the buffer" in str(summary)
    assert "Rank 1" not in str(summary)
    assert repr(timeline) == "Timeline of 2 ranks: 2 spans in 10.0 ms"


def test_the_summary_prints_a_row_per_rank():
    lines = str(Timeline([[Span("a", 0, 4 * MS)], [Span("b", 0, 8 * MS, "comm")]]).summary()).splitlines()
    assert lines[1].split() == ["0", "4.00", "0.00", "0.00", "4.00"]
    assert lines[2].split() == ["1", "0.00", "8.00", "0.00", "0.00"]
    assert len({len(line) for line in lines}) == 1  # the columns line up


@pytest.mark.parametrize("spans_by_rank", [[], [[]], [[], []]])
def test_nothing_recorded(spans_by_rank):
    summary = Timeline(spans_by_rank).summary()
    assert [milliseconds(t) for t in summary] == [(0, 0, 0, 0, 0)] * len(spans_by_rank)
