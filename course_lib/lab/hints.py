"""`lab.hint(name)`: one rung of the ladder at a time, from a nudge to the solution."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.lab import attempt, progress, show
from course_lib.lab.exercise import Exercise, find


def hint(name: str | Callable) -> None:
    """Show the next hint of an exercise; call again for the next, the last is the solution. How many were used is kept.

    name: the exercise's name, or the function itself. A hint whose first line ends in ":" is a sentence and a drawing.
    """
    exercise = find(name if isinstance(name, str) else name.__name__)
    rungs, used = len(exercise.hints) + 1, progress.load()["exercises"].get(exercise.name, {}).get("hints", 0)
    rung = min(used + 1, rungs)
    if rung > used:
        progress.record("exercises", exercise.name, hints=rung)
    show.put(_solution(exercise) if rung == rungs else _rung(exercise, rung))


def _solution(exercise: Exercise) -> show.Message:
    return show.Message("hint", "The solution, as the library has it.", code=attempt.library_source(exercise))


def _rung(exercise: Exercise, rung: int) -> show.Message:
    last = len(exercise.hints)
    text, colon, drawing = exercise.hints[rung - 1].partition(":\n")
    more = "One more call shows the solution." if rung == last else "Call again for the next."
    return show.Message("hint", f"Hint {rung} of {last}. {text}{colon.strip()}", [more], drawing)
