"""From what is known of each rank to why the run failed, in words.

The order of the questions is the whole method. One cause has many faces: the peers of a rank that died see a lost
connection, those of a rank that never came see nothing at all. So first look for what no other rank can have caused.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable

from .compare import Mismatch, first_mismatch
from .report import Cause, Frame, Op, RankReport
from .words import alike, call_text, death, is_are, last_words, name_ranks, ordinal, place, without_it

# What a transport says when the *other* end went away or was late. Never a cause by itself.
_ECHO = re.compile(
    r"connection (closed|reset|refused)|broken pipe|pair closure|socket (closed|error)|timed? ?out|"
    r"remote process exited|peer (closed|gone)|connect\w* failed|wait timeout",
    re.IGNORECASE,
)
_TRANSPORT = re.compile(r"gloo|nccl|c10d|ProcessGroup|TCPStore|FileStore", re.IGNORECASE)


def is_echo(report: RankReport) -> bool:
    """Did this rank fail because another one did, or came too late?

    Told by the runtime errors in the chain of what it raised, so that a reader's own error raised from one counts too.
    An error of arguments (a `timeout=30` that should be a timedelta) is none, whatever words it uses.
    """
    if report.status != "raised" or not _ECHO.search(report.chain):
        return False
    return report.failed_in is not None or bool(_TRANSPORT.search(report.chain))


def explain(reports: list[RankReport], stopped: str, function: Callable | None = None) -> Cause | None:
    """Why the run failed; None if it did not.

    stopped: why the launcher stopped waiting, in words. function: what the ranks ran; its return statements are where
    a rank may have left.
    """
    ended = all(r.status == "returned" for r in reports)
    failures = [r for r in reports if r.status in ("raised", "died") and not is_echo(r)]
    # A rank that died comes first: when exactly, is only known from its reaping, which may be late.
    failures.sort(key=lambda r: (r.status != "died", r.ended_ns))
    mismatch = first_mismatch({r.rank: r.ops for r in reports}, ended)
    if mismatch and not (mismatch.what == "order" and failures):  # an order that looks swapped is only a suspicion
        return _mismatch(mismatch, reports)
    if failures:
        return _failure(failures[0], reports)
    if ended:
        return None
    return _hang(reports, stopped, function)


def where(reports: list[RankReport]) -> str:
    """Where each rank is, for a reader who interrupted the run."""
    return "\n".join(["Interrupted. The ranks were", *_states(reports)])


# -- the cases -----------------------------------------------------------------------------------------------------


def _mismatch(found: Mismatch, reports: list[RankReport]) -> Cause:
    any_op = next(op for op in found.ops.values() if op is not None)
    head = {
        "call": "The ranks call different collectives",
        "root": f"The ranks name different roots for {any_op.name}",
        "shape": f"The ranks call {any_op.name} with different shapes",
        "dtype": f"The ranks call {any_op.name} with different dtypes",
        "reduction": f"The ranks call {any_op.name} with different reductions",
        "splits": "What one rank sends in all_to_all_single is not what another expects",
        "order": f"The ranks call {any_op.name} in different order: the sums mix different tensors",
        "number": f"Only {name_ranks(r for r, op in found.ops.items() if op is not None)} called {any_op.name}",
    }[found.what]
    group = "" if len(any_op.group) == len(reports) else f" on the group of {name_ranks(any_op.group)}"
    lines = [f"{head}. Their {ordinal(found.index)} collective{group}:"]
    texts = {rank: call_text(op) for rank, op in found.ops.items()}
    if found.what == "splits":
        texts = {
            r: f"input splits {op.splits[0]}, output splits {op.splits[1]}, at {op.frame}"
            for r, op in found.ops.items()
        }
    lines += [f"  {name_ranks(ranks)}: {text}" for ranks, text in alike(texts)]
    rule = "Every rank of a group must call the same collectives, in the same order, with the same shapes and dtypes."
    if found.what == "splits":
        rule = "Entry j of rank i's input splits must equal entry i of rank j's output splits."
    lines.append(rule)
    if all(r.status == "returned" for r in reports):
        lines.append("The backend did not notice: the results are wrong, without an error.")
    lines += _consequence(reports)
    there = {r.rank for r in reports if (op := _pending(r)) and op.key == any_op.key and op.index == found.index}
    lines += _others(reports, there | {r.rank for r in reports if r.status in ("returned", "died")})
    return Cause("mismatch", found.guilty, "\n".join(lines))


def _failure(guilty: RankReport, reports: list[RankReport]) -> Cause:
    rank = guilty.rank
    if guilty.status == "died":
        kind, first = "died", f"Rank {rank} {death(guilty)}"
    elif isinstance(guilty.error, SystemExit) or guilty.error_text.startswith("SystemExit"):
        code = guilty.error_text.partition(": ")[2]
        kind, first = "exited", f"Rank {rank} called sys.exit({code}): a rank ends by returning"
    else:
        kind, first = "raised", f"Rank {rank} raised {guilty.error_text}"
    lines = [first]
    own = guilty.own_stack
    if guilty.status == "raised" and own:
        lines += [f"  {frame}" for frame in own[-4:]]
    elif guilty.where is not None:
        seen = "It was at" if own else "It was last seen at"
        lines.append(f"  {seen} {guilty.where}")
    if guilty.status == "died":
        lines += [f"  It wrote: {line}" for line in last_words(guilty.output)]
    lines += _others(reports, {rank})
    return Cause(kind, (rank,), "\n".join(lines))


def _hang(reports: list[RankReport], stopped: str, function: Callable | None) -> Cause:
    by_rank = {r.rank: r for r in reports}
    waits = {r.rank: _waits_for(r, by_rank) for r in reports}
    waited_for = {peer for peers in waits.values() for peer in peers}
    gave_up = any(is_echo(r) for r in reports)
    head = "A rank gave up waiting." if gave_up else stopped
    moving = [r for r in reports if r.moving]
    if moving:  # what they wait for at this moment says nothing
        return _endless(head, moving, reports)
    waiting = {r for r, peers in waits.items() if peers}
    # A rank that others wait for, and that waits for nobody, is where the chain ends.
    ends = sorted(waited_for - waiting)
    if ends:
        return _late(head, ends, waits, by_rank, function)
    cycle = _cycle(waits)
    if cycle:
        return _deadlock(head, cycle, by_rank)
    idle = [r for r in reports if r.status in ("running", "stopped")]
    if idle:
        guilty = tuple(r.rank for r in idle)
        lines = [
            f"{head} {name_ranks(guilty).capitalize()} {is_are(guilty)} still running, and wait for no other rank:"
        ]
        lines += [f"  {name_ranks(ranks)}: {text}" for ranks, text in alike({r.rank: place(r) for r in idle})]
        lines += _others(reports, set(guilty))
        return Cause("busy", guilty, "\n".join(lines))
    echoes = [r for r in reports if is_echo(r)]
    if echoes:  # and nothing that they are an echo of: then the error speaks for itself
        return _failure(min(echoes, key=lambda r: r.ended_ns), reports)
    # Everybody is in a call that all have reached: the backend itself, or a rank that closed its group.
    lines = [f"{head} The ranks are in the same call and it does not end.", *_others(reports)]
    return Cause("lost", (), "\n".join(lines))


def _endless(head: str, moving: list[RankReport], reports: list[RankReport]) -> Cause:
    guilty = tuple(r.rank for r in moving)
    lines = [
        f"{head} Messages still pass: {name_ranks(guilty)} {is_are(guilty)} at work. Does the loop end? They are at"
    ]
    at = {r.rank: f"{r.where}, after {r.messages:,} messages" for r in moving}
    lines += [f"  {name_ranks(ranks)}: {text}" for ranks, text in alike(at)]
    lines += _others(reports, set(guilty))
    return Cause("busy", guilty, "\n".join(lines))


def _late(
    head: str, ends: list[int], waits: dict[int, set[int]], by_rank: dict[int, RankReport], function: Callable | None
) -> Cause:
    waiting = [r for r, peers in waits.items() if peers & set(ends)]
    ops = {r: _pending(by_rank[r]) for r in waiting}
    lines = [head]
    for ranks, text in alike({r: call_text(ops[r]) for r in waiting}):
        awaited = name_ranks(set(ends) & set().union(*(waits[r] for r in ranks)))
        lines.append(f"{name_ranks(ranks).capitalize()} wait{'s' if len(ranks) == 1 else ''} for {awaited} in")
        lines.append(f"  {text}")
    returned = [r for r in ends if by_rank[r].status == "returned"]
    others = [r for r in ends if r not in returned]
    if returned:
        for ranks, text in alike({r: without_it(by_rank[r], ops.values()) for r in returned}):
            lines.append(f"{name_ranks(ranks).capitalize()} returned{text}.")
        call = next((op for op in ops.values() if op), None)
        lines += _early_returns(function, call)
    for ranks, text in alike({r: place(by_rank[r]) for r in others}):
        lines.append(f"{name_ranks(ranks).capitalize()} never came to that call, and {is_are(ranks)} at")
        lines.append(f"  {text}")
    rest = set(by_rank) - set(ends) - set(waiting)
    lines += _others([by_rank[r] for r in sorted(rest)])
    kind = "early_return" if returned and not others else "missing"
    return Cause(kind, tuple(ends), "\n".join(lines))


def _deadlock(head: str, cycle: list[int], by_rank: dict[int, RankReport]) -> Cause:
    lines = [f"{head} Deadlock: {name_ranks(cycle)} wait for one another."]
    for rank in cycle:
        lines.append(f"  rank {rank}: {call_text(_pending(by_rank[rank]))}")
    ops = [op for rank in cycle if (op := _pending(by_rank[rank])) is not None]
    if all("send" in op.name for op in ops):
        lines.append(
            "All of them send and nobody receives: a send ends when the other side takes the data. Let one side "
            "receive first, or start both with isend and irecv and wait afterwards."
        )
    elif all("recv" in op.name for op in ops):
        lines.append("All of them receive and nobody sends: one side must send first.")
    else:
        lines.append("Each waits in a call that another has not reached: bring the calls into one order on all ranks.")
    lines += _others([r for r in by_rank.values() if r.rank not in cycle])
    return Cause("deadlock", tuple(cycle), "\n".join(lines))


# -- who waits for whom ----------------------------------------------------------------------------------------------


def _pending(report: RankReport) -> Op | None:
    """The call this rank waits in, or waited in when it gave up."""
    if report.status == "returned":
        return None
    return report.waiting if report.status == "waiting" else report.failed_in


def _waits_for(report: RankReport, by_rank: dict[int, RankReport]) -> set[int]:
    op = _pending(report)
    if op is None:
        return set()
    if op.point_to_point:
        peers = {op.peer} if op.peer is not None else set(op.group)
    else:
        peers = {member for member in op.group if member in by_rank and by_rank[member].calls_on(op.key) <= op.index}
    return (peers & by_rank.keys()) - {report.rank}


def _cycle(waits: dict[int, set[int]]) -> list[int]:
    """Ranks that wait for one another in a circle; empty if there is none."""
    for start in sorted(waits):
        path, rank = [start], start
        while waits.get(rank):
            rank = min(waits[rank])
            if rank in path:
                return path[path.index(rank) :]
            path.append(rank)
    return []


def _early_returns(function: Callable | None, call: Op | None) -> list[str]:
    """The return statements a rank may have left by, before it came to the line of `call`."""
    if not inspect.isfunction(function) or call is None:
        return []
    file, first = function.__code__.co_filename, function.__code__.co_firstlineno
    try:
        tree = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(function)[0]))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    inside = list(_own_nodes(tree))
    lines = [node.lineno + first - 1 for node in inside if isinstance(node, ast.Return)]
    loops = [n for n in inside if isinstance(n, ast.For | ast.While) and _holds(n, call.frame.line - first + 1)]
    if file != call.frame.file or loops:  # in a loop, a return further down may have come first
        return []
    frames = [Frame(file, line, function.__name__) for line in sorted(lines) if line < call.frame.line]
    if not frames:
        return []
    return ["It may have left by:" if len(frames) == 1 else "It may have left by one of:", *(f"  {f}" for f in frames)]


def _own_nodes(function: ast.AST) -> Iterable[ast.AST]:
    """What is in a function, without what is in functions and classes defined in it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(node)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _others(reports: list[RankReport], without: Iterable[int] = ()) -> list[str]:
    """What the remaining ranks were doing."""
    states = _states([report for report in reports if report.rank not in set(without)])
    return ["Meanwhile:", *states] if states else []


def _states(reports: list[RankReport]) -> list[str]:
    """A line for each state that ranks are in."""
    texts = {}
    for report in reports:
        if report.status == "waiting":
            texts[report.rank] = f"in {call_text(report.waiting)}"
        elif report.status == "returned":
            texts[report.rank] = "returned"
        elif is_echo(report):
            at = call_text(report.failed_in) if report.failed_in else str(report.where)
            texts[report.rank] = f"lost its peer in {at}"
        elif report.status == "raised":
            at = f", at {report.where}" if report.where else ""
            texts[report.rank] = f"raised {report.error_text.splitlines()[0]}{at}"
        elif report.status == "died":
            texts[report.rank] = death(report)
        else:
            texts[report.rank] = f"at {place(report)}"
    return [f"  {name_ranks(ranks)}: {text}" for ranks, text in alike(texts)]


def _consequence(reports: list[RankReport]) -> list[str]:
    """The first failure that a mismatch led to."""
    bad = [r for r in reports if r.status in ("raised", "died")]
    if not bad:
        return []
    first = min(bad, key=lambda r: r.ended_ns)
    if first.status == "raised":
        return [f"So rank {first.rank} raised {first.error_text.splitlines()[0]}"]
    return [f"So rank {first.rank} {death(first)}", *(f"  It wrote: {line}" for line in last_words(first.output))]
