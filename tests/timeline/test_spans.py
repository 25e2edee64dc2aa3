"""The recorder: what it keeps, what it refuses, and that it stays small."""

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from course_lib.timeline import Span, spans
from course_lib.timeline.spans import drain, record, span


@pytest.fixture(autouse=True)
def empty_buffer():
    drain()
    yield
    drain()


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes 10 ns further each time it is read: 10, 20, 30, ..."""
    ticks = iter(range(10, 10_000, 10))
    monkeypatch.setattr(spans, "monotonic_ns", lambda: next(ticks))


def test_nested_spans_are_recorded_as_they_end(clock):
    with span("step"), span("all-reduce", kind="comm", microbatch=3):
        pass
    assert drain() == [
        Span("all-reduce", 20, 30, "comm", "main", {"microbatch": 3}),
        Span("step", 10, 40, "compute", "main", None),
    ]


def test_drain_forgets():
    record("a", 1, 2)
    assert len(drain()) == 1
    assert drain() == []


def test_a_block_that_raises_is_recorded_and_the_error_goes_on(clock):
    with pytest.raises(KeyError), span("lookup", key="x"):
        raise KeyError("x")
    assert drain() == [Span("lookup", 10, 20, "compute", "main", {"key": "x", "raised": "KeyError"})]


def test_record_keeps_what_it_is_given():
    record("send", 5, 9, "comm", "network", {"bytes": 64})
    assert drain() == [Span("send", 5, 9, "comm", "network", {"bytes": 64})]


@pytest.mark.parametrize(
    ("kind", "lane", "end", "word"),
    [
        ("computing", "main", 9, "'computing'"),
        ("comm", "gpu", 9, "'gpu'"),
        ("comm", "main", 4, "1 ns before it starts"),
    ],
)
def test_record_says_what_is_wrong(kind, lane, end, word):
    with pytest.raises(ValueError, match=word):
        record("send", 5, end, kind, lane)
    assert drain() == []


def test_span_refuses_an_unknown_kind_before_the_block_runs():
    with pytest.raises(ValueError, match="'network'"):
        span("send", kind="network")


def test_arguments_stay_small_and_plain():
    big = torch.zeros(1000)
    record(
        "a",
        0,
        1,
        args={"x": big, "shape": big.shape, "n": np.int64(3), "f": np.float32(0.5), "none": None, "l": [1, big]},
    )
    args = drain()[0].args
    assert args == {"x": "Tensor", "shape": (1000,), "n": 3, "f": 0.5, "none": None, "l": (1, "Tensor")}
    assert type(args["n"]) is int and type(args["f"]) is float and type(args["shape"]) is tuple


def test_a_full_buffer_keeps_the_first_spans_and_counts_the_rest(monkeypatch):
    monkeypatch.setattr(spans, "LIMIT", 3)
    for i in range(5):
        record(f"s{i}", 10 * i, 10 * i + 5)
    got = drain()
    assert [s.name for s in got] == ["s0", "s1", "s2", "not recorded"]
    assert got[-1] == Span("not recorded", 30, 45, "dropped", "main", {"count": 2})
    record("after", 0, 1)
    assert drain() == [Span("after", 0, 1)]  # an emptied buffer records again, and the count starts again


def test_threads_record_into_the_same_buffer_and_every_loss_is_counted(monkeypatch):
    monkeypatch.setattr(spans, "LIMIT", 100)

    def work():
        for i in range(200):
            record("w", i, i + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = drain()
    assert len(got) - 1 + got[-1].args["count"] == 800


def test_spans_pickle():
    record("a", 0, 1, args={"shape": torch.Size([2, 3])})
    got = drain()
    assert pickle.loads(pickle.dumps(got)) == got


def test_importing_the_recorder_imports_no_big_package():
    code = (
        "import sys; import course_lib.timeline; "
        "print(sorted({'torch', 'numpy', 'matplotlib', 'IPython'} & {m.split('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
