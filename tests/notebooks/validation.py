"""Run nbval on one notebook in a process of its own, and say what in the notebook it compares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat

from course_lib.lab.exercise import all_exercises

SANITIZE = Path(__file__).with_name("sanitize.cfg")
CELL_SECONDS = 120  # a cell of a lab takes 10 s at most; on a busy machine several times that
IGNORED = {"nbval-ignore-output", "nbval-skip"}


def nbval(notebook: Path, progress: Path, strict: bool) -> subprocess.CompletedProcess:
    """Execute `notebook` anew in a kernel of this environment; `strict`: and compare each output with the stored one.

    The checks record into `progress`, a file of this run.
    """
    how = ["--nbval", f"--nbval-sanitize-with={SANITIZE}"] if strict else ["--nbval-lax"]
    command = [sys.executable, "-m", "pytest", *how, "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
    env = {name: value for name, value in os.environ.items() if name not in ("COURSE_RANKS", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [*command, "-o", "addopts=", "-p", "no:cacheprovider", "--color=no", str(notebook)],
        env={**env, "COURSE_PROGRESS": str(progress)},
        capture_output=True,
        text=True,
    )


def states(notebook: Path, progress: Path) -> dict[str, str]:
    """The state of each exercise of this lab after the run that recorded into `progress`: {name: "passed"}."""
    kept = json.loads(progress.read_text(encoding="utf-8"))["exercises"] if progress.exists() else {}
    lab = notebook.stem.split("_")[0]
    names = [exercise.name for exercise in all_exercises().values() if exercise.lab == lab]
    return {name: kept.get(name, {}).get("state", "not attempted") for name in names}


def compared(notebook: Path) -> int:
    """How many cells have an output that a strict run compares. Without stored outputs nbval compares nothing."""
    cells = nbformat.read(notebook, as_version=4).cells
    return sum(1 for cell in cells if cell.get("outputs") and not IGNORED & set(cell.metadata.get("tags", [])))
