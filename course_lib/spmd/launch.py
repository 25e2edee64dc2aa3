"""`spmd.run`: start the ranks, wait for them, gather what they left, and explain when something went wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..timeline import Timeline
from . import backend as backends
from . import beacon, flight, pickles, record
from .client import Client, server
from .compare import first_mismatch
from .explain import explain, where
from .rank import End
from .report import Cause, Frame, HangError, MismatchError, Op, RankError, RankReport

# After the first failure the others get this long to fail by themselves: their errors are evidence.
_GRACE_S = 0.5
# How often to look whether ranks print too much or wait for nothing.
_LOOK_S = 0.25
# How long live ranks may take to write their stacks down.
_STACKS_S = 1.0
_SHOWN_BYTES = 64 * 1024  # of one rank's output; what is cut is said
_OUTPUT_LIMIT = 1 << 30  # bytes a rank may print before it is stopped, so that it cannot fill the disk

# gloo prints a line on every connection; nobody asked.
_NOISE = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)


class Results(list):
    """What the ranks returned, by rank. `.ranks`: a RankReport each; `.timeline`: their spans; `.seconds`: the run."""

    def __init__(self, ranks: list[RankReport], timeline: Timeline, seconds: float):
        super().__init__(report.result for report in ranks)
        self.ranks = ranks
        self.timeline = timeline
        self.seconds = seconds


@dataclass
class _Run:
    """One run in progress, seen from the launcher."""

    folder: str
    client: Client
    wires: list[socket.socket]
    pids: dict[int, int] = field(default_factory=dict)
    exits: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> (exit code, when)
    ends: dict[int, End] = field(default_factory=dict)
    chatter: int | None = None  # the rank that printed too much
    still: dict[int, Op | None] = field(default_factory=dict)  # the calls the live ranks were in at the last look
    judged: bool = False  # whether there is hope for `still` has been looked into
    counts: dict[int, int] = field(default_factory=dict)  # messages of the live ranks when time was up

    @property
    def ranks(self) -> int:
        return len(self.wires)

    def failed(self) -> bool:
        return any(not end.returned for end in self.ends.values()) or bool(self.exits.keys() - self.ends.keys())

    def over(self, rank: int) -> bool:
        return rank in self.ends or rank in self.exits

    def path(self, rank: int, kind: str) -> str:
        return os.path.join(self.folder, f"{rank}.{kind}")

    def hear(self, messages: list[Any]) -> None:
        for message in messages:
            if "pid" in message:
                self.pids[message["rank"]] = message["pid"]
            elif "exit" in message:
                self.exits[message["rank"]] = (message["exit"], message["at"])


def run(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    timeout: float = 60,
    backend: str | None = None,
    env: dict[str, str] | None = None,
    show: bool = True,
    **kwargs: Any,
) -> Results:
    """Call `fn(*args, **kwargs)` on each of `ranks` fresh processes that share a process group; return their values.

    fn: any function, also one defined in a notebook cell. In it, torch.distributed is initialised: one GPU per rank
    with NCCL where there are enough, gloo on the CPU elsewhere (`backend="gloo"` or `"nccl"` insists). args, kwargs:
    the same for all ranks; sent by pickle.
    timeout: seconds for the whole call of fn. env: variables set on the ranks, on top of this process's own.
    show: print what the ranks print, grouped by rank, when they have ended.

    Returns Results, a list by rank. Nothing of the run is left when this returns or raises.

    Raises RankError (a rank raised or died), HangError (time ran out), MismatchError (the ranks' collectives did not
    match, so that their results are wrong); each names the rank and the line. ValueError or TypeError for arguments
    that cannot work.
    """
    choice = backends.choose(ranks, backend)
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout!r} s: it must be more than 0")
    if choice.fell_back and show:
        print(choice.why)
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="spmd-")
    wires: list[socket.socket] = []
    try:
        _write_call(folder, fn, args, kwargs, choice, env)
        with server() as client:
            state = _Run(folder, client, wires)
            try:
                _start(state, ranks)
                stopped = _wait(state, timeout)
                reports = _gather(state)
            except KeyboardInterrupt:
                if show:
                    _print(interrupted := _gather(state))
                    print(where(interrupted))
                raise
            finally:
                client.end()
        timeline = Timeline([(state.ends[r].spans or []) if r in state.ends else [] for r in range(ranks)])
    finally:
        for wire in wires:
            wire.close()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - started
    if show:
        _print(reports)
    cause = explain(reports, stopped, fn)
    if cause is not None:
        raise _error(cause, reports)
    return Results(reports, timeline, seconds)


def _write_call(
    folder: str, fn: Callable, args: tuple, kwargs: dict, choice: backends.Choice, env: dict[str, str] | None
) -> None:
    if not callable(fn):
        raise TypeError(f"spmd.run needs a function to call on each rank; it was given a {type(fn).__name__}")
    name = getattr(fn, "__name__", type(fn).__name__)
    with open(os.path.join(folder, "call.pkl"), "wb") as file:
        parts = [(f"`{name}`", fn)]
        parts += [(f"Argument {i} of `{name}`", arg) for i, arg in enumerate(args, 1)]
        parts += [(f"Argument `{key}` of `{name}`", arg) for key, arg in kwargs.items()]
        sources = pickles.dump((fn, args, kwargs), file, parts)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = range(len(choice.devices))
    run = {
        "backend": choice.backend,
        "devices": choice.devices,
        "env": dict(os.environ),
        "rank_env": [backends.environment(choice, rank, port) | (env or {}) for rank in ranks],
        "cwd": os.getcwd(),
        "path": sys.path,
        "sources": sources,
    }
    with open(os.path.join(folder, "run.json"), "w") as file:
        json.dump(run, file)


def _start(run: _Run, ranks: int) -> None:
    for rank in range(ranks):
        for kind in ("out", "log", "board", "stack"):
            open(run.path(rank, kind), "wb").close()
        ours, theirs = socket.socketpair()
        run.wires.append(ours)
        with theirs:
            run.client.fork(rank, run.folder, theirs)


def _wait(run: _Run, timeout: float) -> str:
    """Until every rank has ended, or the grace after the first failure is over, or there is no hope, or time is up.

    Returns why it stopped waiting, in words.
    """
    started = time.monotonic()
    deadline = started + timeout
    look = 0.0  # when to look at output sizes and for hope again
    failing = False
    with selectors.DefaultSelector() as selector:
        selector.register(run.client.link, selectors.EVENT_READ)
        for rank, wire in enumerate(run.wires):
            selector.register(wire, selectors.EVENT_READ, rank)
        while not all(run.over(rank) for rank in range(run.ranks)):
            now = time.monotonic()
            if now >= deadline:
                break
            if now >= look:
                look = now + _LOOK_S
                run.chatter = next((r for r in range(run.ranks) if _size(run, r) > _OUTPUT_LIMIT), None)
                if run.chatter is not None:
                    break
                if not failing and _hopeless(run):
                    return f"Stopped after {now - started:.1f} s, since this would never end."
            for key, _ in selector.select(min(deadline, look) - now):
                if key.data is None:
                    run.hear(run.client.messages())
                    continue
                selector.unregister(key.fileobj)
                if key.fileobj.recv(1):  # b"": the rank is gone; the server says how
                    with open(run.path(key.data, "end"), "rb") as file:
                        run.ends[key.data] = pickle.load(file)
            if not failing and run.failed():
                failing, deadline = True, min(deadline, time.monotonic() + _GRACE_S)
    return f"No end after {timeout:.3g} s."


def _size(run: _Run, rank: int) -> int:
    return os.path.getsize(run.path(rank, "out"))


def _hopeless(run: _Run) -> bool:
    """Is it certain that the ranks which have not ended never will?

    Looked at when all of them have been in the same collective since the last look. (A message may always be under
    way, so point-to-point calls are left to the time-out.)
    """
    live = [rank for rank in range(run.ranks) if not run.over(rank)]
    calls = {rank: beacon.read(run.path(rank, "board"))[1] for rank in live}
    if any(op is None or op.point_to_point for op in calls.values()):
        run.still = {}
        return False
    if calls != run.still:
        run.still, run.judged = calls, False
        return False
    if run.judged:
        return False
    run.judged = True
    ops = {rank: record.read_log(run.path(rank, "log")) for rank in range(run.ranks)}
    if first_mismatch(ops, ended=False):
        return True
    # A rank that has returned can never come to a call it has not made.
    returned = {rank for rank, end in run.ends.items() if end.returned}
    return any(
        sum(other.key == op.key for other in ops[member]) <= op.index
        for op in calls.values()
        for member in returned.intersection(op.group)
    )


def _gather(run: _Run) -> list[RankReport]:
    alive = [rank for rank in range(run.ranks) if not run.over(rank)]
    run.counts = {rank: beacon.read(run.path(rank, "board"))[2] for rank in alive}
    if alive:
        _collect_stacks(run, alive)
    return [_report(run, rank) for rank in range(run.ranks)]


def _collect_stacks(run: _Run, alive: list[int]) -> None:
    """Have the live ranks write their stacks, and wait until they have."""
    time.sleep(2 * beacon.PERIOD_S)  # until their blackboards, too, tell of now
    run.client.ask_stacks()
    deadline = time.monotonic() + _STACKS_S
    while time.monotonic() < deadline:
        if all(_stack_written(run.path(rank, "stack")) for rank in alive):
            return
        time.sleep(0.01)


def _stack_written(path: str) -> bool:
    with open(path, "rb") as file:
        return b" in main\n" in file.read()  # rank.main: the outermost frame but those of the server


def _report(run: _Run, rank: int) -> RankReport:
    report = RankReport(rank, "running", output=_output(run.path(rank, "out")))
    report.ops = record.read_log(run.path(rank, "log"))
    report.last_seen, waiting, report.messages = beacon.read(run.path(rank, "board"))
    report.moving = 0 < run.counts.get(rank, 0) < report.messages
    flights = flight.read(run.path(rank, "flight"))
    report.begun = {key: group.begun for key, group in flights.items()}
    end = run.ends.get(rank)
    if end is not None:
        report.status = "returned" if end.returned else "raised"
        report.error_text, report.ended_ns, report.failed_in = end.text, end.at_ns, end.failed_in
        report.stack = end.stack or []
        value = _load_value(run.path(rank, "value"))
        report.result, report.error = (value, None) if end.returned else (None, value)
        return report
    report.stack = _read_stack(run.path(rank, "stack"))
    if rank in run.exits:
        report.status = "died"
        report.exit_code, report.ended_ns = run.exits[rank]
        report.failed_in = waiting
    elif waiting := waiting or flight.waiting_in(flights, report.stack, report.where):
        report.status, report.waiting = "waiting", waiting
    elif _stopped(run.pids.get(rank)):
        report.status = "stopped"
    if run.chatter == rank:
        report.status, report.error_text = "raised", f"nothing, but printed more than {_OUTPUT_LIMIT >> 20} MiB"
        report.ended_ns = 1
    return report


def _load_value(path: str) -> Any:
    if not os.path.exists(path):
        return None  # an exception that cannot be pickled: its text is known
    with open(path, "rb") as file:
        return pickles.load(file)


_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def _read_stack(path: str) -> list[Frame]:
    """The stack faulthandler wrote (innermost first there), innermost last."""
    with open(path, errors="replace") as file:
        found = _STACK_LINE.findall(file.read())
    return [Frame(name, int(line), function) for name, line, function in reversed(found)]


def _stopped(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _output(path: str) -> str:
    """What a rank wrote; of very much, the beginning and the end."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if size <= _SHOWN_BYTES:
            text = file.read().decode(errors="replace")
        else:
            head = file.read(_SHOWN_BYTES // 2).decode(errors="replace")
            file.seek(-_SHOWN_BYTES // 2, os.SEEK_END)
            tail = file.read().decode(errors="replace")
            text = f"{head}\n... {size - _SHOWN_BYTES:,} bytes of {size:,} are not shown ...\n{tail}"
    return _NOISE.sub("", text)


def _print(reports: list[RankReport]) -> None:
    """Each rank's output under its number; one line per rank where a line is all there is."""
    for report in reports:
        text = report.output.rstrip("\n")
        if text:
            print("\n".join(f"[{report.rank}] {line}" for line in text.split("\n")))


def _error(cause: Cause, reports: list[RankReport]) -> Exception:
    if all(r.status == "returned" for r in reports):
        return MismatchError(cause, reports)
    if any(r.status in ("raised", "died") for r in reports):
        error = RankError(cause, reports)
        if cause.rank is not None:
            error.__cause__ = reports[cause.rank].error
        return error
    return HangError(cause, reports)
