"""Interval arithmetic against the obvious version: look at every single nanosecond."""

from hypothesis import given
from hypothesis import strategies as st

from course_lib.timeline import Span
from course_lib.timeline.intervals import innermost, intersection, length, union

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda x: (x[0], x[0] + x[1])), max_size=8)


def moments(spans):
    return {t for start, end in spans for t in range(start, end)}


def is_disjoint(spans):
    return all(start < end for start, end in spans) and all(a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))


@given(intervals)
def test_union(a):
    assert is_disjoint(union(a))
    assert moments(union(a)) == moments(a)
    assert length(union(a)) == len(moments(a))


@given(intervals, intervals)
def test_intersection(a, b):
    both = intersection(union(a), union(b))
    assert is_disjoint(both)
    assert moments(both) == moments(a) & moments(b)


@given(intervals)
def test_innermost(a):
    spans = [Span(str(i), start, end) for i, (start, end) in enumerate(a)]
    pieces = innermost(spans)
    assert all(p.start < p.end for p in pieces)
    assert all(p.end <= q.start for p, q in zip(pieces, pieces[1:], strict=False))
    owner = {t: p.span for p in pieces for t in range(p.start, p.end)}
    for t in range(50):
        covering = [s for s in spans if s.start_ns <= t < s.end_ns]
        if covering:
            # Started last; of those, the shorter; of those, the one recorded first, which is the one that ended first.
            inner = min(covering, key=lambda s: (-s.start_ns, s.end_ns, int(s.name)))
            assert owner[t] == inner
        else:
            assert t not in owner


def test_innermost_of_a_step_with_a_call_inside():
    step, call = Span("step", 0, 10), Span("all_reduce", 4, 7, "comm")
    assert [tuple(p) for p in innermost([call, step])] == [(0, 4, step), (4, 7, call), (7, 10, step)]
