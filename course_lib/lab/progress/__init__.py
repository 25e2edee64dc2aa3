"""What a learner has done so far: one JSON file per working folder, shown by `lab.progress()` and `make progress`.

The file is small and several kernels may write to it at once, so every change is: take a lock, read, change, write a
new file beside it, rename. A damaged file is never overwritten: it is set aside, and the learner is told.

    {"version": 1,
     "exercises": {"ring_all_gather": {"state": "passed", "attempts": 3, "hints": 1, "seconds": 0.021},
                   "all_reduce": {"state": "not yet", "attempts": 1, "message": "Not yet. 4 ranks, ..."}},
     "predictions": {"MB through rank 0's link": {"guess": 32, "unit": "MB", "value": 96}},
     "figures": {...}}

This module can be called: `lab.progress()` shows the table, `lab.progress.path()` tells where the file is.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from course_lib.lab.progress.table import Table

VERSION = 1
SECTIONS = ("exercises", "predictions", "figures")


def path() -> Path:
    """Where progress is kept: $COURSE_PROGRESS, or .progress/progress.json in the workbook's folder, or in this one."""
    if named := os.environ.get("COURSE_PROGRESS"):
        return Path(named).expanduser()
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "Makefile").exists() and (p / "course_lib").is_dir()), here)
    return root / ".progress" / "progress.json"


def load() -> dict[str, Any]:
    """All progress so far; empty sections where there is none. Sets a damaged file aside and says so."""
    file = path()
    try:
        data = json.loads(file.read_text())
        if not isinstance(data, dict) or any(not isinstance(data.get(s, {}), dict) for s in SECTIONS):
            raise ValueError("not a progress file")
        if data.get("version", VERSION) > VERSION:
            raise ValueError(f"version {data['version']}, this workbook knows {VERSION}")
    except FileNotFoundError:
        data = {}
    except (ValueError, UnicodeDecodeError) as error:
        aside = file.with_name(f"{file.stem}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{file.suffix}")
        os.replace(file, aside)
        print(
            f"{file.name} could not be read ({error}). It is kept as {aside.name}; progress starts anew.",
            file=sys.stderr,
        )
        data = {}
    return {"version": VERSION, **{s: data.get(s, {}) for s in SECTIONS}}


def update(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the progress: `change` gets all of it and edits it in place. Safe with several kernels at once.

    A folder that cannot be written does not stop a lab: it says so once and goes on.
    """
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            data = load()
            change(data)
            _write(file, data)
    except OSError as error:
        _say_once(f"Progress is not kept: {file} cannot be written ({error.strerror}).")


def record(section: str, key: str, **fields: Any) -> None:
    """Set some fields of one entry, keep its others: record("figures", "alpha", value=52e-6, unit="s")."""
    update(lambda data: data[section].setdefault(key, {}).update(fields))


def record_attempt(name: str, state: str, seconds: float | None = None, message: str = "") -> None:
    """One more checked attempt at an exercise. What was passed once stays passed; the best time stays.

    message: what the check said of this attempt; kept as long as the exercise is not passed.
    """

    def change(data: dict[str, Any]) -> None:
        entry = data["exercises"].setdefault(name, {})
        entry["attempts"] = entry.get("attempts", 0) + 1
        if entry.get("state") != "passed":
            entry["state"] = state
            entry.pop("message", None)
            if message and state != "passed":
                entry["message"] = message
        if seconds is not None:
            entry["seconds"] = min(seconds, entry.get("seconds", seconds))

    update(change)


def show() -> Table:
    """The table of exercises with what is kept about each, and the figures measured."""
    from course_lib.lab.exercise import all_exercises

    data = load()
    return Table(list(all_exercises().values()), data["exercises"], data["figures"])


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    # A lock file of its own: the progress file is replaced at each write, and a lock on it would be lost with it.
    with open(file.with_name(file.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, data: dict[str, Any]) -> None:
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with os.fdopen(handle, "w") as out:
            json.dump(data, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(text, file=sys.stderr)


class _Callable(ModuleType):
    # `lab.progress` is this module for those who import it and a function for the notebook.
    def __call__(self) -> Table:
        return show()


sys.modules[__name__].__class__ = _Callable
