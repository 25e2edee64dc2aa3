"""`name = lab.check(name)`: is the answer right, and if not, which misconception is it?

The answer runs on 2, 3 and 4 ranks, on inputs that differ by rank. What each rank returned is compared, here in the
kernel, with the value that one process computes from the same inputs. What ranks say of each other counts for nothing.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from course_lib import spmd
from course_lib.lab import attempt, costs, progress, show, timing, trial
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Exercise, find
from course_lib.lab.judging import Failing, Findings, judge_case, judge_world, price_of, stop
from course_lib.lab.scopes import describe
from course_lib.lab.stopped import without_native

Answer = TypeVar("Answer", bound=Callable)
PASSED, NOT_YET, NOT_ATTEMPTED = "passed", "not yet", "not attempted"
PRINTED_LINES = 12  # of what an answer printed, shown with a "not yet"
# Python's two lines of a warning: a place and a text, and the line at that place; torch adds a place of its own.
WARNING = re.compile(r"^.*?:\d+: (\w*Warning: .*?)(?: \(Triggered internally at .*\))?\n(?:  .*\n?)?", re.MULTILINE)
GAIN = 0.95  # of a rival's time: less than that is a gain
TRIES = 3  # at an overlap: a busy machine hides it
GROUP = [1, 2, 3]  # of four ranks: numbered 0, 1 and 2 within it


@dataclass
class Verdict:
    """What a check found. signature: the misconception's name, "" if none. seconds: the answer's time, if timed."""

    state: str
    message: show.Message
    signature: str = ""
    seconds: float | None = None
    figure: Any = None


def check(answer: Answer) -> Answer:
    """Check an exercise's answer, say what was found, and return the answer if it is right.

    Otherwise returns the library's version, so that the cells below go on. The exercise is found by the answer's name.
    Raises TypeError for what has no name, LookupError for a name no exercise has.
    """
    name = getattr(answer, "__name__", None)
    if name is None:
        raise TypeError(f"lab.check takes the function you wrote, as in `f = lab.check(f)`; this is {answer!r}.")
    exercise = find(name)
    if answer is exercise.reference:
        show.put(
            show.Message(NOT_ATTEMPTED, "This is the library's version. Run the cell with your own, then this one.")
        )
        return answer
    verdict = examine(exercise, answer)
    show.put(verdict.message)
    if verdict.figure is not None:
        show.put(verdict.figure)
    if verdict.state == NOT_ATTEMPTED:
        return exercise.reference
    progress.record_attempt(name, verdict.state, verdict.seconds, verdict.message.text)
    return answer if verdict.state == PASSED else exercise.reference


def examine(exercise: Exercise, answer: Callable) -> Verdict:
    """The verdict on an answer. Shows nothing, records nothing."""
    if callable(answer) and attempt.is_stub(answer, exercise):
        text = "Not attempted yet. The lab goes on with the library's version."
        return Verdict(NOT_ATTEMPTED, show.Message(NOT_ATTEMPTED, text))
    if problem := attempt.complaint(answer, exercise):
        return _not_yet(exercise, answer, Findings(stopped=[Failing(1, "", ["cannot_be_called"], problem)]), {})
    findings, reports = Findings(), {}
    task = replace(exercise.task, timing=None)
    deadline = time.monotonic() + 1.5 * trial.PATIENCE_S
    with tempfile.TemporaryDirectory() as folder:
        for n in exercise.worlds:
            patience = min(trial.PATIENCE_S, max(trial.PATIENCE_S / 2, deadline - time.monotonic()))
            error, reports[n] = _run(trial.try_cases, answer, task, folder, ranks=n, timeout=patience)
            if not judge_world(exercise, answer, n, Path(folder), error, findings):
                break  # it would only stop again
    if findings.first() is None and exercise.takes_group:
        _judge_group(exercise, answer, task, findings)
    if findings.first() is None:
        return _passed(exercise, answer, findings)
    return _not_yet(exercise, answer, findings, reports)


def _judge_group(exercise: Exercise, answer: Callable, task: Any, findings: Findings) -> None:
    """Once all is right on the world: the same cases in a group of which no rank has the number it has in the world."""
    members, n = GROUP, len(GROUP)
    with tempfile.TemporaryDirectory() as folder:
        error, _ = _run(trial.try_cases, answer, task, folder, members, ranks=n + 1, timeout=trial.PATIENCE_S)
        inside = Findings()
        for index, case in exercise.cases_on(n):
            if not judge_case(exercise, answer, n, index, case, Path(folder), error, inside):
                break
    within = "." if exercise.by_collectives else ", and count ranks within it: `group_dst`, `group_src`."
    if failing := inside.first():
        findings.values.append(
            Failing(
                n + 1,
                "",
                ["wrong_in_a_group"],
                f"right on the whole world, wrong in a group ({show.ranks(members)} of {n + 1}). Pass `group` to every "
                f"call{within}",
                [f"in the group: {failing.sentence}"],
            )
        )


def _run(fn: Callable, *args: Any, **options: Any) -> tuple[Exception | None, Any]:
    """(what went wrong, the ranks' reports)."""
    try:
        return None, spmd.run(fn, *args, backend="gloo", show=False, **options).ranks
    except spmd.SpmdError as error:
        return error, error.ranks
    except TypeError as error:  # it uses something that cannot be sent to another process; the text names it
        return error, []


def _not_yet(exercise: Exercise, answer: Callable, findings: Findings, reports: dict[int, Any]) -> Verdict:
    failing = findings.first()
    pattern, told = "", ""
    of_values = failing in findings.values or failing in findings.causes
    judged = of_values or failing in findings.stopped and "endless_loop" not in failing.names
    if exercise.on_ranks and judged:
        pattern, told = describe(findings.records)
    # A pattern of right and wrong values has its causes; what stopped an answer has others.
    names = [pattern, *failing.names] if of_values else failing.names
    sentence = failing.sentence if failing.sentence.endswith((".", "?")) else failing.sentence + "."
    place = f"{failing.where}: {sentence}" if failing.where else sentence[0].upper() + sentence[1:]
    kept = attempt.keeps_what_recv_returns(answer) if of_values or "raises" in names else ""
    advice = kept or next((exercise.advice[name] for name in names if name in exercise.advice), "")
    text = " ".join(part for part in ("Not yet.", told, place, advice) if part)
    details = [*failing.details, *_printed(reports.get(failing.n, []))]
    details.append("The lab goes on with the library's version.")
    if exercise.hints:
        details[-1] += f' For a hint: `lab.hint("{exercise.name}")`'
    return Verdict(NOT_YET, show.Message(NOT_YET, text, details), failing.names[0])


def _printed(reports: list[spmd.RankReport]) -> list[str]:
    warned: dict[str, int] = {}  # each with the first rank that gave it
    for r in reports:
        for text in WARNING.findall(r.output):
            warned.setdefault(text, r.rank)
    lines = [f"[{rank}] {text}" for text, rank in warned.items()]
    for r in reports:
        lines += [f"[{r.rank}] {line}" for line in without_native(WARNING.sub("", r.output)).splitlines()]
    more = [f"... and {len(lines) - PRINTED_LINES} more lines"] if len(lines) > PRINTED_LINES else []
    return ["Your ranks printed:", *lines[:PRINTED_LINES], *more] if lines else []


def _passed(exercise: Exercise, answer: Callable, findings: Findings) -> Verdict:
    text = f"Passed on {show.listing(exercise.worlds)} ranks." if exercise.on_ranks else "Passed."
    if exercise.closing:
        text += f" {exercise.closing}"
    if exercise.timing is None:
        return Verdict(PASSED, show.Message(PASSED, text))
    n, what = exercise.timed_on, exercise.timing.what
    rivals = {"yours": answer, "the library's": exercise.reference, **exercise.timing.rivals}
    error, reports = _run(timing.time_rivals, rivals, exercise.task, ranks=n, timeout=timing.PATIENCE_S)
    if error is not None:
        name, sentence = stop(error, answer)
        findings.stopped.append(Failing(n, f"{n} ranks, {what}", [name], sentence))
        return _not_yet(exercise, answer, findings, {n: reports})
    timed = [report.result for report in reports]
    if failing := _large_input(exercise, n, timed):
        findings.values.append(failing)
        return _not_yet(exercise, answer, findings, {n: reports})
    times = {name: timing.median_of_slowest(timed, name) for name in rivals}
    par = ", ".join(f"{name} {show.seconds(s)}" for name, s in times.items() if name != "yours")
    on = f"{what} on {n} ranks" if exercise.on_ranks else what
    text += f" {on[0].upper() + on[1:]}: {show.seconds(times['yours'])}, {par}.{_bytes(exercise, n, timed)}"
    others = [s for name, s in times.items() if name in exercise.timing.rivals]
    if exercise.timing.no_gain and times["yours"] > GAIN * min(others):
        text += f" {exercise.timing.no_gain}"
    verdict = Verdict(PASSED, show.Message(PASSED, text), seconds=times["yours"])
    return _with_timeline(exercise, answer, verdict, findings) if exercise.timeline or exercise.overlap else verdict


def _large_input(exercise: Exercise, n: int, timed: list[timing.Timed]) -> Failing | None:
    """What is wrong on the timed input, which is much larger than those of the cases."""
    where = f"{n} ranks, {exercise.timing.what}" if exercise.on_ranks else exercise.timing.what
    wrong = [rank for rank, t in enumerate(timed) if not t.right]
    if wrong:
        sentence = f"right on all small inputs, wrong on this large one: {show.ranks(wrong)} returned other values"
        return Failing(n, where, ["small_inputs_only"], sentence)
    found = costs.too_few_bytes(price_of(exercise, n, timed, [t.args for t in timed]))
    return Failing(n, where, [found[0]], found[1]) if found else None


def _bytes(exercise: Exercise, n: int, timed: list[timing.Timed]) -> str:
    """What the answer sent in the timed call, against the least possible."""
    if exercise.least_bytes is None:
        return ""
    price = price_of(exercise, n, timed, [t.args for t in timed])
    who = "Each rank" if len(set(price.sent)) == 1 else "The busiest rank"
    enough = max(price.least)
    least = max(price.sent) <= enough * costs.SLACK
    compare = exercise.least_of if least else f"{show.size(enough)} are possible"
    return f" {who} {costs.sent(price, max(price.sent))}: {compare}."


def _with_timeline(exercise: Exercise, answer: Callable, verdict: Verdict, findings: Findings) -> Verdict:
    """One more call of the answer alone: its picture, and whether its communication hides behind its computation."""
    n = exercise.timed_on
    run = partial(spmd.run, timing.call_once, answer, exercise.task, ranks=n, backend="gloo", show=False)
    for _ in range(TRIES):
        try:
            timeline = run(timeout=timing.PATIENCE_S).timeline
        except spmd.SpmdError:  # it passed all cases and was timed: what is left to miss is the picture
            return verdict
        found = costs.no_overlap(Evidence(n, [], [], timeline=timeline)) if exercise.overlap else None
        if found is None:
            break
    if found:
        findings.prices.append(Failing(n, f"{n} ranks, {exercise.timing.what}", [found[0]], found[1]))
        verdict = _not_yet(exercise, answer, findings, {})
    verdict.figure = timeline.draw()
    return verdict
