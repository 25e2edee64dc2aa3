"""Who wins where: by hand on two straight lines, and against looking at many sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.collectives.cost import Cost
from course_lib.lab.widgets.cost_curves import all_reduce_costs, reigns, size_text, time_text

FEW, LEAN = Cost(2, 4.0), Cost(6, 1.0)  # few messages; few bytes


def test_two_lines_cross_where_they_must():
    # 2 a + 4 s b = 6 a + s b  at  s = 4 a / (3 b)
    found = reigns({"lean": LEAN, "few": FEW}, 64, 2**30, alpha=30e-6, beta=1e-9)
    assert [reign.name for reign in found] == ["few", "lean"]
    assert found[0].largest == found[1].smallest == pytest.approx(40_000)
    assert (found[0].smallest, found[-1].largest) == (64, 2**30)


def test_no_crossover_where_one_always_wins():
    assert [r.name for r in reigns({"bad": Cost(9, 9), "few": FEW}, 64, 2**30, 1e-6, 1e-9)] == ["few"]


def test_of_two_equal_ones_the_first_counts():
    assert [r.name for r in reigns({"few": FEW, "twin": FEW}, 64, 2**30, 1e-6, 1e-9)] == ["few"]
    assert [r.name for r in reigns({"twin": FEW, "few": FEW}, 64, 2**30, 1e-6, 1e-9)] == ["twin"]


def test_where_three_lines_meet_the_one_in_the_middle_never_reigns():
    middle = Cost(4, 2.5)  # through the point where FEW and LEAN cross
    found = reigns({"few": FEW, "middle": middle, "lean": LEAN}, 64, 2**30, 30e-6, 1e-9)
    assert [reign.name for reign in found] == ["few", "lean"]


def test_six_ranks_by_hand():
    # halving: 6 a + 3.5 s b; ring: 10 a + (5/3) s b; they meet at s = 4 a / (11/6 b)
    found = reigns(all_reduce_costs(6), 64, 2**30, alpha=11e-6, beta=1e-9)
    assert [reign.name for reign in found] == ["halving", "ring"]
    assert found[1].smallest == pytest.approx(24_000)


@given(
    st.lists(st.builds(Cost, st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6),
    st.floats(1e-7, 1e-2),
    st.floats(1e-12, 1e-7),
)
def test_inside_its_reign_nobody_is_faster(some_costs, alpha, beta):
    costs = {str(i): cost for i, cost in enumerate(some_costs)}
    found = reigns(costs, 64, 2**30, alpha, beta)
    assert found[0].smallest == 64 and found[-1].largest == 2**30
    for before, after in zip(found, found[1:], strict=False):
        assert before.largest == after.smallest and before.name != after.name
    for reign in found:
        assert reign.smallest <= reign.largest
        for size in (reign.smallest, (reign.smallest * reign.largest) ** 0.5, reign.largest):
            best = min(cost.seconds(size, alpha, beta) for cost in costs.values())
            assert costs[reign.name].seconds(size, alpha, beta) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("size", "text"),
    [(64, "64 B"), (1024, "1 KB"), (39_000, "38 KB"), (1000, "0.98 KB"), (1.5 * 2**20, "1.5 MB"),
     (700 * 2**20, "700 MB"), (2**30, "1 GB")],
)  # fmt: skip
def test_sizes_in_words(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1e-6, "1 µs"), (52e-6, "52 µs"), (0.85e-6, "850 ns"), (3.14e-3, "3.1 ms"), (2, "2 s"), (5000, "5,000 s")],
)
def test_times_in_words(seconds, text):
    assert time_text(seconds) == text
