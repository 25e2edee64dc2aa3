"""What all runs of an answer brought to light: values, messages and prices, judged case by case.

Several things may be wrong at once. `Findings.first` picks the one to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from course_lib import spmd
from course_lib.lab import attempt, costs, meetings, signatures, trial
from course_lib.lab.evidence import Evidence, collect
from course_lib.lab.exercise import Case, Exercise
from course_lib.lab.scopes import Record
from course_lib.lab.signatures.messages import uniform
from course_lib.lab.stopped import explain_stop
from course_lib.lab.tape import Message


@dataclass
class Failing:
    """One thing that is wrong, in one case. names: what advice is looked up by, the first one first."""

    n: int
    where: str
    names: list[str]
    sentence: str
    details: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """What all runs of an answer brought to light; several things may be wrong at once."""

    records: list[Record] = field(default_factory=list)
    borrowed: list[Failing] = field(default_factory=list)
    causes: list[Failing] = field(default_factory=list)  # of wrong values and of races alike
    careless: list[Failing] = field(default_factory=list)  # memory that was still being sent
    mismatched: list[Failing] = field(default_factory=list)  # the ranks' collectives, though all came to their end
    values: list[Failing] = field(default_factory=list)
    stopped: list[Failing] = field(default_factory=list)
    prices: list[Failing] = field(default_factory=list)  # right, but spoils its input or costs too much
    # By number of ranks: how many messages each rank sends, the answer's and the library's.
    history: dict[int, tuple[int, int]] = field(default_factory=dict)

    def first(self) -> Failing | None:
        """The one to tell: what explains the others. Of its kind, one on the most ranks: patterns are plainer there."""
        causes = self.borrowed, self.causes, self.careless, self.mismatched
        for group in (*causes, self.values, self.stopped, self.prices):
            if group:
                return max(group, key=lambda failing: failing.n)  # of these the first: the simplest case
        return None


def judge_world(
    exercise: Exercise, answer: Callable, n: int, folder: Path, error: Exception | None, findings: Findings
) -> bool:
    """Judge every case on n ranks. Returns whether all of them came to their end."""
    for index, case in exercise.cases_on(n):
        if not judge_case(exercise, answer, n, index, case, folder, error, findings):
            return False
    if isinstance(error, spmd.MismatchError):  # all returned, and their values tell of the mixture, not of its cause
        name, sentence = explain_stop(error, answer)
        findings.mismatched.append(Failing(n, where_of(exercise, n), [name], sentence))
    return True


def judge_case(
    exercise: Exercise,
    answer: Callable,
    n: int,
    index: int,
    case: Case,
    folder: Path,
    error: Exception | None,
    findings: Findings,
) -> bool:
    """Judge one case. Returns whether it came to its end."""
    seen = trial.read(folder, index, n)
    tapes = trial.tapes(folder, trial.THEIRS, index, n)
    record = partial(Record, n, size=case.size and case.size(n), root=case.root and case.root(n), label=case.label)
    where = where_of(exercise, n, case)
    quote = partial(attempt.quoted, answer)
    done = [rank for rank in range(n) if seen[rank] is not None]
    if found := (
        meetings.shared_memory(tapes, quote)
        or meetings.careless_send(tapes, done, quote)
        or meetings.careless_collective([seen[rank].collectives for rank in done], quote)
    ):
        findings.careless.append(Failing(n, where, [found[0]], found[1]))
    if len(done) < n:
        findings.records.append(record(right=False))
        name, sentence = stop(error, answer, tapes, done)
        findings.stopped.append(Failing(n, where, [name], sentence))
        return False
    library = trial.tapes(folder, trial.OURS, index, n)
    numbers = uniform(tapes), uniform(library)
    if None not in numbers:
        findings.history.setdefault(n, numbers)
    inputs = [exercise.arguments(index, rank, n) for rank in range(n)]
    sizes = meetings.unequal_sizes(tapes, quote)
    facts = {"messages": tapes, "library": library, "history": dict(findings.history), "quote": quote}
    findings.records.append(record(right=_judge_values(exercise, n, case, where, seen, inputs, facts, sizes, findings)))
    return True


def stop(
    error: Exception | None, answer: Callable, tapes: list[list[Message]] | None = None, done: Collection[int] = ()
) -> tuple[str, str]:
    """(name, sentence) for an answer that did not come to its end."""
    if isinstance(error, spmd.SpmdError):
        return explain_stop(error, answer, tapes, done)
    return "cannot_be_sent", str(error)


def _judge_values(
    exercise: Exercise,
    n: int,
    case: Case,
    where: str,
    seen: list[trial.Seen],
    inputs: list[tuple],
    facts: dict[str, Any],
    sizes: tuple[str, str] | None,
    findings: Findings,
) -> bool:
    """Note all that is wrong in one case. Returns whether the values are right."""
    calls, library = {c for s in seen for c in s.calls}, [c for s in seen for c in s.library]
    if found := costs.borrowed_work(calls, library, exercise.may_use):
        findings.borrowed.append(Failing(n, "", [found[0]], found[1]))
    if calls - costs.FREE:  # what went by collectives is on no tape: messages alone would not tell enough
        facts = facts | {"messages": None}
    changed = [[] if exercise.may_change else s.changed for s in seen]
    facts |= {"collectives": [s.collectives for s in seen] if exercise.by_collectives else None}
    # Where nothing need travel, that nobody called a collective explains nothing.
    silent = exercise.least_bytes is not None and not any(exercise.least_bytes(n, r, inputs[r]) for r in range(n))
    evidence = collect(
        n,
        [s.value for s in seen],
        exercise.expect(inputs, n),
        inputs,
        lambda changed: exercise.expect(changed, n),
        root=case.root and case.root(n),
        size=case.size and case.size(n),
        on_ranks=exercise.on_ranks,
        changed=changed,
        **(facts | {"collectives": None} if silent else facts),
    )
    if evidence is not None:
        own = (*exercise.causes, *exercise.signatures)
        told = signatures.Told([sizes[0]], sizes[1]) if sizes else signatures.tell(evidence, own)
        known = told.names[0] in {cause.__name__ for cause in exercise.causes}
        (findings.causes if known else findings.values).append(
            Failing(n, where, told.names, told.sentence, told.details)
        )
        return False
    price = replace(price_of(exercise, n, seen, inputs), **facts)
    for found in (
        costs.changed_arguments(changed, exercise.on_ranks),
        costs.too_few_bytes(price),
        costs.too_many_bytes(price),
        costs.no_ring(price) if exercise.ring else None,
    ):
        if found:
            findings.prices.append(Failing(n, where, [found[0]], found[1]))
    return True


def price_of(exercise: Exercise, n: int, seen: list[Any], inputs: list[tuple]) -> Evidence:
    bound = exercise.least_bytes
    least = None if bound is None else [bound(n, rank, inputs[rank]) for rank in range(n)]
    something = int(sum(least or ()) > 0)  # where nothing more exact is known
    total = something if exercise.least_total is None else exercise.least_total(n, inputs[0])
    collectives = [s.collectives for s in seen] if exercise.by_collectives else None
    return Evidence(n, [], [], sent=[s.sent for s in seen], least=least, total=total, collectives=collectives)


def where_of(exercise: Exercise, n: int, case: Case | None = None) -> str:
    named = case.name(n) if case else ""
    return ", ".join(part for part in ([f"{n} ranks"] if exercise.on_ranks else []) + [named] if part)
