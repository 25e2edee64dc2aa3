"""An answer that did not come to its end: it raised, left, was killed, or waits for ever. Why, in a sentence or two."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from course_lib import spmd
from course_lib.lab import show, trial
from course_lib.lab.attempt import source_line

DONE, RUNNING = "done", "running"


@dataclass(frozen=True)
class State:
    """Where one rank stands in a run that hangs. doing: "send", "recv", another call's name, DONE or RUNNING."""

    rank: int
    doing: str
    peer: int | None
    line: int | None
    text: str


def explain_stop(error: spmd.SpmdError, answer: Callable) -> tuple[str, str]:
    """(name, sentence) for the failure of a run of trial.py."""
    kind, rank = error.cause.kind, error.cause.rank
    who = f"rank {rank}" if len(error.ranks) > 1 else "the answer"
    if kind == "raised":
        return _raised(error.ranks[rank], answer, who)
    if kind == "exited":
        at = _at(error.ranks[rank], answer)
        return "exits", f"{who} called exit{at}. An answer ends with `return`, not with the process."
    if kind == "died":
        return "dies", f"{who} {_death(error.ranks[rank].exit_code)}{_at(error.ranks[rank], answer)}."
    if kind == "mismatch":
        return "mismatch", error.cause.text
    return explain_hang([_state(report, answer) for report in error.ranks])


def explain_hang(states: list[State]) -> tuple[str, str]:
    """(name, sentence) for ranks that do not come to an end."""
    running = [s for s in states if s.doing == RUNNING]
    waiting = [s for s in states if s.doing not in (DONE, RUNNING)]
    done = [s for s in states if s.doing == DONE]
    if running:
        s = running[0]
        at = f" at line {s.line}: `{s.text}`" if s.line else ""
        who = f"rank {s.rank}" if len(states) > 1 else "the answer"
        return "endless_loop", f"no end after some seconds: {who} is still running{at}. Does this loop end?"
    told = "; ".join(_told(s) for s in waiting)
    if done:
        told += f"; {show.ranks(s.rank for s in done)} {'has' if len(done) == 1 else 'have'} returned"
    return _why(waiting, done, f"your ranks stopped: {told}. ")


def _why(waiting: list[State], done: list[State], told: str) -> tuple[str, str]:
    doing = {s.doing for s in waiting}
    if not done and doing == {"send"}:
        return "all_send", told + (
            "All send first and nobody receives. Let some of them receive first, or post both and wait."
        )
    if not done and doing == {"recv"}:
        return "all_receive", told + "All receive first and nobody sends. Some rank must send first."
    if done:
        what = (
            "message that never comes"
            if doing == {"recv"}
            else "rank that takes its message"
            if doing == {"send"}
            else "peer"
        )
        return (
            "unequal_steps",
            told + f"Who is left waits for a {what}: count the sends and receives of each pair of ranks.",
        )
    return "crossed", told + "Each waits for a call that its peer has not reached: who sends must meet who receives."


def _told(s: State) -> str:
    to = "" if s.peer is None else f" to {s.peer}" if s.doing == "send" else f" from {s.peer}"
    return f"rank {s.rank} waits in {s.doing}{to}" + (f" (line {s.line})" if s.line else "")


def _state(report: spmd.RankReport, answer: Callable) -> State:
    line = _line(report, answer)
    text = source_line(answer, line) if line else ""
    op = report.waiting or report.failed_in
    if report.status == "returned" or (op is not None and op.frame.file == trial.__file__):
        return State(report.rank, DONE, None, line, text)
    if op is None:
        return State(report.rank, RUNNING, None, line, text)
    doing = op.name.removeprefix("i") if op.name in ("isend", "irecv") else op.name
    return State(report.rank, doing, op.peer, line, text)


def _line(report: spmd.RankReport, answer: Callable) -> int | None:
    """The line of the answer's own file that this rank was at."""
    file = answer.__code__.co_filename if hasattr(answer, "__code__") else None
    frames = report.stack or [f for f in (report.last_seen,) if f]
    own = [f for f in frames if f.file == file] or [f for f in report.own_stack if f.file != trial.__file__]
    return own[-1].line if own else None


def _at(report: spmd.RankReport, answer: Callable) -> str:
    line = _line(report, answer)
    text = source_line(answer, line) if line else ""
    return (f" at line {line}" + (f": `{text}`" if text else "")) if line else ""


def _raised(report: spmd.RankReport, answer: Callable, who: str) -> tuple[str, str]:
    at, line = _at(report, answer), _line(report, answer)
    if report.error_text.startswith("NotImplementedError") and "NotImplementedError" in source_line(answer, line or 0):
        return (
            "leftover_raise",
            f"your code runs into the stub's `raise NotImplementedError` (line {line}). Delete that line.",
        )
    return "raises", f"{who} raised {report.error_text.strip()}{at}"


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"left with exit code {code} before it returned"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (" (as the out-of-memory killer does)" if name == "SIGKILL" else "")
