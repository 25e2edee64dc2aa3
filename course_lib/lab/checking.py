"""`name = lab.check(name)`: is the answer right, and if not, which misconception is it?

The answer runs on 2, 3 and 4 ranks, on inputs that differ by rank. What each rank returned is compared, here in the
kernel, with the value that one process computes from the same inputs. What ranks say of each other counts for nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from course_lib import spmd
from course_lib.lab import attempt, costs, progress, show, signatures, timing, trial
from course_lib.lab.evidence import Evidence, collect
from course_lib.lab.exercise import Case, Exercise, find
from course_lib.lab.scopes import Record, describe
from course_lib.lab.stopped import explain_stop

Answer = TypeVar("Answer", bound=Callable)
PASSED, NOT_YET, NOT_ATTEMPTED = "passed", "not yet", "not attempted"
PRINTED_LINES = 12  # of what an answer printed, shown with a "not yet"


@dataclass
class Verdict:
    """What a check found. signature: the misconception's name, "" if none. seconds: the answer's time, if timed."""

    state: str
    message: show.Message
    signature: str = ""
    seconds: float | None = None
    figure: Any = None


@dataclass
class Failing:
    """One thing that is wrong, in one case."""

    n: int
    where: str
    name: str
    sentence: str
    details: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """What all runs of an answer brought to light; several things may be wrong at once."""

    records: list[Record] = field(default_factory=list)
    borrowed: list[Failing] = field(default_factory=list)
    early: list[Failing] = field(default_factory=list)  # sends that were not waited for in time
    values: list[Failing] = field(default_factory=list)
    stopped: list[Failing] = field(default_factory=list)
    prices: list[Failing] = field(default_factory=list)  # right, but spoils its input or costs too much

    def first(self) -> Failing | None:
        """The one to tell: what explains the others. Of its kind, one on the most ranks: patterns are plainer there."""
        for group in (self.borrowed, self.early, self.values, self.stopped, self.prices):
            if group:
                return max(group, key=lambda failing: failing.n)  # of these the first: the simplest case
        return None


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
    progress.record_attempt(name, verdict.state, verdict.seconds)
    return answer if verdict.state == PASSED else exercise.reference


def examine(exercise: Exercise, answer: Callable) -> Verdict:
    """The verdict on an answer. Shows nothing, records nothing."""
    if callable(answer) and attempt.is_stub(answer, exercise):
        text = "Not attempted yet. The lab goes on with the library's version."
        return Verdict(NOT_ATTEMPTED, show.Message(NOT_ATTEMPTED, text))
    if problem := attempt.complaint(answer, exercise):
        return _not_yet(exercise, Findings(stopped=[Failing(1, "", "cannot_be_called", problem)]), {})
    findings, reports = Findings(), {}
    task = replace(exercise.task, timing=None)
    with tempfile.TemporaryDirectory() as folder:
        for n in exercise.worlds:
            error, reports[n] = _run(trial.try_cases, answer, task, folder, ranks=n, timeout=trial.PATIENCE_S)
            if not _judge_world(exercise, answer, n, Path(folder), error, findings):
                break  # it would only stop again
    if findings.first() is None:
        return _passed(exercise, answer, findings)
    return _not_yet(exercise, findings, reports)


def _run(fn: Callable, *args: Any, **options: Any) -> tuple[Exception | None, Any]:
    """(what went wrong, the ranks' reports)."""
    try:
        return None, spmd.run(fn, *args, backend="gloo", show=False, **options).ranks
    except spmd.SpmdError as error:
        return error, error.ranks
    except TypeError as error:  # it uses something that cannot be sent to another process; the text names it
        return error, []


def _judge_world(
    exercise: Exercise, answer: Callable, n: int, folder: Path, error: Exception | None, findings: Findings
) -> bool:
    """Judge every case on n ranks. Returns whether all of them came to their end."""
    for index, case in exercise.cases_on(n):
        seen = trial.read(folder, index, n)
        record = partial(Record, n, size=case.size and case.size(n), root=case.root and case.root(n), label=case.label)
        where = _where(exercise, n, case)
        early = next((s.early for s in seen if s is not None and s.early), None)
        if early:
            findings.early.append(Failing(n, where, *costs.early_send(*early)))
        if None in seen:
            findings.records.append(record(right=False))
            name, sentence = _stop(error, answer)
            findings.stopped.append(Failing(n, where, name, sentence))
            return False
        inputs = [exercise.arguments(index, rank, n) for rank in range(n)]
        findings.records.append(record(right=_judge_case(exercise, n, case, where, seen, inputs, findings)))
    if isinstance(error, spmd.MismatchError) and not findings.values:
        findings.stopped.append(Failing(n, _where(exercise, n), *explain_stop(error, answer)))
    return True


def _stop(error: Exception | None, answer: Callable) -> tuple[str, str]:
    if isinstance(error, spmd.SpmdError):
        return explain_stop(error, answer)
    return "cannot_be_sent", str(error)


def _judge_case(
    exercise: Exercise, n: int, case: Case, where: str, seen: list[trial.Seen], inputs: list[tuple], findings: Findings
) -> bool:
    """Note all that is wrong in one case. Returns whether the values are right."""
    calls, library = {c for s in seen for c in s.calls}, [c for s in seen for c in s.library]
    if found := costs.borrowed_work(calls, library, exercise.may_use):
        findings.borrowed.append(Failing(n, "", *found))
    evidence = collect(
        n,
        [s.value for s in seen],
        exercise.expect(inputs, n),
        inputs,
        lambda changed: exercise.expect(changed, n),
        root=case.root and case.root(n),
        size=case.size and case.size(n),
        on_ranks=exercise.on_ranks,
    )
    if evidence is not None:
        name, sentence = signatures.explain(evidence, exercise.signatures)
        named = name in signatures.NAMES_AN_ELEMENT or not evidence.comparable
        details = [] if named else [signatures.an_element_differs(evidence)]
        findings.values.append(Failing(n, where, name, sentence, details))
        return False
    changed = {rank: s.changed for rank, s in enumerate(seen)}
    if not exercise.may_change and (found := costs.changed_arguments(changed)):
        findings.prices.append(Failing(n, where, *found))
    if found := costs.too_many_bytes(_price(exercise, n, seen, inputs)):
        findings.prices.append(Failing(n, where, *found))
    return True


def _price(exercise: Exercise, n: int, seen: list[Any], inputs: list[tuple]) -> Evidence:
    bound = exercise.least_bytes
    least = None if bound is None else [bound(n, rank, inputs[rank]) for rank in range(n)]
    return Evidence(n, [], [], sent=[s.sent for s in seen], least=least)


def _where(exercise: Exercise, n: int, case: Case | None = None) -> str:
    named = case.name(n) if case else ""
    return ", ".join(part for part in ([f"{n} ranks"] if exercise.on_ranks else []) + [named] if part)


def _not_yet(exercise: Exercise, findings: Findings, reports: dict[int, Any]) -> Verdict:
    failing = findings.first()
    pattern, told = "", ""
    if exercise.on_ranks and (failing in findings.values or failing in findings.stopped):
        pattern, told = describe(findings.records)
    sentence = failing.sentence if failing.sentence.endswith((".", "?")) else failing.sentence + "."
    place = f"{failing.where}: {sentence}" if failing.where else sentence[0].upper() + sentence[1:]
    advice = exercise.advice.get(pattern) or exercise.advice.get(failing.name, "")
    text = " ".join(part for part in ("Not yet.", told, place, advice) if part)
    details = [*failing.details, *_printed(reports.get(failing.n, []))]
    if exercise.hints:
        details.append(f'For a hint: `lab.hint("{exercise.name}")`')
    return Verdict(NOT_YET, show.Message(NOT_YET, text, details), failing.name)


def _printed(reports: list[spmd.RankReport]) -> list[str]:
    lines = [f"[{r.rank}] {line}" for r in reports for line in r.output.splitlines()]
    more = [f"... and {len(lines) - PRINTED_LINES} more lines"] if len(lines) > PRINTED_LINES else []
    return ["Your ranks printed:", *lines[:PRINTED_LINES], *more] if lines else []


def _passed(exercise: Exercise, answer: Callable, findings: Findings) -> Verdict:
    text = f"Passed on {show.listing(exercise.worlds)} ranks." if exercise.on_ranks else "Passed."
    if exercise.timing is None:
        return Verdict(PASSED, show.Message(PASSED, text))
    n, what = max(exercise.worlds), exercise.timing.what
    rivals = {"yours": answer, "the library's": exercise.reference, **exercise.timing.rivals}
    error, reports = _run(timing.time_rivals, rivals, exercise.task, ranks=n, timeout=timing.PATIENCE_S)
    if error is not None:
        findings.stopped.append(Failing(n, f"{n} ranks, {what}", *_stop(error, answer)))
        return _not_yet(exercise, findings, {n: reports})
    timed = [report.result for report in reports]
    times = {name: timing.median_of_slowest(timed, name) for name in rivals}
    par = ", ".join(f"{name} {show.seconds(s)}" for name, s in times.items() if name != "yours")
    on = f"{what} on {n} ranks" if exercise.on_ranks else what
    text += f" {on[0].upper() + on[1:]}: {show.seconds(times['yours'])}, {par}.{_bytes(exercise, n, timed)}"
    verdict = Verdict(PASSED, show.Message(PASSED, text), seconds=times["yours"])
    return _with_timeline(exercise, answer, verdict, findings) if exercise.timeline or exercise.overlap else verdict


def _bytes(exercise: Exercise, n: int, timed: list[timing.Timed]) -> str:
    """What the answer sent in the timed call, against the least possible."""
    if exercise.least_bytes is None:
        return ""
    price = _price(exercise, n, timed, [t.args for t in timed])
    who = "Each rank" if len(set(price.sent)) == 1 else "The busiest rank"
    enough = max(price.least)
    compare = "the least possible" if max(price.sent) <= enough * costs.SLACK else f"{show.size(enough)} are possible"
    return f" {who} sent {show.size(max(price.sent))}: {compare}."


def _with_timeline(exercise: Exercise, answer: Callable, verdict: Verdict, findings: Findings) -> Verdict:
    """One more call of the answer alone: its picture, and whether its communication hides behind its computation."""
    n = max(exercise.worlds)
    timeline = spmd.run(
        timing.call_once, answer, exercise.task, ranks=n, timeout=trial.PATIENCE_S, backend="gloo", show=False
    ).timeline
    if exercise.overlap and (found := costs.no_overlap(Evidence(n, [], [], timeline=timeline))):
        findings.prices.append(Failing(n, f"{n} ranks, {exercise.timing.what}", *found))
        verdict = _not_yet(exercise, findings, {})
    verdict.figure = timeline.draw()
    return verdict
