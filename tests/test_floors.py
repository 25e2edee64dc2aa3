"""Imports go down the floors of course_lib: a package imports from its own floor and from those below, not above."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = {
    "spmd": 0, "timeline": 0,
    "collectives": 1, "mesh": 1, "models": 1,
    "parallel": 2, "training": 2,
    "recipes": 3, "planner": 3,
    "trainer": 4, "clinic": 4, "monitor": 4, "bench": 4, "doctor": 4,
    "lab": 5,
}  # fmt: skip


def imported(tree: ast.AST, package: tuple[str, ...]):
    """(line, name of the course_lib package) of each import in `tree`, a module of `package`, wherever it stands."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "course_lib" and len(parts) > 1:
                yield node.lineno, parts[1]


def climbing(text: str, where: str) -> list[str]:
    """The imports of the module `where` ("course_lib/lab/build.py") that go up, one sentence each."""
    parts = Path(where).with_suffix("").parts
    home = parts[1]
    return [
        f"{where}:{line} is on floor {FLOORS[home]} and imports {target} from floor {FLOORS[target]}"
        for line, target in imported(ast.parse(text), parts[:-1])
        if FLOORS[target] > FLOORS[home]
    ]


def modules() -> list[Path]:
    found = (path.relative_to(ROOT) for path in (ROOT / "course_lib").rglob("*.py"))
    return sorted(path for path in found if path != Path("course_lib/__init__.py"))


def test_every_package_has_its_floor():
    assert {path.with_suffix("").parts[1] for path in modules()} <= set(FLOORS)


def test_no_import_goes_up():
    paths = modules()
    assert len(paths) > 10
    texts = {str(path): (ROOT / path).read_text(encoding="utf-8") for path in paths}
    assert [problem for path, text in texts.items() for problem in climbing(text, path)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import course_lib.lab.check",
        "from course_lib.lab import check",
        "from course_lib import lab",
        "from ..lab import check",
        "from .. import lab",
        "def f():\n    from course_lib.lab.check import check",
    ],
)
def test_an_import_that_goes_up_is_found(statement):
    assert len(climbing(statement, "course_lib/spmd/run.py")) == 1


@pytest.mark.parametrize("statement", ["from course_lib.timeline import spans", "from . import record", "import lab"])
def test_other_imports_are_not(statement):
    assert climbing(statement, "course_lib/spmd/run.py") == []
