"""From a source to the cells of both notebooks."""

import inspect
from pathlib import Path

import pytest

from course_lib.collectives import simple
from course_lib.lab.source import BuildError, blanked, cell_id, filled, fingerprint, read

BLANK = """\
def f(x):
    for y in x:
        # BEGIN SOLUTION
        # why
        a = 1

        b = 2
        c = 3
        # END SOLUTION
    return c
"""


def read_text(tmp_path: Path, text: str):
    source = tmp_path / "lab9_tiny.py"
    source.write_text(text, encoding="utf-8")
    return read(source)


def code(notebook, name):
    return next(cell.source for cell in notebook.cells if cell.id == name)


def test_a_blank_keeps_its_indentation_and_counts_its_lines_of_code():
    stub = "        # YOUR CODE (about 3 lines)\n        raise NotImplementedError\n"
    assert blanked(BLANK) == f"def f(x):\n    for y in x:\n{stub}    return c\n"


def test_the_solved_cell_is_the_blank_without_its_markers():
    assert filled(BLANK) == (
        "def f(x):\n    for y in x:\n        # why\n        a = 1\n\n        b = 2\n        c = 3\n    return c\n"
    )


def test_two_blanks_in_one_cell_are_two_stubs():
    assert blanked(BLANK + BLANK.replace("def f", "def g")).count("raise NotImplementedError") == 2


@pytest.mark.parametrize("lines", [1, 2, 13])
def test_a_blank_too_short_or_too_long_is_refused_with_its_length(lines):
    text = "# BEGIN SOLUTION\n" + "x = 1\n" * lines + "# END SOLUTION"
    with pytest.raises(BuildError, match=f"a blank of {lines} lines"):
        blanked(text)


@pytest.mark.parametrize("marker", ["# BEGIN SOLUTION\nx = 1", "x = 1\n    # END SOLUTION"])
def test_a_marker_without_its_partner_is_refused(marker):
    with pytest.raises(BuildError, match="stands alone"):
        blanked(marker)


def test_an_exercise_from_the_library_is_the_librarys_own_source(workbook):
    pair = read(workbook / "solutions" / "lab9_tiny.py")
    assert code(pair.solved, "ring-reduce-scatter") == filled(inspect.getsource(simple.ring_reduce_scatter)).rstrip()
    stub = code(pair.lab, "ring-reduce-scatter")
    assert "# YOUR CODE (about 5 lines)\n    raise NotImplementedError\n" in stub
    assert "send_recv" not in stub


def test_nothing_of_a_solution_is_left_in_the_learners_notebook(workbook):
    lab = read(workbook / "solutions" / "lab9_tiny.py").lab
    text = "\n".join(cell.source for cell in lab.cells)
    assert "SOLUTION" not in text and "count += 1" not in text
    assert "return total / count" in text


def test_both_notebooks_have_the_same_ids_and_tags_and_name_their_kernel(workbook):
    pair = read(workbook / "solutions" / "lab9_tiny.py")
    for lab, solved in zip(pair.lab.cells, pair.solved.cells, strict=True):
        assert (lab.id, lab.metadata) == (solved.id, solved.metadata)
    assert pair.lab.metadata.kernelspec.name == pair.solved.metadata.kernelspec.name == "python3"


def test_a_small_edit_changes_no_id(tmp_path):
    before = read_text(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\nx = 1\ny = 2\n\n# %%\nz = 3\n")
    after = read_text(tmp_path, "# %% [markdown]\n# # Title\n# more\n\n# %%\nx = 1\n\n# %%\nnew = 0\n\n# %%\nz = 3\n")
    ids = [cell.id for cell in before.lab.cells]
    assert ids == ["title", "x-1", "z-3"]
    assert set(ids) < {cell.id for cell in after.lab.cells}


def test_cells_that_begin_alike_get_different_ids():
    taken: set[str] = set()
    assert [cell_id(text, taken) for text in ("print(1)", "print(1)", "")] == ["print-1", "print-1-2", "empty"]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("# exercise: course_lib.nowhere:f", "names nothing"),
        ("# exercise: course_lib.collectives.simple:nothing", "names nothing"),
        ("# exercise: course_lib.collectives.p2p:split", "nothing to blank|no BEGIN SOLUTION"),
    ],
)
def test_a_wrong_exercise_line_is_refused_naming_file_and_cell(tmp_path, line, reason):
    with pytest.raises(BuildError, match=rf"lab9_tiny.py, cell 2: .*({reason})"):
        read_text(tmp_path, f"# %% [markdown]\n# # Title\n\n# %%\n{line}\n")


def test_the_fingerprint_sees_sources_tags_and_ids_but_not_outputs(workbook):
    lab = read(workbook / "solutions" / "lab9_tiny.py").lab
    seen = {fingerprint(lab)}
    lab.cells[1].outputs = [{"output_type": "stream", "name": "stdout", "text": "x"}]
    assert fingerprint(lab) in seen
    for change in ({"source": "x"}, {"id": "other"}, {"metadata": {"tags": ["new"]}}):
        lab.cells[1].update(change)
        assert fingerprint(lab) not in seen
        seen.add(fingerprint(lab))
