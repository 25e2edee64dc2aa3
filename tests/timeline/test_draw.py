"""The drawing: everything in it can be read. (How it looks, a person judges.)"""

import struct

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from course_lib.timeline import Span, Timeline
from course_lib.timeline.draw import COMMUNICATING, FINEST, IDLE, IN_FLIGHT, MISSING, NAMED

MS = 1_000_000


def training_step(rank, network):
    t = rank * MS // 5
    spans = [Span("forward", t, t + 4 * MS), Span("backward", t + 4 * MS, t + 12 * MS)]
    lane = "network" if network else "main"
    spans.append(Span("all_reduce", t + 12 * MS, t + 17 * MS, "comm", lane))
    return [*spans, Span("optimizer", t + 17 * MS, t + 18 * MS), Span("log", t + 18 * MS, t + 18 * MS + 50_000)]


def texts_of(figure):
    """[(text, its box in pixels)] of everything written, as drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text()]
    return [(t, t.get_window_extent(renderer)) for t in shown]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("network", [False, True])
def test_nothing_is_cut_and_no_text_covers_another(ranks, network):
    lost = Span("not recorded", 15 * MS, 20 * MS, "dropped", "main", {"count": 123_456})
    figure = Timeline([[*training_step(r, network), lost] for r in range(ranks)]).draw(title="A step")
    texts = texts_of(figure)
    words = [t.get_text() for t, _ in texts]
    for word in ["A step", "time since the first span (ms)", "idle", f"rank {ranks - 1}", "communicating"][
        : 4 + (not network)
    ]:
        assert word in words
    for text, box in texts:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, f"{text.get_text()!r} is cut"
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, f"{text.get_text()!r} is cut"
    for i, (text, box) in enumerate(texts):
        for other, other_box in texts[i + 1 :]:
            assert not box.overlaps(other_box), f"{text.get_text()!r} covers {other.get_text()!r}"


def test_a_label_stays_inside_its_bar_and_a_bar_too_small_has_none():
    names = ["WWWWWWWW", "iiii", "a name that is far too long for the bar it stands on, whoever draws it"]
    for share in (1, 2, 4, 8, 16, 32):
        spans = [Span(name, i * MS, (i + 1) * MS) for i, name in enumerate(names)]
        figure = Timeline([[*spans, Span("rest", 3 * MS, 3 * MS * share + 1)]]).draw()
        ax = figure.axes[0]
        for text, box in texts_of(figure):
            if text.get_text() in names and text in ax.texts:
                i = names.index(text.get_text())
                left, right = (ax.transData.transform((x, 0))[0] for x in (i, i + 1))
                assert left <= box.x0 and box.x1 <= right
    assert names[2] not in [text.get_text() for text in ax.texts]


def test_each_label_stands_on_its_own_rank():
    figure = Timeline([[Span("one", 0, MS)], [Span("two", 0, MS)]]).draw()
    where = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts}
    assert round(where["one"]) == 0 and round(where["two"]) == 1
    assert figure.axes[0].yaxis_inverted()  # rank 0 on top


def luminance(color):
    r, g, b = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * r + 0.587 * g + 0.114 * b


def test_in_grey_computing_communicating_idle_and_missing_still_differ():
    plain = [color for color, _ in NAMED]
    assert COMMUNICATING.stripes and MISSING.stripes and COMMUNICATING.stripes != MISSING.stripes
    greys = sorted(luminance(color) for color in [*plain, IDLE.color])
    assert min(b - a for a, b in zip(greys, greys[1:], strict=False)) > 0.12


def bars_of(figure):
    """[(face colour, hatch, number of bars)] of each group of bars."""
    groups = figure.axes[0].findobj(PolyCollection)
    return [(tuple(g.get_facecolor()[0].round(2)), g.get_hatch(), len(g.get_paths())) for g in groups]


def test_communication_is_striped_and_computing_is_not():
    figure = Timeline([training_step(0, network=False)]).draw()
    hatches = [hatch for _, hatch, _ in bars_of(figure) if hatch]
    assert hatches == [COMMUNICATING.stripes]


def test_a_transfer_lies_below_the_bars_of_its_rank():
    figure = Timeline([training_step(0, network=True), training_step(1, network=True)]).draw()
    lanes = [
        g.get_paths()[0].get_extents() for g in figure.axes[0].findobj(PolyCollection) if g.get_facecolor()[0][3] < 0.9
    ]
    bars = [
        g.get_paths()[0].get_extents() for g in figure.axes[0].findobj(PolyCollection) if g.get_facecolor()[0][3] > 0.9
    ]
    assert len(lanes) == 2
    for lane in lanes:
        row = [bar for bar in bars if round(bar.y0 + 0.38) == round(lane.y0 - 0.22)]
        assert row and all(bar.y1 < lane.y0 for bar in row)
    assert IN_FLIGHT.label in [t.get_text() for t in figure.axes[0].get_legend().get_texts()]


def test_the_legend_names_what_is_drawn_and_no_more():
    spans = [Span(name, i * MS, (i + 1) * MS) for i, name in enumerate("abcde")]
    legend = Timeline([spans]).draw().axes[0].get_legend()
    assert [t.get_text() for t in legend.get_texts()] == ["a", "b", "c", "other computing", "idle"]


def test_many_spans_become_few_bars_and_wide_ones_stay_true():
    many = [
        Span("tiny" if i % 3 else "send", 100 * i, 100 * i + 90, *(() if i % 3 else ("comm",))) for i in range(30_000)
    ]
    wide = Span("wide", 3_000_000, 4_000_000)
    figure = Timeline([[*many, wide]]).draw()
    assert sum(count for _, _, count in bars_of(figure)) <= 1 / FINEST + 3
    paths = [path.get_extents() for g in figure.axes[0].findobj(PolyCollection) for path in g.get_paths()]
    assert (3.0, 4.0) in [(round(box.x0, 6), round(box.x1, 6)) for box in paths]


def test_it_draws_into_axes_it_is_given():
    figure = Figure()
    ax = figure.add_subplot()
    assert Timeline([training_step(0, False)]).draw(ax=ax) is figure
    assert ax.get_xlabel() and len(figure.axes) == 1


@pytest.mark.parametrize("spans_by_rank", [[], [[]], [[], []], [[Span("a", 5, 5)]]])
def test_nothing_to_draw_says_so(spans_by_rank):
    figure = Timeline(spans_by_rank).draw()
    assert "No spans were recorded." in [t.get_text() for t, _ in texts_of(figure)]


def test_a_notebook_gets_a_sharp_png_of_the_right_size():
    data, shown_at = Timeline([training_step(0, False)]).draw()._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (2 * shown_at["width"], 2 * shown_at["height"])
