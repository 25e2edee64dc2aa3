"""A look at an answer before it runs: is it still the stub, is it the library's own, can it be called as it should?"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable

from course_lib.lab.blanks import BLANK, filled, stubbed
from course_lib.lab.exercise import Exercise
from course_lib.lab.written import lines_of


def is_stub(answer: Callable, exercise: Exercise) -> bool:
    """Whether nothing was written yet: the body is only `raise NotImplementedError`, `pass` or `...`, or it is the
    exercise's cell as it was given, code around the blank included.
    """
    mine = _tree(_source(answer))
    if mine is None:
        return getattr(answer, "__code__", None) is not None and _only_raises(answer)
    if isinstance(mine, ast.FunctionDef) and all(_says_nothing(line) for line in mine.body):
        return True
    given = _given(exercise.reference)
    return given is not None and _shape(mine) == _shape(given)


def complaint(answer: Callable, exercise: Exercise) -> str | None:
    """What keeps the answer from being called with the exercise's arguments, in one sentence."""
    if not callable(answer):
        return f"`{exercise.name}` is {answer!r}, not a function."
    n = exercise.worlds[0]
    args = exercise.arguments(exercise.cases_on(n)[0][0], 0, n)
    if exercise.call.__name__ != "call_it":  # another way to call it: only running it can tell
        return None
    try:
        inspect.signature(answer).bind(*args)
    except TypeError as error:
        want = ", ".join(inspect.signature(exercise.reference).parameters)
        have = ", ".join(inspect.signature(answer).parameters)
        return f"`{exercise.name}({have})` cannot be called as `{exercise.name}({want})`: {error}."
    return None


def source_line(answer: Callable, line: int) -> str:
    """The text of a line of the answer's file or cell, stripped; "" where it is not known."""
    try:
        lines, first = lines_of(answer)
    except (OSError, TypeError):
        return ""
    return lines[line - first].strip() if 0 <= line - first < len(lines) else ""


def quoted(answer: Callable, line: int | None) -> str:
    """ "line 7: `dist.send(x, right)`", or as much of it as is known; "" for no line."""
    text = source_line(answer, line) if line else ""
    return f"line {line}" + (f": `{text}`" if text else "") if line else ""


def keeps_what_recv_returns(answer: Callable) -> str:
    """A sentence on `name = dist.recv(...)`, if the answer has such a line; else ""."""
    tree = _tree(_source(answer))
    for node in ast.walk(tree) if tree else ():
        called = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.func
        if called and ast.unparse(called).rpartition(".")[2] == "recv":
            line = node.lineno + lines_of(answer)[1] - 1
            return f"Line {line} keeps what `dist.recv` returns, the sender's rank; the data is in the tensor it got."
    return ""


def library_source(exercise: Exercise) -> str:
    """The solution as a learner would write it: the reference's source without the markers of its blank."""
    return filled(_source(exercise.reference) or "").strip()


def _source(answer: Callable) -> str | None:
    try:
        return textwrap.dedent("".join(lines_of(answer)[0]))
    except (OSError, TypeError):
        return None


def _tree(source: str | None) -> ast.stmt | None:
    try:
        return ast.parse(source).body[0] if source else None
    except (SyntaxError, IndexError):
        return None


def _given(reference: Callable) -> ast.stmt | None:
    """The stub as the learner got it, if the reference has a blank."""
    source = _source(reference)
    return _tree(stubbed(source)) if source and BLANK.search(source) else None


def _shape(tree: ast.stmt) -> str:
    """What the code does: comments and layout are gone already, docstrings and annotations are taken out too."""
    tree = ast.parse(ast.unparse(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)  # a docstring, or `...`


def _says_nothing(line: ast.stmt) -> bool:
    if isinstance(line, ast.Raise) and line.exc is not None:
        named = line.exc.func if isinstance(line.exc, ast.Call) else line.exc
        return isinstance(named, ast.Name) and named.id == "NotImplementedError"
    return isinstance(line, ast.Pass) or _is_text(line)


def _only_raises(answer: Callable) -> bool:
    # No source at hand (code from exec): the names it uses tell enough.
    return answer.__code__.co_names == ("NotImplementedError",)
