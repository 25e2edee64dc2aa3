"""The solved notebooks: executed anew, each output is what is stored, and every exercise passes."""

from pathlib import Path

import pytest
from validation import compared, nbval, states

ROOT = Path(__file__).parents[2]
SOLVED = sorted((ROOT / "solutions").glob("lab*.ipynb"))


def test_there_is_a_solved_notebook():
    assert SOLVED


@pytest.mark.parametrize("notebook", SOLVED, ids=lambda path: path.stem)
def test_a_solved_notebook_gives_its_stored_outputs_again(notebook, tmp_path):
    assert compared(notebook) >= 5  # fewer would leave too much to "it ran"
    result = nbval(notebook, tmp_path / "progress.json", strict=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(states(notebook, tmp_path / "progress.json").values()) == {"passed"}
