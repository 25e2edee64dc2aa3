"""The frame of a lab: what start prints, how many ranks, what a figure keeps and how it reads."""

import json

import pytest

from course_lib.doctor.options import OptionError
from course_lib.lab import machine


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.delenv("COURSE_RANKS", raising=False)
    monkeypatch.setattr(machine, "_lab", "")
    return tmp_path / "progress.json"


def test_there_are_four_ranks_unless_the_environment_says_otherwise(monkeypatch):
    assert machine.ranks() == 4
    monkeypatch.setenv("COURSE_RANKS", "3")
    assert machine.ranks() == 3


@pytest.mark.parametrize("text", ["0", "1", "65", "-4", "x", "2.5", " 4", "٤", "9" * 5000])
def test_a_wrong_number_of_ranks_is_refused_with_what_would_work(monkeypatch, text):
    monkeypatch.setenv("COURSE_RANKS", text)
    with pytest.raises(OptionError, match="whole number from 2 to 64"):
        machine.ranks()


def test_start_says_what_the_machine_offers_and_how_far_the_learner_is(capsys):
    machine.start("lab0")
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["cores", "memory", "GPUs", "ranks", "backend", "lab0"]


def test_a_figure_is_printed_and_kept_with_its_unit_and_lab(capsys, own_progress):
    machine.start("lab0")
    capsys.readouterr()
    machine.figure("alpha", 52e-6, "s")
    assert capsys.readouterr().out == "alpha: 52 µs\n"
    kept = json.loads(own_progress.read_text(encoding="utf-8"))["figures"]
    assert kept == {"alpha": {"value": 52e-6, "unit": "s", "lab": "lab0"}}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="alpha"):
        machine.figure("alpha", value, "s")


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (52e-6, "s", "52 µs"),
        (1.5, "s", "1.5 s"),
        (0.0, "s", "0 s"),
        (-2e-3, "s", "-2 ms"),
        (3.21e9, "B/s", "3.21 GB/s"),
        (64e6, "B", "64 MB"),
        (0.98, "", "0.98"),
        (1234.0, "steps", "1.23e+03 steps"),
        (1e-12, "s", "0.001 ns"),
    ],
)
def test_figures_read_well(value, unit, text):
    assert machine.readable(value, unit) == text
