"""Run one lab without a browser, `make labN`: show the machine, run the notebook, keep a report, say what came out.

    python -m course_lib.lab.headless lab0        RANKS and SOLUTION from the environment, as make hands them over
    python -m course_lib.lab.headless lab2        a lab of several notebooks: lab2a, lab2b, lab2c in turn

The learner's own notebook in labs/ is what runs (SOLUTION=1: the solved one). runs/labN/ gets the executed notebook and
an HTML report, also when a cell fails or on Ctrl-C. Exit code: 0 when every cell ran and no answer is wrong (an
exercise not attempted is not wrong); 1 otherwise; 130 when interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from course_lib.doctor import facts, options
from course_lib.lab import progress
from course_lib.lab.build import KERNEL_ARGUMENTS
from course_lib.lab.machine import readable

CELL_SECONDS = 600  # far beyond any cell of a lab: what runs longer is stuck
stopped = threading.Event()  # someone pressed Ctrl-C, or sent SIGTERM


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while: a kernel started meanwhile inherits them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run(source: Path, report: Path, root: Path, env: dict[str, str]) -> str | None:
    """Execute the notebook `source`, which stays as it is, into `report`, written cell by cell.

    `env` is set for the kernel. Returns None when every cell ran, else what went wrong, in a sentence. The kernel is
    gone when this returns or raises KeyboardInterrupt.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        with environment(env):
            papermill.execute_notebook(
                source,
                report,
                cwd=root / "labs",
                kernel_name="python3",
                execution_timeout=CELL_SECONDS,
                extra_arguments=KERNEL_ARGUMENTS,
                progress_bar=True,
            )
    except papermill.exceptions.PapermillExecutionError as error:
        if meant_to_fail(report, error.cell_index):
            return None
        first_line = (error.evalue.strip().splitlines() or [""])[0]
        return f"Cell {error.exec_count}{exercise_in(error.source)} failed: {error.ename}: {first_line}"
    except CellTimeoutError:
        return f"A cell ran longer than {CELL_SECONDS} s and was ended."
    except DeadKernelError:
        return "The notebook's kernel died; a process that is out of memory ends so."
    return None


def exercise_in(source: str) -> str:
    """ " (exercise ring_all_gather)" for a cell in which one is written."""
    from course_lib.lab.exercise import all_exercises

    written = [name for name in re.findall(r"^(?:def|class) +(\w+)", source, re.MULTILINE) if name in all_exercises()]
    return f" (exercise {written[0]})" if written else ""


def meant_to_fail(report: Path, index: int) -> bool:
    """Whether the cell at `index` is tagged raises-exception; then papermill's banner is taken out of `report` again.

    Such a cell may fail and the run goes on, but papermill reports the last failed cell all the same. A cell
    that should not fail ends the run, so it is the last one: when the last one was meant to fail, all were.
    """
    import nbformat
    from papermill.execute import remove_error_markers

    notebook = remove_error_markers(nbformat.read(report, as_version=4))
    if "raises-exception" not in notebook.cells[index].metadata.get("tags", []):
        return False
    nbformat.write(notebook, report)
    return True


def write_html(notebook: Path) -> Path:
    """The executed notebook as one HTML file beside it, pictures and all."""
    import nbformat
    from nbconvert import HTMLExporter

    content = nbformat.read(notebook, as_version=4)
    content.metadata.pop("widgets", None)  # live widgets need a server; without their state the still pictures show
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(content)
    path = notebook.with_suffix(".html")
    path.write_text(html, encoding="utf-8")
    return path


def summary(data: dict[str, Any], names: list[str]) -> list[str]:
    """A run's progress `data` in lines: the state of each exercise called in `names`, and each figure measured.

    Under an exercise that is not passed yet stands what its check said.
    """
    states = {name: data["exercises"].get(name, {}).get("state", "not attempted") for name in names}
    lines = []
    for name, state in states.items():
        lines.append(f"  {state:14} {name}")
        if message := data["exercises"].get(name, {}).get("message"):
            lines += textwrap.wrap(
                message.removeprefix("Not yet. "), 100, initial_indent=17 * " ", subsequent_indent=17 * " "
            )
    if names:
        lines.insert(0, f"Exercises: {list(states.values()).count('passed')} of {len(names)} passed")
    if data["figures"]:
        lines.append("Measured on this machine:")
        lines += [f"  {name}: {readable(each['value'], each['unit'])}" for name, each in data["figures"].items()]
    return lines


def read_record(record: Path) -> dict[str, Any]:
    """What a run recorded in a file of its own; empty when it recorded nothing."""
    data = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    return {section: data.get(section, {}) for section in ("exercises", "figures")}


def fold(data: dict[str, Any]) -> None:
    """Add what one run recorded, `data`, to the learner's own progress."""
    for name, entry in data["exercises"].items():
        if entry.get("state", "not attempted") != "not attempted":
            progress.record_attempt(name, entry["state"], entry.get("seconds"), entry.get("message", ""))
    for name, fields in data["figures"].items():
        progress.record("figures", name, **fields)


def run_lab(name: str, stem: str, ranks: int, solution: bool, root: Path) -> int:
    """Run the lab called `name`, print what came out, and return the exit code. Raises OptionError."""
    from course_lib.lab.exercise import all_exercises

    source = root / ("solutions" if solution else "labs") / f"{stem}.ipynb"
    if not source.exists():
        raise options.OptionError(f"{source.relative_to(root)} is missing: `make notebooks` builds it.")
    folder = root / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{stem}{'.solution' if solution else ''}.ipynb"
    print("\n".join([f"{source.relative_to(root)}", *(f"  {line}" for line in facts.describe(ranks))]), flush=True)

    # What this run records goes to a file of its own: an answer passed last week says nothing about this run. And the
    # solved notebook must not pass the learner's exercises.
    problem = None
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "progress.json"
        try:
            problem = run(source, report, root, {"COURSE_PROGRESS": str(record), "COURSE_RANKS": str(ranks)})
        except BaseException:
            # An interrupt in the middle of the kernel's client can come out of it as almost anything.
            if not stopped.is_set():
                raise
        if stopped.is_set():
            end_children()
            problem = "Interrupted; what ran until then is kept."
        data = read_record(record)
    if not solution:
        fold(data)
    names = [exercise.name for exercise in all_exercises().values() if exercise.lab == name]
    print("\n".join(["", *summary(data, names)]))
    if report.exists():
        print(f"Report: {write_html(report).relative_to(root)} (and {report.name} beside it)")
    if problem:
        print(problem, file=sys.stderr)
    states = [entry.get("state") for entry in data["exercises"].values()]
    wrong = "not yet" in states or (solution and states.count("passed") < len(names))
    return 130 if stopped.is_set() else int(bool(problem or wrong))


def interrupt(number: int, frame: object) -> None:
    """Answer the first Ctrl-C by ending the run; a second one ends the kernel at once, and does not cost the report."""
    if stopped.is_set():
        end_children()
    else:
        stopped.set()
        raise KeyboardInterrupt


def end_children() -> None:
    """End the kernel and what it started, in case its client did not come to it."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def main(arguments: list[str] | None = None, root: Path = options.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="course_lib.lab.headless", description="Run one lab without a browser.")
    parser.add_argument("lab", help="lab0, lab1, ...; lab2 is lab2a, lab2b and lab2c")
    chosen = parser.parse_args(arguments)
    # `kill` is answered like Ctrl-C: the report is kept and no process is left.
    stopped.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        ranks = options.ranks(os.environ.get("RANKS", ""))
        solution = options.solution(os.environ.get("SOLUTION", ""))
        code = 0
        for name, stem in options.chosen(chosen.lab, root).items():
            if not stopped.is_set():
                code = max(code, run_lab(name, stem, ranks, solution, root))
        return code
    except options.OptionError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
