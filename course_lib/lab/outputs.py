"""What may stay of a solved notebook's outputs: nothing of the machine that made them, nothing that flickers."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from nbformat import NotebookNode

from course_lib.lab.source import BuildError

WIDGET = "application/vnd.jupyter.widget-view+json"  # an id that means nothing once the kernel is gone
PLACES = ["/home", "/root", "/tmp", "/var", "/work", "/mnt", "/opt", "/Users", "/private"]
PROGRESS_BAR = re.compile(r"\r(?!\n)|\d(?:it/s|s/it)\b")
LARGEST = 2_000_000  # bytes of JSON: a notebook is read, diffed and opened in a browser


def texts(output: NotebookNode):
    """The text parts of one output, pictures left out."""
    yield output.get("text", "")
    yield from output.get("traceback", [])
    for mime, value in output.get("data", {}).items():
        if mime == "image/svg+xml" or not mime.startswith("image/"):
            yield value if isinstance(value, str) else json.dumps(value)


def clean(notebook: NotebookNode, root: Path) -> None:
    """Take out of the outputs, in place, what no reader can use: widget ids, and `root` in front of its own files."""
    prefix = f"{root}{os.sep}"
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
            if "text" in output:
                output["text"] = output["text"].replace(prefix, "")
            if "traceback" in output:
                output["traceback"] = [line.replace(prefix, "") for line in output["traceback"]]
            for mime, value in output.get("data", {}).items():
                if isinstance(value, str) and not mime.startswith("image/"):
                    output["data"][mime] = value.replace(prefix, "")


def refuse(notebook: NotebookNode) -> None:
    """Raise BuildError, naming the cell, when an output holds a path of this machine or a progress bar, or is too big.

    A path says something about the author's machine and nothing to the reader; a progress bar differs on every run.
    """
    places = "|".join(map(re.escape, [*PLACES, str(Path.home()), tempfile.gettempdir()]))
    path_here = re.compile(rf"(?<![\w.~/])(?:{places}|~)/[\w.-]+")
    for number, cell in enumerate(notebook.cells, start=1):
        for output in cell.get("outputs", []):
            for text in texts(output):
                where = f"the output of cell {number} ({cell.id})"
                if found := path_here.search(text):
                    raise BuildError(f"{where} holds a path of this machine, {found[0]}.")
                if PROGRESS_BAR.search(text):
                    raise BuildError(f"{where} holds a progress bar; switch it off.")
    size = len(json.dumps(notebook))
    if size > LARGEST:
        largest = max(notebook.cells, key=lambda cell: len(json.dumps(cell.get("outputs", []))))
        limit = f"{LARGEST / 1e6:.0f} MB"
        raise BuildError(f"{size / 1e6:.1f} MB is too large for a notebook ({limit}); most is in {largest.id}.")
