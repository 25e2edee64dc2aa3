"""Who wins where: by hand on two straight lines, and against looking at every size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.lab.widgets.cost_curves import curves, reigns, size_text, sizes_between, time_text, winner


def line(messages, times_sent):
    """A model that pays alpha `messages` times and sends the data `times_sent` times."""
    return lambda size, ranks, alpha, beta: messages * alpha + times_sent * size * beta


FEW, LEAN = line(2, 4), line(6, 1)  # few messages; little data


def test_two_lines_cross_where_they_must():
    # 2 a + 4 s b = 6 a + s b  at  s = 4 a / (3 b)
    found = reigns({"lean": LEAN, "few": FEW}, 64, 2**30, 4, alpha=30e-6, beta=1e-9)
    assert [reign.name for reign in found] == ["few", "lean"]
    assert found[0].largest == found[1].smallest == pytest.approx(40_000, rel=1e-6)
    assert (found[0].smallest, found[-1].largest) == (64, 2**30)


def test_no_crossover_where_one_always_wins():
    assert [r.name for r in reigns({"few": FEW, "bad": line(9, 9)}, 64, 2**30, 4, 1e-6, 1e-9)] == ["few"]


def test_of_two_equal_ones_the_first_wins_everywhere():
    def twin(size, ranks, alpha, beta):  # FEW but for rounding, now above it and now below
        return (alpha + 2 * size * beta) / 3 * 6

    assert [r.name for r in reigns({"few": FEW, "twin": twin}, 64, 2**30, 4, 1e-6, 1e-9)] == ["few"]
    assert [r.name for r in reigns({"twin": twin, "few": FEW}, 64, 2**30, 4, 1e-6, 1e-9)] == ["twin"]


def test_curves_are_the_models_own_values():
    assert curves({"few": FEW}, [1000.0, 2000.0], 4, 1e-6, 1e-9) == {"few": [pytest.approx(6e-6), pytest.approx(10e-6)]}


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5),
    st.floats(1e-7, 1e-3),
    st.floats(1e-12, 1e-8),
)
def test_inside_its_reign_nobody_is_faster(pairs, alpha, beta):
    models = {str(i): line(*pair) for i, pair in enumerate(pairs)}
    found = reigns(models, 64, 2**30, 4, alpha, beta)
    assert found[0].smallest == 64 and found[-1].largest == 2**30
    for before, after in zip(found, found[1:], strict=False):
        assert before.largest == after.smallest and before.name != after.name
    for size in sizes_between(64, 2**30):
        (reign,) = [r for r in found if r.smallest <= size < r.largest] or [found[-1]]
        best = min(model(size, 4, alpha, beta) for model in models.values())
        assert models[reign.name](size, 4, alpha, beta) == pytest.approx(best, rel=1e-6)
        assert winner(models, size, 4, alpha, beta) == reign.name


def test_sizes_reach_both_ends():
    sizes = sizes_between(64, 1024)
    assert sizes[0] == 64 and sizes[-1] == 1024 and len(sizes) == 4 * 4 + 1
    assert all(b / a == pytest.approx(2**0.25) for a, b in zip(sizes, sizes[1:], strict=False))


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
