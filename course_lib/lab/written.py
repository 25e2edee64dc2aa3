"""Where an answer was written: its file and its lines. Functions and classes, from files and from notebook cells."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from types import CodeType


def file_of(answer: Callable) -> str:
    """The file of the answer's code, a cell's made-up one too; "" where there is none."""
    code = _code(answer)
    return code.co_filename if code else ""


def lines_of(answer: Callable) -> tuple[list[str], int]:
    """(lines, number of the first). Raises OSError or TypeError where they are not known.

    `inspect` does not find the class of a cell before Python 3.13; its methods know where they are.
    """
    code = _code(answer)
    try:
        return inspect.getsourcelines(answer)
    except (OSError, TypeError):
        if not isinstance(answer, type) or code is None:
            raise
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError as error:
        raise OSError(f"{code.co_filename} is no Python file") from error
    for node in ast.walk(tree):
        named = isinstance(node, ast.ClassDef) and node.name == answer.__name__
        if named and node.lineno <= code.co_firstlineno <= node.end_lineno:
            return lines[node.lineno - 1 : node.end_lineno], node.lineno
    raise OSError(f"class {answer.__name__} is not in {code.co_filename}")


def _code(answer: Callable) -> CodeType | None:
    """A function's code; of a class, that of its first method."""
    methods = vars(answer).values() if isinstance(answer, type) else [answer]
    codes = (getattr(getattr(method, "__func__", method), "__code__", None) for method in methods)
    return next((code for code in codes if code is not None), None)
