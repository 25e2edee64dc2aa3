"""What a lab's notebook uses: `from course_lib import lab`, then `lab.start`, `lab.check`, `lab.hint`, ...

Each is imported when it is first used: ranks import parts of this package too, four at a time, and should not pay for
what only the notebook needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.lab import progress
    from course_lib.lab.checking import check
    from course_lib.lab.hints import hint
    from course_lib.lab.machine import figure, ranks, start
    from course_lib.lab.predictions import predict, reveal

__all__ = ["check", "figure", "hint", "predict", "progress", "ranks", "reveal", "start"]
_HOMES = {
    "check": "checking",
    "figure": "machine",
    "hint": "hints",
    "predict": "predictions",
    "ranks": "machine",
    "reveal": "predictions",
    "start": "machine",
}


def __getattr__(name: str) -> Any:
    if name == "progress":  # a module that can be called
        return import_module("course_lib.lab.progress")
    if name not in _HOMES:
        raise AttributeError(f"course_lib.lab has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"course_lib.lab.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
