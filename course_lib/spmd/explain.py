"""From what is known of each rank to why the run failed, in words.

The order of the questions is the whole method. One cause has many faces: the peers of a rank that died see a lost
connection, those of a rank that never came see nothing at all. So first look for what no other rank can have caused.
"""

from __future__ import annotations

import ast
import inspect
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable

from .compare import Mismatch, first_mismatch
from .report import Cause, Frame, Op, RankReport

# What a transport says when the *other* end went away or was late. Never a cause.
_ECHO = re.compile(
    r"connection (closed|reset|refused)|broken pipe|pair closure|socket (closed|error)|timed? ?out|"
    r"remote process exited|peer (closed|gone)|connect\w* failed|wait timeout",
    re.IGNORECASE,
)


def is_echo(report: RankReport) -> bool:
    """Did this rank fail because another one did?"""
    return report.status == "raised" and report.failed_in is not None and bool(_ECHO.search(report.error_text))


def explain(reports: list[RankReport], stopped: str, function: Callable | None = None) -> Cause | None:
    """Why the run failed; None if it did not.

    stopped: why the launcher stopped waiting, in words. function: what the ranks ran; its return statements are where
    a rank may have left.
    """
    ended = all(r.status == "returned" for r in reports)
    failures = [r for r in reports if r.status in ("raised", "died") and not is_echo(r)]
    mismatch = first_mismatch({r.rank: r.ops for r in reports}, ended)
    if mismatch:
        return _mismatch(mismatch, reports)
    if failures:
        return _failure(min(failures, key=lambda r: r.ended_ns), reports)
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
        "number": f"Only {_ranks(r for r, op in found.ops.items() if op is not None)} called {any_op.name}",
    }[found.what]
    group = "" if len(any_op.group) == len(reports) else f" on the group of {_ranks(any_op.group)}"
    lines = [f"{head}. Their {_ordinal(found.index)} collective{group}:"]
    texts = {rank: _call_text(op) for rank, op in found.ops.items()}
    if found.what == "splits":
        texts = {
            r: f"input splits {op.splits[0]}, output splits {op.splits[1]}, at {op.frame}"
            for r, op in found.ops.items()
        }
    lines += [f"  {_ranks(ranks)}: {text}" for ranks, text in _alike(texts)]
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
        kind, first = "died", f"Rank {rank} {_death(guilty)}"
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
        lines += [f"  It wrote: {line}" for line in _last_words(guilty.output)]
    lines += _others(reports, {rank})
    return Cause(kind, (rank,), "\n".join(lines))


def _hang(reports: list[RankReport], stopped: str, function: Callable | None) -> Cause:
    by_rank = {r.rank: r for r in reports}
    waits = {r.rank: _waits_for(r, by_rank) for r in reports}
    waited_for = {peer for peers in waits.values() for peer in peers}
    gave_up = any(is_echo(r) for r in reports)
    head = "A rank gave up waiting." if gave_up else stopped
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
        lines = [f"{head} {_ranks(guilty).capitalize()} {_is_are(guilty)} still running, and wait for no other rank:"]
        lines += [f"  {_ranks(ranks)}: {text}" for ranks, text in _alike({r.rank: _place(r) for r in idle})]
        lines += _others(reports, set(guilty))
        return Cause("busy", guilty, "\n".join(lines))
    # Everybody is in a call that all have reached: the backend itself, or a rank that closed its group.
    return Cause(
        "lost", (), "\n".join([head + " The ranks are in the same call and it does not end:", *_others(reports)])
    )


def _late(
    head: str, ends: list[int], waits: dict[int, set[int]], by_rank: dict[int, RankReport], function: Callable | None
) -> Cause:
    waiting = [r for r, peers in waits.items() if peers & set(ends)]
    ops = {r: _pending(by_rank[r]) for r in waiting}
    lines = [head]
    for ranks, text in _alike({r: _call_text(ops[r]) for r in waiting}):
        awaited = _ranks(set(ends) & set().union(*(waits[r] for r in ranks)))
        lines.append(f"{_ranks(ranks).capitalize()} wait{'s' if len(ranks) == 1 else ''} for {awaited} in")
        lines.append(f"  {text}")
    returned = [r for r in ends if by_rank[r].status == "returned"]
    others = [r for r in ends if r not in returned]
    if returned:
        for ranks, text in _alike({r: _without_it(by_rank[r], ops.values()) for r in returned}):
            lines.append(f"{_ranks(ranks).capitalize()} returned{text}.")
        call = next((op for op in ops.values() if op), None)
        lines += _early_returns(function, call)
    for ranks, text in _alike({r: _place(by_rank[r]) for r in others}):
        lines.append(f"{_ranks(ranks).capitalize()} never came to that call, and {_is_are(ranks)} at")
        lines.append(f"  {text}")
    rest = set(by_rank) - set(ends) - set(waiting)
    lines += _others([by_rank[r] for r in sorted(rest)])
    kind = "early_return" if returned and not others else "missing"
    return Cause(kind, tuple(ends), "\n".join(lines))


def _deadlock(head: str, cycle: list[int], by_rank: dict[int, RankReport]) -> Cause:
    lines = [f"{head} Deadlock: {_ranks(cycle)} wait for one another."]
    for rank in cycle:
        lines.append(f"  rank {rank}: {_call_text(_pending(by_rank[rank]))}")
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
        return {op.peer} if op.peer is not None else set(op.group) - {report.rank}
    return {member for member in op.group if member in by_rank and by_rank[member].calls_on(op.key) <= op.index}


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
    if function is None or call is None:
        return []
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(inspect.cleandoc("".join(lines)) if lines[0][0].isspace() else "".join(lines))
    except (OSError, TypeError, SyntaxError):
        return []
    file = inspect.unwrap(function).__code__.co_filename
    if file != call.frame.file:
        return []
    numbers = [n.lineno + first - 1 for n in ast.walk(tree) if isinstance(n, ast.Return)]
    frames = [Frame(file, n, function.__name__) for n in sorted(numbers) if n < call.frame.line]
    if not frames:
        return []
    return ["It may have left by:" if len(frames) == 1 else "It may have left by one of:", *(f"  {f}" for f in frames)]


# -- words -----------------------------------------------------------------------------------------------------------


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 1 to 7`."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _alike(texts: dict[int, str]) -> list[tuple[list[int], str]]:
    """Ranks with the same text together, in the order of the first of them."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, text in sorted(texts.items()):
        groups[text].append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def _ordinal(index: int) -> str:
    if index < 3:
        return ("first", "second", "third")[index]
    number = index + 1
    return (
        f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') if number % 100 not in (11, 12, 13) else 'th' }"
    )


def _is_are(ranks: Iterable[int]) -> str:
    return "is" if len(list(ranks)) == 1 else "are"


def _call_text(op: Op | None) -> str:
    if op is None:
        return "nothing"
    text = f"{op.describe()}, at {op.frame}"
    if op.waits is not None and op.waits != op.frame:
        text += f" (waits at {op.waits})"
    return text


def _without_it(report: RankReport, awaited: Iterable[Op | None]) -> str:
    """How a rank that has returned came to miss the calls that others wait in."""
    failed = report.failed_in
    if failed is not None and any(op is not None and op.name == failed.name for op in awaited):
        return f": its own {failed.name}, at {failed.frame}, had failed with {report.error_text.splitlines()[0][:200]}"
    calls = [op for op in report.ops if op.key != "rendezvous"]
    if not calls:
        return " without that call, after no collective at all"
    return f" without that call; its last collective was {calls[-1].name} at {calls[-1].frame}"


def _place(report: RankReport) -> str:
    if report.waiting is not None:
        return _call_text(report.waiting)
    where = str(report.where) if report.where is not None else "an unknown place"
    return f"{where} (stopped by a signal)" if report.status == "stopped" else where


def _death(report: RankReport) -> str:
    code = report.exit_code or 0
    if code >= 0:
        return f"left with exit code {code} before its function returned (os._exit, or a library ended the process)."
    name = signal.Signals(-code).name
    meaning = {
        "SIGKILL": "killed from outside, as the out-of-memory killer does",
        "SIGSEGV": "a wild memory access in native code",
        "SIGABRT": "native code gave up: see what it wrote",
        "SIGTERM": "asked to end from outside",
    }.get(name, "a signal")
    return f"died by {name} ({meaning})."


def _last_words(output: str) -> list[str]:
    """The lines in which native code says why it ends the process."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"what\(\)|terminate called|Error|error|assert|enforce", line)]
    return [line[:300] for line in telling[-2:]]


def _others(reports: list[RankReport], without: Iterable[int] = ()) -> list[str]:
    """What the remaining ranks were doing."""
    states = _states([report for report in reports if report.rank not in set(without)])
    return ["Meanwhile:", *states] if states else []


def _states(reports: list[RankReport]) -> list[str]:
    """A line for each state that ranks are in."""
    texts = {}
    for report in reports:
        if report.status == "waiting":
            texts[report.rank] = f"in {_call_text(report.waiting)}"
        elif report.status == "returned":
            texts[report.rank] = "returned"
        elif is_echo(report):
            texts[report.rank] = f"lost its peer in {_call_text(report.failed_in)}"
        elif report.status == "raised":
            texts[report.rank] = f"raised {report.error_text.splitlines()[0]}, at {report.where}"
        elif report.status == "died":
            texts[report.rank] = _death(report)
        else:
            texts[report.rank] = f"at {_place(report)}"
    return [f"  {_ranks(ranks)}: {text}" for ranks, text in _alike(texts)]


def _consequence(reports: list[RankReport]) -> list[str]:
    """The first failure that a mismatch led to."""
    bad = [r for r in reports if r.status in ("raised", "died")]
    if not bad:
        return []
    first = min(bad, key=lambda r: r.ended_ns)
    if first.status == "raised":
        return [f"So rank {first.rank} raised {first.error_text.splitlines()[0]}"]
    return [f"So rank {first.rank} {_death(first)}", *(f"  It wrote: {line}" for line in _last_words(first.output))]
