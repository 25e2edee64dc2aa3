"""The cost explorer: sliders move it, its picture is whole, its words say what the picture shows."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_lib.collectives.cost import cost
from course_lib.lab.widgets import cost_explorer
from course_lib.lab.widgets.cost_curves import all_reduce_costs
from course_lib.lab.widgets.cost_picture import draw


@pytest.fixture
def explorer():
    return cost_explorer(alpha=11e-6, beta=1e-9, ranks=6)


def test_it_starts_from_the_machine_it_was_given(explorer):
    assert explorer.image.value == draw(6, 11e-6, 1e-9).png()
    # halving 6 a + 3.5 s b, ring 10 a + 5/3 s b: equal at s = 4 a / (11/6 b) = 24,000 bytes
    assert repr(explorer) == (
        "All-reduce by the cost model. 6 ranks, 11 µs a message, 1 GB/s. Fastest: halving; from 23 KB ring."
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("microseconds", 110.0, "from 234 KB ring"),
        ("gb_per_second", 10.0, "from 234 KB ring"),
        ("ranks", 1024, "1024 ranks"),
    ],
)
def test_each_slider_changes_the_picture_and_the_words(explorer, name, value, words):
    before = explorer.image.value
    explorer.controls[name].value = value
    assert explorer.image.value != before
    assert words in explorer.caption.value


def test_the_curves_are_the_librarys_costs():
    ax = draw(6, 11e-6, 1e-9).axes[0]
    lines = {line.get_label(): line.get_xydata() for line in ax.lines if line.get_label() in all_reduce_costs(6)}
    assert set(lines) == {"naive", "ring", "halving", "tree"}
    for name, points in lines.items():
        assert points[0][0] == 64 and points[-1][0] == 2**30
        for size, time in points:
            assert time == pytest.approx(cost("all_reduce", name, 6).seconds(size, 11e-6, 1e-9))
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_every_algorithm_of_the_library_has_a_look_of_its_own():
    ax = draw(6, 11e-6, 1e-9).axes[0]
    looks = [
        (line.get_color(), str(line._dash_pattern)) for line in ax.lines if line.get_label() in all_reduce_costs(6)
    ]
    assert len(set(looks)) == len({dashes for _, dashes in looks}) == len(all_reduce_costs(6))


def test_the_crossover_is_marked_where_the_curves_cross():
    ax, strip = draw(6, 11e-6, 1e-9).axes
    (marked,) = [line.get_xydata()[0] for line in ax.lines if line.get_marker() == "o"]
    assert marked == pytest.approx([24_000, 150e-6])
    assert "23 KB" in [text.get_text() for text in ax.texts]
    assert [text.get_text() for text in strip.texts] == ["halving", "ring"]


@pytest.mark.parametrize(("ranks", "alpha", "beta"), [(2, 1e-7, 1e-12), (6, 52e-6, 5e-10), (1000, 1e-2, 1e-7)])
def test_nothing_is_cut(ranks, alpha, beta):
    figure = draw(ranks, alpha, beta)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    used = figure.get_tightbbox(canvas.get_renderer())  # inches
    width, height = figure.get_size_inches()
    assert used.x0 >= 0 and used.x1 <= width
    assert used.y0 >= 0 and used.y1 <= height


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"alpha": -1e-6}, "-1e-06 s and 1e-09 s a byte were given"),
        ({"beta": float("nan")}, "1.1e-05 s and nan s a byte"),
        ({"ranks": 1}, "at least 2 ranks to cost anything; 1 were"),
    ],
)
def test_what_cannot_be_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        cost_explorer(**{"alpha": 11e-6, "beta": 1e-9, **change})


def test_a_fit_that_found_nothing_starts_at_the_end_of_the_sliders():
    assert cost_explorer(alpha=0.0, beta=0.0).values == {"microseconds": 0.1, "gb_per_second": 1000.0, "ranks": 4}
    assert cost_explorer(alpha=9.0, beta=1.0).values == {"microseconds": 10_000.0, "gb_per_second": 0.01, "ranks": 4}


def test_any_number_of_ranks_has_its_place():
    explorer = cost_explorer(alpha=11e-6, beta=1e-9, ranks=1000)
    assert explorer.values["ranks"] == 1000
    assert explorer.controls["ranks"].options[-3:] == (768, 1000, 1024)
