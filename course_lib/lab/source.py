"""From a lab's source, solutions/labN_name.py (py:percent), to the cells of its two notebooks.

A cell that says `# exercise: module:function` gets the library's own source of that function in place of the line,
so the solution is the library and not a copy of it. What stands between `# BEGIN SOLUTION` and `# END SOLUTION` is the
blank: the learner's notebook shows a stub there, the solved one shows the code.

A cell's id comes from its first words, not from its place or its whole text: a small edit of the source is a small
edit of the notebooks, and a learner's saved work stays comparable.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

EXERCISE = re.compile(r"^# exercise: *(?P<module>[\w.]+):(?P<name>\w+)[ \t]*$", re.MULTILINE)
BLANK = re.compile(
    r"^(?P<indent>[ \t]*)# BEGIN SOLUTION[ \t]*\n(?P<code>.*?)^[ \t]*# END SOLUTION[ \t]*$", re.MULTILINE | re.DOTALL
)
MARKER = re.compile(r"^[ \t]*# (BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)
FEWEST_LINES, MOST_LINES = 3, 12  # a blank is a thought, not a finger exercise and not a program
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class BuildError(Exception):
    """The source cannot become a notebook; its text is one sentence for the author."""


@dataclass
class Pair:
    """The two notebooks of one lab: `lab` with blanks, `solved` filled in. Neither has outputs yet."""

    lab: NotebookNode
    solved: NotebookNode


def expand(text: str) -> str:
    """`text` with each `# exercise: module:function` line replaced by the library's source of that function."""

    def library_source(match: re.Match) -> str:
        where = f"{match['module']}:{match['name']}"
        try:
            function = getattr(importlib.import_module(match["module"]), match["name"])
        except (ImportError, AttributeError) as error:
            raise BuildError(f"exercise {where} names nothing in the library ({error})") from error
        source = inspect.cleandoc("\n" + inspect.getsource(function))
        if not BLANK.search(source):
            raise BuildError(f"exercise {where} has no BEGIN SOLUTION ... END SOLUTION to blank out")
        return source

    return EXERCISE.sub(library_source, text)


def filled(text: str) -> str:
    """`text` as the solved notebook shows it: the code of the blanks, without the markers."""
    return MARKER.sub("", text)


def blanked(text: str) -> str:
    """`text` as the learner gets it: a stub in place of each blank, at the blank's own indentation."""

    def stub(match: re.Match) -> str:
        lines = [line.strip() for line in match["code"].splitlines()]
        count = sum(1 for line in lines if line and not line.startswith("#"))
        if not FEWEST_LINES <= count <= MOST_LINES:
            raise BuildError(f"a blank of {count} lines; blanks are {FEWEST_LINES} to {MOST_LINES} lines")
        indent = match["indent"]
        return f"{indent}# YOUR CODE (about {count} lines)\n{indent}raise NotImplementedError"

    result = BLANK.sub(stub, text)
    if MARKER.search(result):
        raise BuildError("a BEGIN SOLUTION or END SOLUTION stands alone")
    return result


def cell_id(text: str, taken: set[str]) -> str:
    """An id for a cell that begins as `text` does, unlike all in `taken`, to which it is added."""
    named = re.search(r"^(?:def|class) (\w+)", text, re.MULTILINE)
    first = named[1] if named else next((line for line in text.splitlines() if line.strip(" #%")), "empty")
    stem = re.sub(r"[^a-z0-9]+", "-", first.lower()).strip("-")[:40].rstrip("-") or "cell"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    taken.add(name)
    return name


def fingerprint(notebook: NotebookNode) -> str:
    """A hash of what the author wrote in `notebook`: ids, kinds, sources and tags of its cells; not its outputs."""
    content = [(cell.get("id"), cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def read(source: Path) -> Pair:
    """Both notebooks of the lab whose source is the file `source`. Raises BuildError naming the file and the cell."""
    script = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    lab_cells, solved_cells, taken = [], [], set()
    for number, cell in enumerate(script.cells, start=1):
        new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
        try:
            text = expand(cell.source) if cell.cell_type == "code" else cell.source
            same = {"id": cell_id(text, taken), "metadata": cell.metadata}
            lab_cells.append(new(blanked(text) if cell.cell_type == "code" else text, **same))
            solved_cells.append(new(filled(text) if cell.cell_type == "code" else text, **same))
        except BuildError as error:
            raise BuildError(f"{source.name}, cell {number}: {error}.") from error
    return Pair(finish(lab_cells, source), finish(solved_cells, source))


def finish(cells: list[NotebookNode], source: Path) -> NotebookNode:
    """A notebook of `cells`, with what a kernel and the staleness check need in its metadata."""
    notebook = new_notebook(cells=cells, metadata=json.loads(json.dumps(METADATA)))
    notebook.metadata["course"] = {"lab": source.stem, "built": fingerprint(notebook)}
    nbformat.validate(notebook)
    return notebook
