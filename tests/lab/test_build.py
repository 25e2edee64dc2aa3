"""Built notebooks: written, found stale, never written over a learner's work, and free of the machine's paths."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib.lab import build, outputs
from course_lib.lab.source import BuildError

LAB, SOLVED = "labs/lab9_tiny.ipynb", "solutions/lab9_tiny.ipynb"


def edit(path, change):
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def rewrite(workbook, old, new):
    source = workbook / "solutions" / "lab9_tiny.py"
    text = source.read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new), encoding="utf-8")


def test_the_learners_notebook_has_no_outputs_and_the_solved_one_has_what_it_printed(built, capsys):
    lab, solved = (nbformat.read(built / path, as_version=4) for path in (LAB, SOLVED))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in lab.cells)
    printed = "".join(output.text for cell in solved.cells for output in cell.get("outputs", []))
    assert "the mean is 2.0" in printed and "not attempted" not in printed
    assert solved.metadata.language_info == {"name": "python"} and "widgets" not in solved.metadata
    assert build.main(["--check"], built) == 0


def test_a_second_build_writes_nothing(built, capsys):
    before = [(built / path).stat().st_mtime_ns for path in (LAB, SOLVED)]
    assert build.main([], built) == 0
    assert [(built / path).stat().st_mtime_ns for path in (LAB, SOLVED)] == before
    assert "lab9_tiny: up to date." in capsys.readouterr().out


def test_check_names_each_missing_notebook_and_builds_nothing(workbook, capsys):
    assert build.main(["--check"], workbook) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{LAB} is missing",
        f"{SOLVED} is missing",
    ]
    assert not (workbook / LAB).exists()


def test_check_names_both_notebooks_when_the_source_changed(built, capsys):
    rewrite(built, "the mean is", "it is")
    assert build.main(["--check"], built) == 1
    out = capsys.readouterr().out
    assert f"{LAB} is older than its source" in out and f"{SOLVED} is older than its source" in out


def test_check_names_only_the_solved_notebook_when_only_a_solution_changed(built, capsys):
    rewrite(built, "total += value", "total = total + value")
    assert build.main(["--check"], built) == 1
    out = capsys.readouterr().out
    assert SOLVED in out and LAB not in out


def test_check_sees_that_the_library_changed_under_an_exercise(built, capsys, monkeypatch):
    from course_lib.collectives import simple

    monkeypatch.setattr(simple, "ring_reduce_scatter", simple.tree_broadcast)
    assert build.main(["--check"], built) == 1


@pytest.mark.parametrize("path", [LAB, SOLVED])
def test_check_sees_a_notebook_edited_by_hand(built, capsys, path):
    edit(built / path, lambda notebook: notebook.cells[1].update(source="x = 1"))
    assert build.main(["--check"], built) == 1
    assert f"{path} was edited" in capsys.readouterr().out


def test_check_sees_a_solved_notebook_that_was_not_executed(built, capsys):
    edit(built / SOLVED, lambda notebook: notebook.cells[1].update(execution_count=None))
    assert build.main(["--check"], built) == 1
    assert f"{SOLVED} was not executed" in capsys.readouterr().out


def test_a_notebook_that_is_no_notebook_is_named(built, capsys):
    (built / LAB).write_text("{", encoding="utf-8")
    assert build.main(["--check"], built) == 1
    assert "lab9_tiny.ipynb is not a readable notebook" in capsys.readouterr().out


def test_a_learners_work_is_set_aside_each_time_never_overwritten(built, capsys):
    for number, answer in enumerate(["first", "second"]):
        edit(built / LAB, lambda notebook, answer=answer: notebook.cells[1].update(source=answer))
        assert build.main([], built) == 0
        aside = built / "labs" / f"lab9_tiny.mine{'' if not number else 2}.ipynb"
        assert nbformat.read(aside, as_version=4).cells[1].source == answer
        assert f"kept as labs/{aside.name}" in capsys.readouterr().out
    assert build.main(["--check"], built) == 0


def test_a_solved_notebook_that_fails_leaves_the_old_one(built, capsys):
    before = (built / SOLVED).read_text(encoding="utf-8")
    rewrite(built, "count += 1", "count += nothing")
    assert build.main([], built) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{SOLVED}: the solved notebook does not run, NameError: name 'nothing' is not defined\n")
    assert (built / SOLVED).read_text(encoding="utf-8") == before


def test_an_output_that_names_this_machine_is_refused(built, capsys):
    rewrite(built, 'print("pid", os.getpid())', "print(os.path.expanduser('~/secret'))")
    assert build.main([], built) == 1
    assert "holds a path of this machine" in capsys.readouterr().err


def printing(text, **data):
    output = new_output("display_data", data=data) if data else new_output("stream", name="stdout", text=text)
    return new_notebook(cells=[new_code_cell("x", id="x", outputs=[output])])


def test_a_path_under_the_workbook_is_shown_from_the_workbook(tmp_path):
    notebook = printing(f"wrote {tmp_path}/runs/lab9/report.html\n")
    outputs.clean(notebook, tmp_path)
    outputs.refuse(notebook)
    assert notebook.cells[0].outputs[0].text == "wrote runs/lab9/report.html\n"


def test_widget_ids_are_dropped_and_the_still_picture_kept(tmp_path):
    notebook = printing("", **{outputs.WIDGET: {"model_id": "1f"}, "image/png": "iVBOR"})
    outputs.clean(notebook, tmp_path)
    assert notebook.cells[0].outputs[0].data == {"image/png": "iVBOR"}


@pytest.mark.parametrize("text", ["File /home/me/x.py", "/tmp/ipykernel_12/3.py:1: Warn", "in /root/.cache", "~/x.py"])
def test_paths_of_a_machine_are_refused(text):
    with pytest.raises(BuildError, match="cell 1 .x. holds a path of this machine"):
        outputs.refuse(printing(text))


@pytest.mark.parametrize("text", ["10%|# | 1/9\r20%|## | 2/9", "3/9 [00:01, 2.31it/s]"])
def test_progress_bars_are_refused(text):
    with pytest.raises(BuildError, match="progress bar"):
        outputs.refuse(printing(text))


@pytest.mark.parametrize("text", ["ranks/home/x", "http://example.org/tmp/x", "a/root/b", "1.3 s/iteration", "a\r\n"])
def test_ordinary_text_is_not_refused(text):
    outputs.refuse(printing(text))


def test_a_notebook_too_large_is_refused_naming_its_largest_cell():
    with pytest.raises(BuildError, match="too large .* most is in x"):
        outputs.refuse(printing("", **{"image/png": "A" * (outputs.LARGEST + 1)}))
