"""The exported trace: valid by the format's rules, and nothing lost or moved."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.timeline import Span, Timeline
from course_lib.timeline.chrome import nested_tracks


def assert_valid(trace):
    """The rules of the Chrome trace event format that Perfetto's importer holds a file to."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named = {"process_name": set(), "thread_name": set()}
    open_ends = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            (key,) = event["args"]
            assert key == ("sort_index" if event["name"].endswith("sort_index") else "name")
            if event["name"] in named:
                where = (event["pid"], event["tid"])
                assert where not in named[event["name"]], "named twice"
                named[event["name"]].add(where)
        else:
            assert event["ph"] == "X" and isinstance(event["cat"], str)
            assert event["ts"] >= 0 and event["dur"] >= 0
            track = (event["pid"], event["tid"])
            assert track in named["thread_name"], "an event on a track without a name"
            ends = open_ends.setdefault(track, [])
            start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1], "events of a track cross"
            ends.append(end)


def test_a_trace_by_hand(tmp_path):
    rank0 = [Span("forward", 1_000, 5_500, args={"microbatch": 3})]
    rank1 = [Span("all_reduce", 2_000, 9_000, "comm", "network", {"shape": (2, 3), "loss": float("nan")})]
    path = tmp_path / "trace.json"
    Timeline([rank0, rank1]).save_chrome(path)

    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    trace = json.loads(path.read_text(), parse_constant=no_constant)
    assert_valid(trace)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert events == [
        {"name": "forward", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 4.5,
         "args": {"microbatch": 3}},
        {"name": "all_reduce", "cat": "comm", "ph": "X", "pid": 1, "tid": 0, "ts": 1.0, "dur": 7.0,
         "args": {"shape": [2, 3], "loss": "nan"}},
    ]  # fmt: skip
    names = {(e["pid"], e["name"]): e["args"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names[0, "process_name"] == {"name": "rank 0"} and names[1, "process_name"] == {"name": "rank 1"}
    assert names[0, "thread_name"] == {"name": "main"} and names[1, "thread_name"] == {"name": "network"}
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_the_checker_sees_events_that_cross():
    trace = Timeline([[Span("a", 0, 10)]]).to_chrome()
    bad = {**trace["traceEvents"][-1], "ts": 0.005, "dur": 0.010}
    with pytest.raises(AssertionError, match="cross"):
        assert_valid({**trace, "traceEvents": [*trace["traceEvents"], bad]})


some_spans = st.builds(
    lambda start, long, what: Span("s", start, start + long, *what),
    st.integers(0, 30),
    st.integers(0, 10),
    st.sampled_from([("compute", "main"), ("comm", "main"), ("comm", "network")]),
)


@given(st.lists(st.lists(some_spans, max_size=8), max_size=3))
def test_any_spans_give_a_valid_trace_with_every_span_in_it(spans_by_rank):
    trace = Timeline(spans_by_rank).to_chrome()
    assert_valid(trace)
    zero = min((s.start_ns for spans in spans_by_rank for s in spans), default=0)
    sent = sorted(
        (r, s.start_ns - zero, s.end_ns - s.start_ns, s.kind) for r, spans in enumerate(spans_by_rank) for s in spans
    )
    got = sorted(
        (e["pid"], round(1e3 * e["ts"]), round(1e3 * e["dur"]), e["cat"])
        for e in trace["traceEvents"]
        if e["ph"] == "X"
    )
    assert got == sent


def test_nested_spans_share_a_track_and_crossing_ones_do_not():
    inner, outer, crossing = Span("inner", 2, 5), Span("outer", 0, 6), Span("crossing", 4, 9)
    assert nested_tracks([inner, outer, crossing]) == [[outer, inner], [crossing]]


def test_of_two_equal_spans_the_one_that_ended_last_is_outside():
    inner, outer = Span("inner", 0, 5), Span("outer", 0, 5)
    assert nested_tracks([inner, outer]) == [[outer, inner]]
