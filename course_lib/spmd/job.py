"""One run in progress, seen from the launcher: its ranks are forked, watched, and known to have ended."""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from . import beacon, oplog
from .client import Client
from .compare import first_mismatch
from .rank import BEGUN, End
from .report import Op

# After the first failure the others get this long to fail by themselves: their errors are evidence.
_GRACE_S = 0.5
# How often to look whether ranks print too much or wait for nothing.
_LOOK_S = 0.25
# How long ranks may take to join and to load their arguments, beyond the time-out of the function itself.
_BEGIN_S = 60
OUTPUT_LIMIT = 1 << 30  # bytes a rank may print before it is stopped, so that it cannot fill the disk


@dataclass
class Job:
    """The ranks of one run. `folder` holds what they write."""

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


def start(job: Job, ranks: int) -> None:
    """Fork the ranks."""
    for rank in range(ranks):
        for kind in ("out", "log", "board", "stack"):
            open(job.path(rank, kind), "wb").close()
        ours, theirs = socket.socketpair()
        job.wires.append(ours)
        with theirs:
            job.client.fork(rank, job.folder, theirs)


def wait(job: Job, timeout: float) -> str:
    """Until every rank has ended, or the grace after the first failure is over, or there is no hope, or time is up.

    Returns why it stopped waiting, in words.
    """
    started = time.monotonic()
    deadline = started + timeout + _BEGIN_S
    begun = 0
    look = 0.0  # when to look at output sizes and for hope again
    failing = False
    with selectors.DefaultSelector() as selector:
        selector.register(job.client.link, selectors.EVENT_READ)
        for rank, wire in enumerate(job.wires):
            selector.register(wire, selectors.EVENT_READ, rank)
        while not all(job.over(rank) for rank in range(job.ranks)):
            now = time.monotonic()
            if now >= deadline:
                break
            if now >= look:
                look = now + _LOOK_S
                job.chatter = next((r for r in range(job.ranks) if _size(job, r) > OUTPUT_LIMIT), None)
                if job.chatter is not None:
                    break
                if not failing and _hopeless(job):
                    return f"Stopped after {now - started:.1f} s, since this would never end."
            for key, _ in selector.select(min(deadline, look) - now):
                if key.data is None:
                    job.hear(job.client.messages())
                    continue
                said = key.fileobj.recv(1)
                if said == BEGUN:
                    begun += 1
                    if begun == job.ranks and not failing:
                        deadline = time.monotonic() + timeout  # the time-out is for the function alone
                    continue
                selector.unregister(key.fileobj)
                if said:  # b"": the rank is gone; the server says how
                    with open(job.path(key.data, "end"), "rb") as file:
                        job.ends[key.data] = pickle.load(file)
            if not failing and job.failed():
                failing, deadline = True, min(deadline, time.monotonic() + _GRACE_S)
    return f"No end after {timeout:.3g} s."


def _size(job: Job, rank: int) -> int:
    return os.path.getsize(job.path(rank, "out"))


def _hopeless(job: Job) -> bool:
    """Is it certain that the ranks which have not ended never will?

    Looked at when all of them have been in the same collective since the last look. (A message may always be under
    way, so point-to-point calls are left to the time-out.)
    """
    live = [rank for rank in range(job.ranks) if not job.over(rank)]
    calls = {rank: beacon.read(job.path(rank, "board"))[1] for rank in live}
    if any(op is None or op.point_to_point for op in calls.values()):
        job.still = {}
        return False
    if calls != job.still:
        job.still, job.judged = calls, False
        return False
    if job.judged:
        return False
    job.judged = True
    ops = {rank: oplog.read_log(job.path(rank, "log")) for rank in range(job.ranks)}
    mismatch = first_mismatch(ops, ended=False)
    if mismatch is not None and mismatch.what != "order":  # which is a suspicion, and need not keep ranks from ending
        return True
    # A rank that has returned can never come to a call it has not made.
    returned = {rank for rank, end in job.ends.items() if end.returned}
    return any(
        sum(other.key == op.key for other in ops[member]) <= op.index
        for op in calls.values()
        for member in returned.intersection(op.group)
    )
