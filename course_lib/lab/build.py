"""Build both notebooks of each lab from its source; or check that the built ones follow from it.

    python -m course_lib.lab.build                build what is stale: labs/*.ipynb and solutions/*.ipynb
    python -m course_lib.lab.build lab0           build lab 0 anew, stale or not
    python -m course_lib.lab.build --check        build nothing; exit 1 and name each stale notebook

labs/labN_name.ipynb has blanks and no outputs. solutions/labN_name.ipynb is filled in and executed here, its outputs
kept. A learner's work in labs/ is never overwritten: it is set aside as labN_name.mine.ipynb first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course_lib.doctor import options
from course_lib.lab import outputs
from course_lib.lab.source import BuildError, Pair, fingerprint, read

KERNEL_ARGUMENTS = ["--IPKernelApp.log_level=50"]  # what it logs would stand in the progress bar
CELL_SECONDS = 120  # a cell of a lab takes 10 s at most; on a busy machine several times that


def load(path: Path) -> NotebookNode | None:
    """The notebook in `path`, None when there is no such file. Raises BuildError when it is not a notebook."""
    if not path.exists():
        return None
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises what its JSON and schema libraries raise
        raise BuildError(f"{path.name} is not a readable notebook ({type(error).__name__}: {error}).") from error


def save(notebook: NotebookNode, path: Path) -> None:
    """Write `notebook` to `path` whole or not at all."""
    aside = path.with_suffix(".writing")
    nbformat.write(notebook, aside)
    os.replace(aside, path)


def worked_in(notebook: NotebookNode | None) -> bool:
    """True when someone changed `notebook` since it was built, or ran it: then it holds someone's work."""
    if notebook is None:
        return False
    built = notebook.metadata.get("course", {}).get("built")
    return built != fingerprint(notebook) or any(cell.get("outputs") for cell in notebook.cells)


def stale_lab(fresh: NotebookNode, there: NotebookNode | None) -> str | None:
    """Why the notebook in labs/, `there`, is not what the source gives now, `fresh`; None when it is."""
    if there is None:
        return "is missing"
    if worked_in(there):
        return "was edited or run since it was built"
    return None if fingerprint(there) == fingerprint(fresh) else "is older than its source"


def stale_solution(fresh: NotebookNode, there: NotebookNode | None) -> str | None:
    """Why the solved notebook `there` is not what the source gives now; None when it is, and was executed."""
    if there is None:
        return "is missing"
    if fingerprint(there) != fingerprint(fresh):
        edited = there.metadata.get("course", {}).get("built") != fingerprint(there)
        return "was edited by hand" if edited else "is older than its source"
    if any(cell.cell_type == "code" and cell.source and not cell.get("execution_count") for cell in there.cells):
        return "was not executed"
    return None


def set_aside(path: Path) -> Path:
    """Copy a learner's notebook to a free name beside it, and return that."""
    number = 1
    while (aside := path.with_suffix(f".mine{'' if number == 1 else number}.ipynb")).exists():
        number += 1
    shutil.copy2(path, aside)
    return aside


def execute(notebook: NotebookNode, root: Path) -> None:
    """Run `notebook` in root/solutions, keeping its outputs in it. Raises BuildError when a cell fails.

    The progress the checks record goes to a file of this run: the author's own is left alone.
    """
    with tempfile.TemporaryDirectory() as scratch:
        env = {name: value for name, value in os.environ.items() if name != "COURSE_RANKS"}
        env["COURSE_PROGRESS"] = str(Path(scratch) / "progress.json")
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            extra_arguments=KERNEL_ARGUMENTS,
            kernel_name="python3",
            resources={"metadata": {"path": str(root / "solutions")}},
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
        )
        try:
            client.execute(env=env)
        except CellExecutionError as error:
            what = f"{error.ename}: {error.evalue.strip().splitlines()[0] if error.evalue.strip() else ''}"
            raise BuildError(f"the solved notebook does not run, {what}\n{error.traceback}") from error
        except (CellTimeoutError, DeadKernelError) as error:
            raise BuildError(f"the solved notebook does not run: {error}") from error
    # The kernel adds its exact Python version, which would change the file from machine to machine.
    notebook.metadata["language_info"] = {"name": "python"}
    outputs.clean(notebook, root)
    outputs.refuse(notebook)


def paths(stem: str, root: Path) -> tuple[Path, Path, Path]:
    """Source, learner's notebook and solved notebook of the lab with this file stem."""
    solutions = root / "solutions"
    return solutions / f"{stem}.py", root / "labs" / f"{stem}.ipynb", solutions / f"{stem}.ipynb"


def check(stem: str, root: Path) -> list[str]:
    """One sentence for each built notebook of the lab that does not follow from its source. Empty: all do."""
    source, lab, solution = paths(stem, root)
    try:
        fresh = read(source)
        reasons = {lab: stale_lab(fresh.lab, load(lab)), solution: stale_solution(fresh.solved, load(solution))}
    except BuildError as error:
        return [str(error)]
    return [
        f"{path.relative_to(root)} {reason}: `make notebooks` builds it from {source.relative_to(root)}."
        for path, reason in reasons.items()
        if reason
    ]


def build(stem: str, root: Path, anew: bool = False) -> list[str]:
    """Write the notebooks of the lab that are stale, or both when `anew`; return a line for each thing done.

    Raises BuildError, with nothing half written, when the source is wrong or the solved notebook does not run.
    """
    source, lab, solution = paths(stem, root)
    fresh: Pair = read(source)
    done = []
    there = load(lab)
    if anew or stale_lab(fresh.lab, there):
        if worked_in(there):
            done.append(f"{lab.relative_to(root)} held someone's work: kept as {set_aside(lab).relative_to(root)}.")
        lab.parent.mkdir(exist_ok=True)
        save(fresh.lab, lab)
        done.append(f"{lab.relative_to(root)}: written.")
    if anew or stale_solution(fresh.solved, load(solution)):
        try:
            execute(fresh.solved, root)
        except BuildError as error:
            raise BuildError(f"{solution.relative_to(root)}: {error}") from error
        save(fresh.solved, solution)
        done.append(f"{solution.relative_to(root)}: executed and written.")
    return done or [f"{stem}: up to date."]


def main(arguments: list[str] | None = None, root: Path = options.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="course_lib.lab.build", description="Build the labs' notebooks.")
    parser.add_argument("lab", nargs="*", help="build these anew, stale or not (default: all that are stale)")
    parser.add_argument("--check", action="store_true", help="build nothing, fail when a notebook is stale")
    chosen = parser.parse_args(arguments)
    try:
        named = [stem for name in chosen.lab for stem in options.chosen(name, root).values()]
        stems = named or list(options.labs(root).values())
        if chosen.check:
            problems = [problem for stem in stems for problem in check(stem, root)]
            print("\n".join(problems) or f"{len(stems)} lab(s): both notebooks follow from the source.")
            return 1 if problems else 0
        for stem in stems:
            print("\n".join(build(stem, root, anew=bool(chosen.lab))), flush=True)
    except (BuildError, options.OptionError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
