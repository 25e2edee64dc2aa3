"""The run's log: a line of JSON for each step and each event, of which a resumed run keeps those up to its checkpoint.

    {"event": "begun", "step": 0, "ranks": 2, ...}
    {"step": 1, "loss": 5.56, "lr": 0.00005, "grad_norm": 1.9, "taken": true}
    {"step": 10, ..., "tokens_per_second": 48000.0, "mfu": 0.31, "memory_bytes": 312000000, "seconds": 8.5}
    {"event": "validated", "step": 50, "loss": 3.2}

A step's line is about the step, so it is the same in an undisturbed run and in one that was killed and resumed; speed
and memory, which are not, stand in the last line of each interval of `--log-every`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Log:
    """Appends to a file. Every line is written at once, so that whoever follows the file sees it whole."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)

    def write(self, **values: Any) -> None:
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, up to the first that is not whole: a killed writer may leave half a line at the end."""
    lines = []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


def cut_back(path: Path, step: int) -> None:
    """Leave out what the log says of steps after `step`: they are to be done again. At once, or not at all."""
    kept = [line for line in read_log(path) if line["step"] <= step]
    aside = path.with_name(path.name + ".aside")
    with open(aside, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
