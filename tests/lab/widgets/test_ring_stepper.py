"""The ring stepper: sliders move it, its pictures are whole."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

from course_lib.lab.widgets import ring_stepper
from course_lib.lab.widgets.ring import run
from course_lib.lab.widgets.ring_picture import HIGH, draw_all, draw_step


def test_the_step_slider_changes_the_picture():
    stepper = ring_stepper(ranks=3)
    seen = [stepper.image.value]
    for step in (1, 2, 3, 4):
        stepper.controls["step"].value = step
        assert stepper.image.value == draw_step(3, step).png()
        seen.append(stepper.image.value)
    assert len(set(seen)) == 5
    assert "Step 4 of 4" in stepper.caption.value


def test_fewer_ranks_at_the_last_step_stay_at_the_last_step():
    stepper = ring_stepper(ranks=5, step=8)
    stepper.controls["ranks"].value = 2
    assert stepper.values == {"ranks": 2, "step": 2} and stepper.controls["step"].max == 2
    assert stepper.image.value == draw_step(2, 2).png()
    stepper.controls["ranks"].value = 6
    assert stepper.controls["step"].max == 10
    assert stepper.image.value == draw_step(6, 2).png()


@pytest.mark.parametrize("ranks", [1, 9])
def test_a_ring_that_cannot_be_drawn_is_refused(ranks):
    with pytest.raises(ValueError, match=f"2 to 8 ranks; {ranks} were"):
        ring_stepper(ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_nothing_is_cut_and_no_text_covers_another(ranks):
    for figure in (draw_step(ranks, 1), draw_all(ranks)):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text()]
        boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts]
        for i, (text, box) in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, f"{text!r} is cut"
            assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, f"{text!r} is cut"
            for other, other_box in boxes[i + 1 :]:
                assert not box.overlaps(other_box), f"{text!r} covers {other!r}"


def arrows(ax, ranks):
    """{(x, row just below the arrow)} of the arrows that end on a box."""
    found = set()
    for arrow in ax.patches:
        if isinstance(arrow, FancyArrowPatch):
            (x, _), (_, y) = arrow._posA_posB
            row = y + HIGH / 2 + 0.03
            if abs(row - round(row)) < 1e-6 and round(row) < ranks:
                found.add((round(x), round(row)))
    return found


@pytest.mark.parametrize(("ranks", "step"), [(2, 1), (3, 2), (4, 5), (8, 9)])
def test_the_drawing_shows_the_state(ranks, step):
    state = run(ranks)[step]
    ax = draw_step(ranks, step).axes[0]
    assert arrows(ax, ranks) == {(move.chunk, move.receiver) for move in state.moves}
    grounds, bars, frames = (len(c.get_paths()) for c in ax.findobj(PatchCollection))
    assert grounds == ranks**2
    assert bars == sum(len(content) for row in state.holds for content in row)
    assert frames == sum(state.complete(r, c) for r in range(ranks) for c in range(ranks))
    written = {}
    for line in ax.lines:
        share = int(line.get_marker().strip("$"))
        written[share] = written.get(share, 0) + len(line.get_xdata())
    assert written == {s: sum(s in content for row in state.holds for content in row) for s in range(ranks)}


def test_the_still_shows_every_step_once():
    titles = [ax.get_title() for ax in draw_all(4).axes if ax.get_title()]
    assert titles == ["start", "step 1", "step 2", "step 3", "step 4", "step 5", "step 6"]
