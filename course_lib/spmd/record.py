"""Record what a rank asks of torch.distributed: which call, on which group, with which tensor, from which line.

`install()` wraps the public functions of torch.distributed in this process (a rank's, never the notebook's).
Every call then leaves three traces:
- the call in progress, in memory; `beacon.py` publishes it, so that it can be read when the rank hangs or dies;
- collectives, in a log that outlives the process (`oplog.py`), so that the ranks can be compared afterwards;
- a span on the timeline, and bytes and calls in `traffic()`.
The cost is about 15 microseconds a call. Collectives that C++ code issues itself (DDP's reducer, functional
collectives) do not pass here: `flight.py` knows of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..timeline import spans
from . import calls, flight
from .calls import CALLS, Call
from .oplog import Log
from .report import Frame, Op, whose

# Errors of a call that never was: torch looked at the arguments and refused.
_REFUSALS = (TypeError, ValueError, AttributeError, IndexError)


@dataclass
class Traffic:
    """What this rank moved while `traffic()` was on. Bytes of payload, without headers."""

    sent: int = 0
    received: int = 0
    messages: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    collective_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, op: Op, size: int, sends: bool) -> None:
        if not op.point_to_point:
            self.calls[op.name] += 1
            self.collective_bytes[op.name] += size
        elif sends:
            self.sent += size
            self.messages += 1
        else:
            self.received += size


class Watcher(Protocol):
    """Is told of every call of this process, messages and collectives: `Recorder.watchers`."""

    def begins(self, op: Op, tensor: Any) -> None:
        """It is about to begin. tensor: the argument that names its data. What this raises, the call raises."""

    def ended(self, op: Op) -> None:
        """It was waited for: by the call itself, or by the work's wait()."""


class Recorder:
    """The traces of this process."""

    def __init__(self, log: Log):
        self._log = log
        self._counts: Counter[str] = Counter()  # collectives so far, by group
        self._groups: dict[str, tuple[int, ...]] = {}  # the members of a group, by its key
        self._worlds = 0  # default groups so far: names of groups begin anew with each
        self._foreign = False  # the reader made a world of other ranks than the run's: nothing to compare
        self._pending: weakref.WeakKeyDictionary[dist.Work, Op] = weakref.WeakKeyDictionary()
        self._main = threading.get_ident()
        self._order = threading.Lock()  # threads call too: a collective's number and its place in the log must agree
        # By thread: the call in progress, and the line that waits for it. What a call calls itself is not recorded.
        self._active: dict[int, tuple[Op, Frame | None]] = {}
        self.failed: tuple[BaseException, Op] | None = None  # the last exception that came out of a call
        self.traffics: list[Traffic] = []
        self.messages = 0  # sends and receives begun so far
        self.watchers: list[Watcher] = []

    @property
    def current(self) -> tuple[Op, Frame | None] | None:
        """The call in progress: the main thread's, or else another's."""
        return self._active.get(self._main) or next(iter(list(self._active.values())), None)

    def meet(self, world: int, function: Callable, *args: Any, **kwargs: Any) -> None:
        """init_process_group: wait, known to wait, until all ranks of the world have come; then begin anew.

        It goes into the log when it has succeeded: a rank whose own call failed never came, as the others see it.
        """
        op = Op("init_process_group", tuple(range(world)), "rendezvous", self._worlds, None, None, _caller())
        self._in(op, None, function, args, kwargs)
        self._log.add(op)
        self._begin_world()

    def meet_elsewhere(self, function: Callable, *args: Any, **kwargs: Any) -> None:
        """init_process_group of another world than the run's: its ranks are not ours, so no collective is logged."""
        function(*args, **kwargs)
        self._foreign = True
        self._begin_world()

    def _begin_world(self) -> None:
        self._worlds += 1
        self._groups.clear()
        flight.begin()

    def wrap(self, name: str, call: Call, function: Callable) -> Callable:
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() in self._active or not dist.is_initialized():
                return function(*args, **kwargs)
            arguments = dict(zip(names, args, strict=False)) | kwargs
            if not self._records(name, arguments):
                return function(*args, **kwargs)
            with self._order:
                op = self._note(name, call, arguments)
            if self.traffics:
                size = calls.nbytes(arguments.get(call.tensor))
                for traffic in self.traffics:
                    traffic.add(op, size, call.sends)
            watchers = tuple(self.watchers)
            for watcher in watchers:
                watcher.begins(op, arguments.get(call.tensor))
            work = self._in(op, None, function, args, kwargs)
            if isinstance(work, dist.Work):
                self._pending[work] = op
                if not op.point_to_point:
                    _span_when_done(work, op)
            else:
                for watcher in watchers:
                    watcher.ended(op)
            return work

        return recorded

    def _records(self, name: str, args: dict[str, Any]) -> bool:
        """Whether this call is one that all ranks of a group of the run make, as far as its arguments tell."""
        if self._foreign or args.get("use_local_synchronization"):
            return False
        group = args.get("group")
        # A rank outside the group: torch warns and ignores it. Something that is no group: torch says so.
        return name == "new_group" or group is None or isinstance(group, dist.ProcessGroup)

    def _note(self, name: str, call: Call, args: dict[str, Any]) -> Op:
        group = (None if name == "new_group" else args.get("group")) or dist.group.WORLD
        # torch counts the groups of a world, on members and others alike: the name is the same on every rank.
        key = f"{self._worlds}/{group.group_name}"
        if key not in self._groups:
            self._groups[key] = tuple(dist.get_process_group_ranks(group))
        index = -1 if call.peer is not None else self._counts[key]
        op = calls.read(name, call, args, self._groups[key], key, index, _caller(3))
        if op.point_to_point:
            self.messages += 1
        else:
            self._counts[key] += 1
            self._log.add(op)
        return op

    def pending(self, work: dist.Work) -> Op | None:
        """The call whose work this is, if it is one of this process."""
        return self._pending.get(work)

    def wrap_wait(self, wait: Callable) -> Callable:
        @functools.wraps(wait)
        def recorded(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            op = None if threading.get_ident() in self._active else self._pending.get(work)
            if op is None:
                return wait(work, *args, **kwargs)
            done = self._in(op, _caller(), wait, (work, *args), kwargs)
            for watcher in tuple(self.watchers):
                watcher.ended(op)
            return done

        return recorded

    def _in(self, op: Op, waits: Frame | None, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call the function, known to be in `op` as long as it lasts."""
        thread = threading.get_ident()
        self._active[thread] = (op, waits)
        start = time.monotonic_ns()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            self.failed = (error, op)
            if isinstance(error, _REFUSALS) and waits is None and op.key in self._groups and not op.point_to_point:
                with self._order:
                    self._counts[op.key] -= 1
                    self._log.withdraw(op)
            raise
        finally:
            del self._active[thread]
            lane = "main" if thread == self._main else "network"  # a thread communicates beside the program
            spans.record(op.name, start, time.monotonic_ns(), "comm", lane)


def _span_when_done(work: dist.Work, op: Op) -> None:
    """A span on the network lane from the call of an asynchronous collective to its end."""

    def ended(_: Any) -> None:
        spans.record(op.name, op.start_ns, time.monotonic_ns(), "comm", "network")

    try:
        work.get_future().then(ended)
    except (RuntimeError, NotImplementedError):
        return  # this backend's work has no future: its wait alone is on the timeline


def _caller(depth: int = 2) -> Frame:
    """The reader's own line that made this call, however deep in a library the call is. depth: frames to skip."""
    return own_line(sys._getframe(depth)) or Frame("<unknown>", 0, "?")


def own_line(frame: FrameType | None) -> Frame | None:
    """The innermost line of the reader's own code in a running stack; failing that, of course_lib."""
    nearest = None
    while frame is not None:
        owner = whose[frame.f_code.co_filename]
        if owner == "own":
            break
        if owner == "course" and nearest is None:
            nearest = frame
        frame = frame.f_back
    found = frame or nearest
    return None if found is None else Frame(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)


_recorder: Recorder | None = None


def install(log: int) -> Recorder:
    """Wrap torch.distributed's functions in this process. Call once, before the reader's function is unpickled.

    log: a file descriptor that collectives are written to.
    """
    global _recorder
    _recorder = Recorder(Log(log))
    for name, call in CALLS.items():
        original = getattr(c10d, name, None)
        if original is None:
            continue  # not in this version of torch
        wrapped = _recorder.wrap(name, call, original)
        setattr(c10d, name, wrapped)
        setattr(dist, name, wrapped)
    work = torch._C._distributed_c10d.Work
    work.wait = _recorder.wrap_wait(work.wait)
    return _recorder


def installed() -> Recorder:
    """The recorder of this process. Raises RuntimeError outside of a rank."""
    if _recorder is None:
        raise RuntimeError("calls are recorded inside a rank: do this in the function that spmd.run runs")
    return _recorder


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count what this rank sends, receives and calls: `with spmd.traffic() as moved: ...`, then `moved.sent`.

    Point-to-point bytes in `sent` and `received`, calls of collectives by name in `calls` (outermost only: what a
    collective does inside is not counted) and the bytes of this rank's tensor in each in `collective_bytes`.
    Raises RuntimeError outside of a rank.
    """
    recorder, counted = installed(), Traffic()
    recorder.traffics.append(counted)
    try:
        yield counted
    finally:
        recorder.traffics = [other for other in recorder.traffics if other is not counted]
