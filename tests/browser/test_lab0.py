"""Lab 0 as a learner meets it: run it untouched, answer rightly, answer wrongly, move a slider."""

import pytest
from jupyter import Notebook, solution

pytestmark = pytest.mark.browser

NAME = "lab0_ranks_and_collectives.ipynb"
ANSWER, CHECK = "def ring_reduce_scatter(", "check(ring_reduce_scatter)"
SLIDER = "ring_stepper("


@pytest.fixture(scope="module")
def lab(page):
    """Lab 0, opened, all cells run with nothing attempted."""
    notebook = Notebook(page, NAME)
    notebook.run_all()
    return notebook


def test_everything_runs_and_no_error_is_shown(lab):
    lab.screenshot("lab0-top", lab.sources()[0])
    assert lab.errors() == []
    assert lab.not_run() == []
    assert "Not attempted" in lab.output(CHECK)


def test_a_right_answer_passes(lab):
    lab.write(ANSWER, solution(NAME, ANSWER))
    lab.run(ANSWER)
    assert "Passed on 2, 3 and 4 ranks" in lab.run(CHECK)
    lab.screenshot("lab0-passed", CHECK)
    assert lab.errors() == []


def test_a_wrong_answer_is_told_why(lab):
    right = solution(NAME, ANSWER)
    wrong = right.replace("chunks[left].clone()", "chunks[rank].clone()")  # the ring starts one chunk too far
    assert wrong != right
    lab.write(ANSWER, wrong)
    lab.run(ANSWER)
    told = lab.run(CHECK)
    lab.screenshot("lab0-not-yet", CHECK)
    assert told.startswith("Not yet. 4 ranks") and "rank 3 should hold chunk 3" in told
    assert lab.errors() == []


def test_the_picture_follows_the_slider(lab):
    first = lab.picture(SLIDER)
    lab.move_slider(SLIDER, 1)
    second = lab.wait_for_new_picture(SLIDER, first)
    lab.screenshot("lab0-slider", SLIDER)
    lab.move_slider(SLIDER, -1)
    assert lab.wait_for_new_picture(SLIDER, second) == first


def test_an_error_would_be_seen(lab):
    """So that "no error is shown" means something: a cell is made to fail."""
    lab.write(CHECK, "raise RuntimeError('made to fail')")
    lab.run("made to fail")
    assert any("made to fail" in text for text in lab.errors())
