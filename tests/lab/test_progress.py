"""Progress survives: other kernels, a damaged file, a folder that cannot be written."""

import json
import subprocess
import sys

import pytest

from course_lib.lab import progress


def entries():
    return progress.load()["exercises"]


def test_an_attempt_is_kept(own_progress):
    progress.record_attempt("all_reduce", "not yet")
    progress.record_attempt("all_reduce", "passed", 0.2)
    progress.record_attempt("all_reduce", "passed", 0.3)
    progress.record_attempt("all_reduce", "not yet")
    assert entries()["all_reduce"] == {"attempts": 4, "state": "passed", "seconds": 0.2}
    assert json.loads(own_progress.read_text())["version"] == progress.VERSION


def test_fields_are_set_beside_others(own_progress):
    progress.record("figures", "alpha", value=52e-6)
    progress.record("figures", "alpha", unit="s")
    assert progress.load()["figures"]["alpha"] == {"value": 52e-6, "unit": "s"}


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"exercises": []}', '{"version": 99}', "\udcff"])
def test_a_damaged_file_is_set_aside_and_told(own_progress, damaged, capsys):
    own_progress.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    progress.record_attempt("all_reduce", "not yet")
    assert entries()["all_reduce"]["attempts"] == 1
    aside = list(own_progress.parent.glob("progress.damaged-*.json"))
    assert len(aside) == 1 and aside[0].read_bytes() == damaged.encode("utf-8", "surrogateescape")
    told = capsys.readouterr().err
    assert "could not be read" in told and aside[0].name in told


def test_two_kernels_at_once_lose_nothing(own_progress):
    code = (
        "import sys\nfrom course_lib.lab import progress\n"
        "for _ in range(40):\n"
        "    for name in (sys.argv[1], 'both'): progress.record_attempt(name, 'not yet')"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("one", "two")]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0]
    assert {name: entry["attempts"] for name, entry in entries().items()} == {"one": 40, "two": 40, "both": 80}
    assert list(own_progress.parent.glob("*.new")) == []


def test_an_interrupted_write_leaves_the_old_file(own_progress, monkeypatch):
    progress.record_attempt("all_reduce", "passed")
    before = own_progress.read_text()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        progress.record_attempt("all_reduce", "not yet")
    assert own_progress.read_text() == before and list(own_progress.parent.glob("*.new")) == []


def test_a_folder_that_cannot_be_written_stops_no_lab(own_progress, monkeypatch, capsys):
    in_the_way = own_progress.parent / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("COURSE_PROGRESS", str(in_the_way / "progress.json"))
    progress.record_attempt("all_reduce", "passed")
    progress.record_attempt("all_reduce", "passed")
    assert capsys.readouterr().err.count("Progress is not kept") == 1


def test_where_it_is_kept(own_progress, monkeypatch, tmp_path):
    assert progress.path() == own_progress
    monkeypatch.delenv("COURSE_PROGRESS")
    (tmp_path / "labs").mkdir()
    monkeypatch.chdir(tmp_path / "labs")
    assert progress.path() == tmp_path / "labs" / ".progress" / "progress.json"
    (tmp_path / "Makefile").touch()
    (tmp_path / "course_lib").mkdir()
    assert progress.path() == tmp_path / ".progress" / "progress.json"


def test_the_table(own_progress):
    from course_lib import lab

    progress.record_attempt("all_reduce", "passed", 0.0213)
    progress.record("exercises", "all_reduce", hints=2)
    progress.record_attempt("tree_broadcast", "not yet")
    text = str(lab.progress())  # the module, called
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["lab0:"].startswith("lab0: 1 of ")
    assert rows["all_reduce"].split()[1:] == ["●●●", "passed", "1", "2", "of", "4", "21", "ms"]
    assert "not yet" in rows["tree_broadcast"] and "not attempted" in rows["ring_all_gather"]
    assert "<td" in lab.progress()._repr_html_()


def test_the_command(own_progress):
    progress.record_attempt("all_reduce", "passed", 0.0213)
    run = subprocess.run([sys.executable, "-m", "course_lib.lab.progress"], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "all_reduce" in run.stdout and f"Kept in {own_progress}." in run.stdout


def test_the_figures_measured_stand_under_their_labs_exercises(own_progress):
    progress.record("figures", "alpha", value=52e-6, unit="s", lab="lab0")
    progress.record("figures", "speed", value=3e9, unit="B/s", lab="another lab")
    table = progress.show()
    assert table.measured("lab0") == ["alpha: 52 µs"]
    assert "alpha: 52 µs" in str(table)
    assert "alpha: 52 µs" in table._repr_html_()
    assert "speed" not in str(table)
