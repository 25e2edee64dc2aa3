"""`lab.hint(name)`: one more rung of the ladder each time, from a nudge to the solution."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.lab import attempt, progress, show
from course_lib.lab.exercise import Exercise, find


def hint(name: str | Callable) -> None:
    """Show the hints of an exercise so far and one more; the last is the solution. How many were used is kept.

    name: the exercise's name, or the function itself. A hint whose first line ends in ":" is a sentence and a drawing.
    """
    exercise = find(name if isinstance(name, str) else name.__name__)
    rungs, used = len(exercise.hints) + 1, progress.load()["exercises"].get(exercise.name, {}).get("hints", 0)
    rung = min(used + 1, rungs)
    if rung > used:
        progress.record("exercises", exercise.name, hints=rung)
    for number in range(1, rung + 1):
        show.put(_rung(exercise, number, rungs, last=number == rung))


def _rung(exercise: Exercise, rung: int, rungs: int, last: bool) -> show.Message:
    """One rung. last: nothing is shown after it, so it says what another call does."""
    name = f"Hint {rung} of {rungs}."
    if rung == rungs:
        return show.Message(
            "hint", f"{name} The solution, as the library has it.", code=attempt.library_source(exercise)
        )
    text, colon, drawing = exercise.hints[rung - 1].partition(":\n")
    more = "One more call shows the solution." if rung == rungs - 1 else "Call again for the next."
    return show.Message("hint", f"{name} {text}{colon.strip()}", [more] if last else [], drawing)
