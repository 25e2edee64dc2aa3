"""The broadcast tree: by hand, what must hold for any size, and the picture that follows the sliders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch

from course_lib.lab.widgets import tree_stepper
from course_lib.lab.widgets.tree import rounds, run
from course_lib.lab.widgets.tree_stepper import draw


def test_three_ranks_by_hand():
    assert [(sorted(s.have), s.moves) for s in run(3)] == [
        ([0], ()),
        ([0, 1], ((0, 1),)),
        ([0, 1, 2], ((0, 2),)),
    ]


def test_four_ranks_from_root_three_by_hand():
    assert [(sorted(s.have), s.moves) for s in run(4, root=3)] == [
        ([3], ()),
        ([0, 3], ((3, 0),)),
        ([0, 1, 2, 3], ((3, 1), (0, 2))),
    ]


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_rounds(ranks, expected):
    assert rounds(ranks) == expected == len(run(ranks)) - 1


@given(st.integers(1, 40), st.integers(0, 39))
def test_only_who_has_it_sends_it_and_everyone_gets_it_once(ranks, root):
    root %= ranks
    states = run(ranks, root)
    received = []
    for before, after in zip(states, states[1:], strict=False):
        senders = [sender for sender, _ in after.moves]
        assert set(senders) <= before.have and len(set(senders)) == len(senders)
        received += [receiver for _, receiver in after.moves]
        assert len(after.have) == min(2 * len(before.have), ranks)
    assert sorted([root, *received]) == list(range(ranks))


def test_a_root_outside_the_group_is_refused():
    with pytest.raises(ValueError, match="Root 4 is not one of 4 ranks"):
        run(4, root=4)


def test_each_slider_changes_the_picture():
    stepper = tree_stepper(ranks=8, root=0, round=1)
    for name, value in (("round", 2), ("root", 3), ("ranks", 6)):
        before = stepper.image.value
        stepper.controls[name].value = value
        assert stepper.image.value != before
    assert stepper.image.value == draw(6, 3, 2).png()
    assert "3 → 5, 4 → 0" in stepper.caption.value.replace("&gt;", ">")


def test_fewer_ranks_keep_root_and_round_in_reach():
    stepper = tree_stepper(ranks=16, root=15, round=4)
    stepper.controls["ranks"].value = 3
    assert stepper.values == {"ranks": 3, "root": 2, "round": 2}
    assert stepper.image.value == draw(3, 2, 2).png()


@pytest.mark.parametrize("ranks", [1, 17])
def test_a_tree_that_cannot_be_drawn_is_refused(ranks):
    with pytest.raises(ValueError, match=f"2 to 16 ranks; {ranks} were"):
        tree_stepper(ranks=ranks)


def test_the_drawing_shows_the_state_and_not_what_is_to_come():
    ax = draw(8, 3, 2).axes[0]
    arrows = {tuple(arrow._posA_posB) for arrow in ax.patches if isinstance(arrow, FancyArrowPatch)}
    assert arrows == {((3, 0), (4, 1)), ((3, 1), (5, 2)), ((4, 1), (6, 2))}
    dots = {(x, y) for line in ax.lines if line.get_marker() in ("o", "s") for x, y in line.get_xydata()}
    assert dots == {(rank, row) for rank in range(8) for row in range(3)}


@pytest.mark.parametrize("ranks", [2, 16])
def test_nothing_is_cut(ranks):
    figure = draw(ranks, 1, rounds(ranks))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    used = figure.get_tightbbox(canvas.get_renderer())  # inches
    width, height = figure.get_size_inches()
    assert used.x0 >= 0 and used.x1 <= width
    assert used.y0 >= 0 and used.y1 <= height
