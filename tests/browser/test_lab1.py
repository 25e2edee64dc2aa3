"""Lab 1 as a learner meets it: run it untouched, answer rightly and see the timeline, answer wrongly."""

import pytest
from jupyter import Notebook, solution

pytestmark = pytest.mark.browser

NAME = "lab1_data_parallel.ipynb"
ANSWER, CHECK = "def backward_with_overlap(", "check(backward_with_overlap)"


@pytest.fixture(scope="module")
def lab(page):
    """Lab 1, opened, all cells run with nothing attempted."""
    notebook = Notebook(page, NAME)
    notebook.run_all()
    return notebook


def test_everything_runs_and_no_error_is_shown(lab):
    assert lab.errors() == []
    assert lab.not_run() == []
    assert "Not attempted" in lab.output(CHECK)
    lab.screenshot("lab1-curves", "plots.curves(curves")


def test_a_right_answer_passes_and_shows_its_timeline(lab):
    lab.write(ANSWER, solution(NAME, ANSWER))
    lab.run(ANSWER)
    assert "Passed on 2, 3 and 4 ranks" in lab.run(CHECK)
    assert lab.picture(CHECK)
    lab.screenshot("lab1-passed", CHECK)
    assert lab.errors() == []


def test_a_sum_for_a_mean_is_told(lab):
    right = solution(NAME, ANSWER)
    wrong = "\n".join(line for line in right.splitlines() if "bucket.flat /= n" not in line)
    assert wrong != right
    lab.write(ANSWER, wrong)
    lab.run(ANSWER)
    told = lab.run(CHECK)
    lab.screenshot("lab1-not-yet", CHECK)
    assert told.startswith("Not yet. 4 ranks") and "a sum where a mean is needed" in told
    assert lab.errors() == []
