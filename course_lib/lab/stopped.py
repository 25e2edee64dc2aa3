"""An answer that did not come to its end: it raised, left, was killed, or waits for ever. Why, in a sentence or two."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass

from course_lib import spmd
from course_lib.lab import attempt, meetings, show
from course_lib.lab.attempt import source_line
from course_lib.lab.exercise import Astray
from course_lib.lab.meetings import Pair
from course_lib.lab.mismatch import RULE, explain_mismatch
from course_lib.lab.tape import Message, Outside
from course_lib.lab.written import file_of
from course_lib.spmd.report import whose

DONE, RUNNING = "done", "running"
# What torch and gloo write for their own authors: places in their source, C++ types, stacks.
NATIVE = re.compile(
    r"terminate called|what\(\):|enforce fail|EnforceNotMet|Exception raised from|\.(cc|cpp|h):\d+|frame #\d"
)


@dataclass(frozen=True)
class State:
    """Where one rank stands in a run that hangs. doing: "send", "recv", another call's name, DONE or RUNNING.

    line, text: of the answer. messages: how many it has begun. moving: their number still grew when time was up.
    """

    rank: int
    doing: str
    peer: int | None
    line: int | None
    text: str
    messages: int = 0
    moving: bool = False


def explain_stop(
    error: spmd.SpmdError, answer: Callable, tapes: list[list[Message]] | None = None, done: Collection[int] = ()
) -> tuple[str, str]:
    """(name, sentence) for the failure of a run of trial.py. tapes: of the case in which it stopped; done: the ranks
    that got through it.
    """
    if tapes and (found := meetings.unequal_sizes(tapes, lambda line: attempt.quoted(answer, line))):
        return found
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
        return explain_mismatch(error.ranks, answer) or ("mismatch", without_native(error.cause.text))
    return explain_hang([_state(report, answer, report.rank in done) for report in error.ranks], tapes or [])


def without_native(text: str) -> str:
    """The lines of a text that are not torch's or gloo's own talk."""
    return "\n".join(line for line in text.splitlines() if not NATIVE.search(line))


def explain_hang(states: list[State], tapes: list[list[Message]]) -> tuple[str, str]:
    """(name, sentence) for ranks that do not come to an end."""
    if moving := [s for s in states if s.moving]:
        s = max(moving, key=lambda s: s.messages)
        at = f" ({_quoted(s)})" if s.line else ""
        return "endless_messages", (
            f"no end after some seconds, and messages still pass: {s.messages:,} at rank {s.rank}{at}. "
            "Does your loop end?"
        )
    running = [s for s in states if s.doing == RUNNING]
    waiting = [s for s in states if s.doing not in (DONE, RUNNING)]
    done = [s for s in states if s.doing == DONE]
    if running:
        s = running[0]
        at = f" at {_quoted(s)}" if s.line else ""
        who = f"rank {s.rank}" if len(states) > 1 else "the answer"
        return (
            "endless_loop",
            f"no end after some seconds: {who} is still running{at}. Is there a loop without an end, or is it slow?",
        )
    one_line = len(waiting) > 1 and len({s.line for s in waiting}) == 1 and bool(waiting[0].line)
    told = "; ".join(_told(s, not one_line) for s in waiting)
    if done:
        told += f"; {show.ranks(s.rank for s in done)} {'has' if len(done) == 1 else 'have'} returned"
    name, why = _why(waiting, done, tapes)
    at = f" at {_quoted(waiting[0])}" if one_line else ""
    return name, f"your ranks stopped{at}: {told}. {why}"


def _why(waiting: list[State], done: list[State], tapes: list[list[Message]]) -> tuple[str, str]:
    doing = {s.doing for s in waiting}
    pair = meetings.out_of_step(tapes)
    if not doing & {"send", "recv"}:
        return "out_of_step", RULE
    together = any(m.ended is None and not m.blocking for tape in tapes for m in tape)  # sends and receives at once
    if not done and doing == {"send"} and not together:
        return "all_send", "All send first and nobody receives. Let some of them receive first, or post both and wait."
    if not done and doing == {"recv"} and not together:
        return "all_receive", "All receive first and nobody sends. Some rank must send first."
    if both := _both_send(waiting, tapes):
        return "both_send", (
            f"Ranks {both[0]} and {both[1]} each wait in a send to the other, and neither has come to its receive: "
            "both send first. Start the send, receive, and wait for it afterwards."
        )
    if not done and doing == {"recv"} and pair and _on_their_way(tapes, waiting):
        return "asks_the_wrong_rank", (
            f"Rank {pair.source} has sent rank {pair.target} a message, but rank {pair.target} waits for one "
            f"from {_waits_for(waiting, pair.target)}: receive from the rank that sends to you."
        )
    count = f"{_numbers(pair)} Does a rank leave out a step?" if pair else "Count the sends and receives of each pair."
    if done:
        return "unequal_steps", count
    return "out_of_step", count


def _both_send(waiting: list[State], tapes: list[list[Message]]) -> tuple[int, int] | None:
    """Two ranks that wait in a send to each other, and have not asked for the other's message."""
    senders = {s.rank: s.peer for s in waiting if s.doing == "send"}
    asked = {(rank, m.peer) for rank, tape in enumerate(tapes) for m in tape if m.kind == "recv" and m.ended is None}
    for rank, peer in sorted(senders.items()):
        if peer is not None and senders.get(peer) == rank and not {(rank, peer), (peer, rank)} & asked:
            return rank, peer
    return None


def _on_their_way(tapes: list[list[Message]], waiting: list[State]) -> bool:
    """Whether every rank that waits was sent a message, though by another rank than the one it waits for."""
    sent = {(pair.source, pair.target) for pair in meetings.pairs(tapes) if len(pair.sent) > len(pair.asked)}
    return all((s.peer, s.rank) not in sent and any(target == s.rank for _, target in sent) for s in waiting)


def _waits_for(waiting: list[State], rank: int) -> int | None:
    return next((s.peer for s in waiting if s.rank == rank), None)


def _numbers(pair: Pair) -> str:
    sent, asked = len(pair.sent), len(pair.asked) or "none"
    many = f"{sent} message{'s' * (sent != 1)}" if sent else "no message"
    return f"Rank {pair.source} has sent {many} to rank {pair.target}, which has asked for {asked}."


def _told(s: State, quote: bool) -> str:
    to = "" if s.peer is None else f" to {s.peer}" if s.doing == "send" else f" from {s.peer}"
    return f"rank {s.rank} waits in {s.doing}{to}" + (f" ({_quoted(s)})" if quote and s.line else "")


def _quoted(s: State) -> str:
    return _line_quoted(s.line, s.text)


def _line_quoted(line: int | None, text: str) -> str:
    return f"line {line}" + (f": `{text}`" if text else "")


def _state(report: spmd.RankReport, answer: Callable, done: bool) -> State:
    line, text = _place(report, answer)
    op = report.waiting or report.failed_in
    if report.status == "returned" or done:
        return State(report.rank, DONE, None, line, text)
    if op is None:
        return State(report.rank, RUNNING, None, line, text, report.messages, report.moving)
    doing = op.name.removeprefix("i") if op.name in ("isend", "irecv") else op.name
    return State(report.rank, doing, op.peer, line, text, report.messages, report.moving)


def _place(report: spmd.RankReport, answer: Callable) -> tuple[int | None, str]:
    """The line of the answer that this rank was at, and its text; failing that, of the reader's other code.

    (None, "") where it was at neither: in code of the course, which is no concern of the reader's.
    """
    file = file_of(answer)
    frames = report.stack or [f for f in (report.last_seen,) if f]
    if own := [f for f in frames if f.file == file]:
        return own[-1].line, source_line(answer, own[-1].line)
    if own := [f for f in report.own_stack if whose[f.file] == "own"]:
        return own[-1].line, own[-1].text
    return None, ""


def _at(report: spmd.RankReport, answer: Callable) -> str:
    line, text = _place(report, answer)
    return (f" at line {line}" + (f": `{text}`" if text else "")) if line else ""


def _raised(report: spmd.RankReport, answer: Callable, who: str) -> tuple[str, str]:
    at, (line, quoted), raised = _at(report, answer), _place(report, answer), report.error_text
    if raised.startswith("NotImplementedError") and "NotImplementedError" in quoted:
        return (
            "leftover_raise",
            f"your code runs into the stub's `raise NotImplementedError` (line {line}). Delete that line.",
        )
    if isinstance(report.error, Astray):
        place = f" ({_line_quoted(line, quoted)})" if line else ""
        return "astray", f"{who}{place} {report.error}"
    if isinstance(report.error, Outside):
        return "leaves_the_group", f"{who} has {report.error}{at}"
    if re.search(r"'NoneType' object has no attribute '(wait|get_future)'", raised):
        return "waits_for_none", (
            f"{who} waits for None{at}. A collective returns a work to wait for only where it is called with "
            "`async_op=True`; without, it has ended when it returns"
        )
    if "NoneType" in raised:
        return "meets_none", f"{who} comes upon None where it needs a value{at}"
    if "'generator'" in raised:
        return "meets_a_generator", (
            f"{who} takes a generator for a list{at}. It can be looped over, once, and no more: make a list of it first"
        )
    if "ReduceOp.AVG" in raised:
        return "average_without_nccl", (
            f"{who} asks for `ReduceOp.AVG`{at}, and gloo in this version of torch has none: add, and divide by n"
        )
    text = without_native(raised).strip() or f"{raised.partition(':')[0]} inside torch"
    return "raises", f"{who} raised {text.removesuffix('.')}{at}"


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"left with exit code {code} before it returned"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (" (as the out-of-memory killer does)" if name == "SIGKILL" else "")
