"""The cost explorer: sliders move it, its picture is whole, its words say what the picture shows."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_lib.lab.widgets.cost_explorer import cost_explorer
from course_lib.lab.widgets.cost_picture import draw

MODELS = {
    "lean": lambda size, ranks, alpha, beta: 2 * (ranks - 1) * alpha + size * beta,
    "few": lambda size, ranks, alpha, beta: 2 * alpha + 4 * size * beta,
}


@pytest.fixture
def explorer():
    return cost_explorer(MODELS, alpha=30e-6, beta=1e-9, ranks=4)


def test_it_starts_from_the_machine_it_was_given(explorer):
    assert explorer.image.value == draw(MODELS, 4, 30e-6, 1e-9).png()
    # 6 a + s b = 2 a + 4 s b at s = 4 a / (3 b) = 40,000 bytes
    assert repr(explorer) == (
        "All-reduce by the cost model. 4 ranks, 30 µs a message, 1 GB/s. Fastest: few; from 39 KB lean."
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("microseconds", 300.0, "from 391 KB lean"),
        ("gb_per_second", 10.0, "from 391 KB lean"),
        ("ranks", 1024, "1024 ranks"),
    ],
)
def test_each_slider_changes_the_picture_and_the_words(explorer, name, value, words):
    before = explorer.image.value
    explorer.controls[name].value = value
    assert explorer.image.value != before
    assert words in explorer.caption.value


def test_the_curves_are_the_models(explorer):
    ax = draw(MODELS, 4, 30e-6, 1e-9).axes[0]
    lines = {line.get_label(): line.get_xydata() for line in ax.lines if line.get_label() in MODELS}
    assert set(lines) == set(MODELS)
    for name, points in lines.items():
        for size, time in points:
            assert time == pytest.approx(MODELS[name](size, 4, 30e-6, 1e-9))
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_the_crossover_is_marked_where_the_curves_cross():
    ax = draw(MODELS, 4, 30e-6, 1e-9).axes[0]
    (marked,) = [line.get_xydata()[0] for line in ax.lines if line.get_marker() == "o"]
    assert marked == pytest.approx([40_000, 220e-6], rel=1e-6)
    assert "39 KB" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(("ranks", "alpha", "beta"), [(2, 1e-7, 1e-12), (4, 52e-6, 5e-10), (1024, 1e-2, 1e-7)])
def test_nothing_is_cut(ranks, alpha, beta):
    figure = draw(MODELS, ranks, alpha, beta)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    used = figure.get_tightbbox(canvas.get_renderer())  # inches
    width, height = figure.get_size_inches()
    assert used.x0 >= 0 and used.x1 <= width
    assert used.y0 >= 0 and used.y1 <= height


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"alpha": -1e-6}, "alpha is -1 µs; the explorer shows 0.1 to 10,000 µs"),
        ({"alpha": 1.0}, "alpha is 1e\\+06 µs"),
        ({"beta": 0.0}, "1 / beta is inf GB/s"),
        ({"beta": -1e-9}, "1 / beta is inf GB/s"),
        ({"ranks": 1}, "at least 2 ranks to cost anything; 1 were"),
    ],
)
def test_what_cannot_be_shown_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        cost_explorer(MODELS, **{"alpha": 30e-6, "beta": 1e-9, **change})


def test_a_number_of_ranks_that_is_no_power_of_two_has_its_place():
    explorer = cost_explorer(MODELS, alpha=30e-6, beta=1e-9, ranks=3)
    assert explorer.values["ranks"] == 3
    assert explorer.controls["ranks"].options[:3] == (2, 3, 4)
