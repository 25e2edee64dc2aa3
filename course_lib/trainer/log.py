"""The run's log: a line of JSON for each step and each event, of which a resumed run keeps those up to its checkpoint.

    {"event": "begun", "step": 0, "ranks": 2, ...}
    {"step": 1, "loss": 5.56, "lr": 0.00005, "grad_norm": 1.9, "taken": true}
    {"step": 10, ..., "tokens_per_second": 48000.0, "mfu": 0.31, "memory_bytes": 312000000, "seconds": 8.5}
    {"event": "validated", "step": 50, "loss": 3.2}

A step's line is about the step, so it is the same in an undisturbed run and in one that was killed and resumed; speed
and memory, which are not, stand in the last line of each interval of `--log-every`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from course_lib.training.checkpoint_files import replace

LOG_FILE = "log.jsonl"


class DamagedLog(ValueError):
    """A line that is not whole stands among whole ones: no kill of a trainer leaves that."""


def append(path: Path, *lines: dict[str, Any]) -> None:
    """At once, so that whoever follows the file sees whole lines. `cut_back` begins a log.

    Raises OSError where the file is gone or the disk is full. (To a file held open one could write on, and lose what
    one writes, after somebody removed it.)
    """
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags & ~os.O_CREAT)) as file:
        while text:
            text = text[file.write(text) :]


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without half a line at the end, which a killed writer may leave.

    Raises DamagedLog where another line is not whole, with its number.
    """
    raw = path.read_bytes() if path.exists() else b""
    *whole, _ = raw.split(b"\n")
    return [parsed(line, number, path) for number, line in enumerate(whole, 1)]


def parsed(raw: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except ValueError:
        line = None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise DamagedLog(f"Line {number} of {path} is damaged: mend or delete that line, and --resume goes on.")
    return line


def cut_back(path: Path, step: int) -> None:
    """Leave out what the log says of steps after `step`: they are to be done again. At once, or not at all.

    Where there is no log, an empty one is begun. Raises DamagedLog as `read_log` does, before anything is changed.
    """
    kept = [line for line in read_log(path) if line["step"] <= step]
    replace(path, "".join(json.dumps(line) + "\n" for line in kept))


def say(text: str, file: TextIO | None = None) -> None:
    """Print for whoever reads it. If nobody does any more (a closed terminal), the run goes on without."""
    with contextlib.suppress(OSError):
        print(text, file=file or sys.stdout, flush=True)
