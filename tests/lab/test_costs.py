"""Right values at a wrong price are told apart from right ones."""

from types import SimpleNamespace

import pytest

from course_lib.lab import costs
from course_lib.lab.evidence import Evidence


def price(sent, least):
    return costs.too_many_bytes(Evidence(len(sent), [], [], sent=sent, least=least))


def test_bytes():
    assert price([12, 12], [12, 12]) is None
    assert price([12, 12], None) is None
    name, sentence = price([12, 24, 12], [12, 12, 12])
    assert name == "too_many_bytes" and "rank 1 sent 24 bytes where 12 bytes are enough: 2 times the bytes" in sentence
    too_many = Evidence(3, [], [], sent=[12] * 3, least=[8] * 3, history={2: (2, 1), 3: (3, 2)})
    assert costs.too_many_bytes(too_many)[1].startswith("right, but each rank sends n messages where n - 1 suffice: 12")
    assert "bytes it need not send" in price([12, 12], [12, 0])[1]
    assert price([0, 0], [0, 0]) is None


def test_too_few_bytes():
    def few(sent, total):
        return costs.too_few_bytes(Evidence(len(sent), [], [], sent=sent, total=total))

    assert few([12, 0], 12) is None
    assert few([0, 0], 0) is None
    assert few([0, 0], 1) == few([0, 0], 12)
    assert "no rank sent a byte: something else did the work" in few([0, 0], 12)[1]
    assert "together sent 2 bytes, and that cannot be done with less than 12 bytes" in few([1, 1], 12)[1]


def test_borrowed_work():
    none = frozenset()
    assert costs.borrowed_work([], [], none) is None
    assert costs.borrowed_work(["barrier", "new_group"], [], none) is None
    assert "This calls `dist.all_reduce`: torch did the work." in costs.borrowed_work(["all_reduce"], [], none)[1]
    assert costs.borrowed_work(["all_reduce"], [], frozenset({"all_reduce"})) is None
    allowed = costs.borrowed_work(["broadcast"], [], frozenset({"all_reduce"}))
    assert "Only all_reduce may be called here" in allowed[1]
    assert "the library's `all_reduce`" in costs.borrowed_work([], ["all_reduce"], none)[1]


def test_changed_arguments():
    assert costs.changed_arguments([[], []]) is None
    assert "rank 1 changed its input in place" in costs.changed_arguments([[], [0]])[1]
    assert "rank 0 changed argument 2 in place" in costs.changed_arguments([[2]])[1]
    assert "the answer changed its input in place" in costs.changed_arguments([[0]], on_ranks=False)[1]


@pytest.mark.parametrize(("overlapped", "named"), [(0.0, True), (0.5e-3, True), (9e-3, False)])
def test_overlap(overlapped, named):
    time = SimpleNamespace(rank=0, busy=20e-3, communicating=10e-3, overlapped=overlapped)
    timeline = SimpleNamespace(summary=lambda: [time, time])
    found = costs.no_overlap(Evidence(2, [], [], timeline=timeline))
    assert (found is not None) == named
    if named:
        assert "computes 20 ms and communicates 10 ms" in found[1]
