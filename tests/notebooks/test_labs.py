"""The learner's notebooks as they are handed out: nothing attempted, and still they run to their end."""

from pathlib import Path

import nbformat
import pytest
from validation import nbval, states

ROOT = Path(__file__).parents[2]
LABS = sorted(path for path in (ROOT / "labs").glob("lab*.ipynb") if ".mine" not in path.name)


def test_there_is_a_lab_for_each_solved_notebook():
    assert LABS and [path.name for path in LABS] == [path.name for path in sorted((ROOT / "solutions").glob("*.ipynb"))]


@pytest.mark.parametrize("notebook", LABS, ids=lambda path: path.stem)
def test_a_lab_with_nothing_attempted_runs_to_its_end(notebook, tmp_path):
    cells = nbformat.read(notebook, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)
    result = nbval(notebook, tmp_path / "progress.json", strict=False)
    assert result.returncode == 0, result.stdout + result.stderr
    after = states(notebook, tmp_path / "progress.json")
    assert set(after.values()) == {"not attempted"}
    # And each exercise did ask for its check, or "not attempted" would mean nothing.
    sources = "\n".join(cell.source for cell in cells)
    assert [name for name in after if f"check({name})" not in sources] == []
