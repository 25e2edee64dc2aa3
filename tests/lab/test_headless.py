"""`make labN`: the report is kept whatever happens, the exit code tells, no process and no changed source is left."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import nbformat
import psutil
import pytest

from course_lib.lab import headless

WAIT = 120  # seconds until a run that never comes to its point is a failure

RECORD = """
from course_lib.lab import progress
progress.record_attempt("ours", {state!r}, 0.5)
progress.record("figures", "alpha", value=52e-6, unit="s", lab="lab9")
"""


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "learner.json"))
    for name in ("RANKS", "SOLUTION", "COURSE_RANKS"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "learner.json"
    # main() takes over both signals, as befits a program of its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def put(root, *sources):
    """Let these be the code cells of the learner's notebook; return its text as written."""
    path = root / "labs" / "lab9_tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = [nbformat.v4.new_code_cell(source, id=f"c{number}") for number, source in enumerate(sources)]
    notebook.cells = cells
    nbformat.write(notebook, path)
    return path.read_text(encoding="utf-8")


def report(root, suffix=""):
    folder = root / "runs" / "lab9"
    assert (folder / f"lab9_tiny{suffix}.html").exists()
    cells = nbformat.read(folder / f"lab9_tiny{suffix}.ipynb", as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def test_the_learners_notebook_runs_into_a_report_and_stays_as_it_was(built, capfd):
    before = put(built, "print(6 * 7)")
    assert headless.main(["lab9"], built) == 0
    assert "42" in report(built)
    assert (built / "labs" / "lab9_tiny.ipynb").read_text(encoding="utf-8") == before
    out, err = capfd.readouterr()
    assert out.startswith("labs/lab9_tiny.ipynb\n") and "backend  gloo" in out
    assert "runs/lab9/lab9_tiny.html" in out
    assert "1/1" in err  # the progress bar over the cells


def test_the_untouched_lab_runs_to_its_end(built):
    assert headless.main(["lab9"], built) == 0
    assert "not attempted" in report(built)


def test_solution_1_runs_the_solved_notebook_beside_the_learners_report(built, monkeypatch, own_progress):
    monkeypatch.setenv("SOLUTION", "1")
    assert headless.main(["lab9"], built) == 0
    assert "the mean is 2.0" in report(built, ".solution")
    assert not own_progress.exists()


def test_ranks_reach_the_notebook(built, monkeypatch, capsys):
    monkeypatch.setenv("RANKS", "3")
    put(built, "import os\nprint(os.environ['COURSE_RANKS'], 'ranks')")
    assert headless.main(["lab9"], built) == 0
    assert "3 ranks" in report(built)
    assert "ranks    3" in capsys.readouterr().out


def test_a_failing_cell_keeps_the_report_up_to_it(built, capsys):
    put(built, "print('before')", "raise ValueError('the reason\\nand more')", "print('after')")
    assert headless.main(["lab9"], built) == 1
    assert report(built).split() == ["before"]
    assert capsys.readouterr().err.splitlines()[-1] == "Cell 2 failed: ValueError: the reason"


def test_a_cell_that_is_meant_to_fail_is_no_failure(built, capsys):
    put(built, "raise ValueError('as announced')", "print('after')")
    path = built / "labs" / "lab9_tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].metadata.tags = ["raises-exception"]
    nbformat.write(notebook, path)
    assert headless.main(["lab9"], built) == 0
    assert "after" in report(built)
    assert len(nbformat.read(built / "runs" / "lab9" / "lab9_tiny.ipynb", as_version=4).cells) == 2  # no banner
    notebook.cells[1].source = "raise KeyError"
    nbformat.write(notebook, path)
    assert headless.main(["lab9"], built) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "Cell 2 failed: KeyError: "


def test_an_exercise_that_is_no_python_is_named(built, capsys):
    put(built, "x = 1", "def all_reduce(x)\n    return x")
    assert headless.main(["lab9"], built) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("Cell 2 (exercise all_reduce) failed: SyntaxError: ")


def test_an_answer_that_is_not_right_yet_is_told_why():
    said = "Not yet. 4 ranks, x = 8 elements: no rank sent a message."
    lines = headless.summary({"exercises": {"ours": {"state": "not yet", "message": said}}, "figures": {}}, ["ours"])
    assert lines[1:] == ["  not yet        ours", f"{'':17}4 ranks, x = 8 elements: no rank sent a message."]


def test_a_dead_kernel_is_named_and_keeps_the_report(built, capsys):
    put(built, "print('before')", "import os\nos._exit(3)")
    assert headless.main(["lab9"], built) == 1
    assert "before" in report(built)
    assert "kernel died" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("state, code", [("passed", 0), ("not attempted", 0), ("not yet", 1)])
def test_the_exit_code_and_the_learners_progress_follow_the_answers(built, capsys, own_progress, state, code):
    put(built, RECORD.format(state=state))
    assert headless.main(["lab9"], built) == code
    assert "  alpha: 52 µs" in capsys.readouterr().out
    kept = json.loads(own_progress.read_text(encoding="utf-8"))
    assert kept["figures"]["alpha"]["value"] == 52e-6
    assert kept["exercises"].get("ours", {}).get("state", "not attempted") == state


def test_what_was_passed_last_week_says_nothing_about_this_run(built, own_progress):
    put(built, RECORD.format(state="passed"))
    assert headless.main(["lab9"], built) == 0
    put(built, RECORD.format(state="not yet"))
    assert headless.main(["lab9"], built) == 1
    assert json.loads(own_progress.read_text(encoding="utf-8"))["exercises"]["ours"]["state"] == "passed"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_report_and_leaves_no_process(built, signal_number):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        stuck = [
            "import os, socket",
            f"talk = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))",
            "talk.sendall(f'{os.getpid()}\\n'.encode())",
            "talk.recv(1)",
        ]
        put(built, "print('before')", "\n".join(stuck))
        call = f"headless.main(['lab9'], pathlib.Path({str(built)!r}))"
        program = f"import pathlib, sys; from course_lib.lab import headless; sys.exit({call})"
        runner = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        connection, _ = server.accept()
        kernel = psutil.Process(int(connection.makefile().readline()))
        with connection:
            os.kill(runner.pid, signal_number)
            os.kill(runner.pid, signal_number)  # as people do
            _, err = runner.communicate(timeout=WAIT)
    assert runner.returncode == 130, err
    assert "Interrupted" in err.splitlines()[-1]
    assert "before" in report(built)
    assert psutil.wait_procs([kernel], timeout=WAIT)[1] == []


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("RANKS", "x", "RANKS must be a whole number from 2 to 64, not 'x'."),
        ("RANKS", "0", "RANKS must be a whole number from 2 to 64, not '0'."),
        ("SOLUTION", "maybe", "SOLUTION must be 1 (run the solved notebook) or 0 (run yours), not 'maybe'."),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(built, monkeypatch, capsys, name, value, sentence):
    monkeypatch.setenv(name, value)
    assert headless.main(["lab9"], built) == 1
    assert capsys.readouterr().err == sentence + "\n"
    assert not (built / "runs").exists()


def test_an_unknown_lab_and_an_unbuilt_one_are_named(workbook, capsys):
    assert headless.main(["lab8"], workbook) == 1
    assert capsys.readouterr().err == "There is no lab8 here; the labs are: lab9 (tiny).\n"
    assert headless.main(["lab9"], workbook) == 1
    assert capsys.readouterr().err == "labs/lab9_tiny.ipynb is missing: `make notebooks` builds it.\n"


def test_a_lab_of_several_notebooks_runs_them_in_turn_and_ends_as_the_worst_did(built, capsys):
    put(built, RECORD.format(state="not yet"))
    for folder in ("labs", "solutions"):
        for path in (built / folder).glob("lab9_tiny.*"):
            for letter in "ab":
                shutil.copy(path, path.with_name(path.name.replace("lab9_tiny", f"lab9{letter}_tiny")))
            path.unlink()
    last = built / "labs" / "lab9b_tiny.ipynb"
    last.write_text(last.read_text(encoding="utf-8").replace("not yet", "passed"), encoding="utf-8")
    assert headless.main(["lab9"], built) == 1
    out = capsys.readouterr().out
    assert out.index("labs/lab9a_tiny.ipynb") < out.index("runs/lab9a/") < out.index("labs/lab9b_tiny.ipynb")
    assert "runs/lab9b/lab9b_tiny.html" in out
    assert headless.main(["lab9b"], built) == 0
