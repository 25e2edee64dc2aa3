"""Record what a rank asks of torch.distributed: which call, on which group, with which tensor, from which line.

`install()` wraps the public functions of torch.distributed in this process (a rank's, never the notebook's).
Every call then leaves three traces:
- the call in progress, in memory; `beacon.py` publishes it, so that it can be read when the rank hangs or dies;
- collectives, one line each, in a log that outlives the process, so that the ranks can be compared afterwards;
- a span on the timeline, and bytes and calls in `traffic()`.
The cost is about ten microseconds a call. Collectives that C++ code issues itself (DDP's reducer, functional
collectives) do not pass here; their waits show in the stack instead.
"""

from __future__ import annotations

import functools
import inspect
import marshal
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..timeline import spans
from .report import Frame, Op, whose


@dataclass(frozen=True)
class _Call:
    """How to read the arguments of one function of torch.distributed."""

    tensor: str | None = None  # the argument whose shape and dtype must agree (a tensor or a list of tensors)
    root: str | None = None  # the argument that names the root
    peer: str | None = None  # the argument that names the other rank of a point-to-point call
    splits: bool = False
    sends: bool = False


_CALLS: dict[str, _Call] = {
    "all_reduce": _Call("tensor"),
    "broadcast": _Call("tensor", root="src"),
    "reduce": _Call("tensor", root="dst"),
    "all_gather": _Call("tensor"),
    "all_gather_into_tensor": _Call("input_tensor"),
    "all_gather_single": _Call("input_tensor"),
    "gather": _Call("tensor", root="dst"),
    "scatter": _Call("tensor", root="src"),
    "reduce_scatter": _Call("output"),
    "reduce_scatter_tensor": _Call("output"),
    "reduce_scatter_single": _Call("output"),
    "all_to_all": _Call("input_tensor_list"),
    "all_to_all_single": _Call("input", splits=True),
    "barrier": _Call(),
    "monitored_barrier": _Call(),
    "broadcast_object_list": _Call(root="src"),
    "all_gather_object": _Call(),
    "gather_object": _Call(root="dst"),
    "scatter_object_list": _Call(root="src"),
    "new_group": _Call(),
    "send": _Call("tensor", peer="dst", sends=True),
    "recv": _Call("tensor", peer="src"),
    "isend": _Call("tensor", peer="dst", sends=True),
    "irecv": _Call("tensor", peer="src"),
    "send_object_list": _Call(peer="dst", sends=True),
    "recv_object_list": _Call(peer="src"),
}


_LENGTH = 4  # bytes of the length before each entry of the log
# The usual reductions by identity: str() of one takes longer than all else that is noted of a call.
_REDUCTIONS = {id(op): name for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT") if (op := getattr(dist.ReduceOp, name))}


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


class Recorder:
    """The traces of this process."""

    def __init__(self, log: int):
        self._log = log
        self._counts: Counter[str] = Counter()  # collectives so far, by group
        self._groups: dict[int, tuple[tuple[int, ...], str]] = {}  # by id: (global ranks, key)
        self._worlds = 0  # default groups so far: names of groups begin anew with each
        self._pending: weakref.WeakKeyDictionary[dist.Work, Op] = weakref.WeakKeyDictionary()
        self._main = threading.get_ident()
        # By thread: the call in progress, and the line that waits for it. What a call calls itself is not recorded.
        self._active: dict[int, tuple[Op, Frame | None]] = {}
        self.failed: tuple[BaseException, Op] | None = None  # the last exception that came out of a call
        self.traffics: list[Traffic] = []
        self.messages = 0  # sends and receives begun so far

    @property
    def current(self) -> tuple[Op, Frame | None] | None:
        """The call in progress: the main thread's, or else another's."""
        return self._active.get(self._main) or next(iter(list(self._active.values())), None)

    def _group(self, group: dist.ProcessGroup | None) -> tuple[tuple[int, ...], str]:
        group = group or dist.group.WORLD
        known = self._groups.get(id(group))
        if known is None:
            # torch counts the groups of a world, on members and others alike: the name is the same on every rank.
            key = f"{self._worlds}/{group.group_name}"
            known = self._groups[id(group)] = (tuple(dist.get_process_group_ranks(group)), key)
        return known

    def _read(self, name: str, call: _Call, args: dict[str, Any], frame: Frame) -> Op:
        members, key = self._group(None if name == "new_group" else args.get("group"))
        tensor = args.get(call.tensor) if call.tensor else None
        if isinstance(tensor, list | tuple) and tensor:
            tensor = tensor[0]
        shape = dtype = splits = None
        if isinstance(tensor, torch.Tensor):
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if call.splits:
            splits = (_sizes(args.get("input_split_sizes")), _sizes(args.get("output_split_sizes")))
        elif name == "new_group":
            shape, dtype = _sizes(args.get("ranks")), "ranks"  # every rank must ask for the same members
        reduce = _reduction(args.get("op")) if "reduce" in name else None
        index = -1
        if call.peer is None:
            index = self._counts[key]
            self._counts[key] += 1
        root, peer = _global(args, call.root, members), _global(args, call.peer, members)
        return Op(name, members, key, index, shape, dtype, frame, root, peer, reduce, splits, time.monotonic_ns())

    def meet(self, world: int, function: Callable, *args: Any, **kwargs: Any) -> None:
        """init_process_group: wait, known to wait, until all ranks of the world have come; then begin anew.

        It goes into the log when it has succeeded: a rank whose own call failed never came, as the others see it.
        """
        op = Op("init_process_group", tuple(range(world)), "rendezvous", self._worlds, None, None, _caller())
        self._in(op, None, function, args, kwargs)
        self._write(encode(op))
        self._worlds += 1
        self._groups.clear()

    def _write(self, entry: bytes) -> None:
        os.write(self._log, len(entry).to_bytes(_LENGTH, "little") + entry)

    def wrap(self, name: str, call: _Call, function: Callable) -> Callable:
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() in self._active or not dist.is_initialized():
                return function(*args, **kwargs)
            arguments = dict(zip(names, args, strict=False)) | kwargs
            if arguments.get("group") is dist.GroupMember.NON_GROUP_MEMBER:
                return function(*args, **kwargs)  # torch warns and ignores it
            op = self._read(name, call, arguments, _caller())
            if self.traffics:
                size = _bytes(arguments.get(call.tensor))
                for traffic in self.traffics:
                    traffic.add(op, size, call.sends)
            if op.point_to_point:
                self.messages += 1
            else:
                self._write(encode(op))
            work = self._in(op, None, function, args, kwargs)
            if isinstance(work, dist.Work):
                self._pending[work] = op
                if not op.point_to_point:
                    _span_when_done(work, op)
            return work

        return recorded

    def wrap_wait(self, wait: Callable) -> Callable:
        @functools.wraps(wait)
        def recorded(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            op = None if threading.get_ident() in self._active else self._pending.get(work)
            if op is None:
                return wait(work, *args, **kwargs)
            return self._in(op, _caller(), wait, (work, *args), kwargs)

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


def _reduction(op: Any) -> str:
    if op is None:
        return "SUM"
    known = _REDUCTIONS.get(id(op))
    return known or str(op).rsplit(".", 1)[-1]


def _sizes(values: Any) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


def _bytes(tensor: Any) -> int:
    if isinstance(tensor, torch.Tensor):
        return tensor.numel() * tensor.element_size()
    return sum(map(_bytes, tensor)) if isinstance(tensor, list | tuple) else 0


def _global(args: dict[str, Any], name: str | None, members: tuple[int, ...]) -> int | None:
    """The global rank an argument means. torch takes it as `src` (global) or as `group_src` (within the group)."""
    if name is None:
        return None
    if args.get(name) is not None:
        return int(args[name])
    within = args.get(f"group_{name}")
    return members[within] if within is not None and 0 <= within < len(members) else None


def _caller() -> Frame:
    """The reader's own line that made this call, however deep in a library the call is."""
    return own_line(sys._getframe(2)) or Frame("<unknown>", 0, "?")


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


def _list(frame: Frame | None) -> list | None:
    return None if frame is None else [frame.file, frame.line, frame.function]


def encode(op: Op) -> bytes:
    """An Op as bytes. (marshal: both sides are the same Python, and it takes a fifth of JSON's time.)"""
    values = (
        op.name, op.group, op.key, op.index, op.shape, op.dtype, _list(op.frame), op.root, op.peer, op.reduce,
        op.splits, op.start_ns, _list(op.waits),
    )  # fmt: skip
    return marshal.dumps(values)


def decode(data: bytes) -> Op:
    """The reverse of encode."""
    *before, frame, root, peer, reduce, splits, start, waits = marshal.loads(data)
    return Op(*before, Frame(*frame), root, peer, reduce, splits, start, waits and Frame(*waits))


def read_log(path: str) -> list[Op]:
    """The collectives a rank called, in order. A last entry cut short by the rank's death is left out."""
    with open(path, "rb") as file:
        data = file.read()
    ops, at = [], 0
    while at + _LENGTH <= len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "little")
        if end > len(data):
            break
        ops.append(decode(data[at + _LENGTH : end]))
        at = end
    return ops


_recorder: Recorder | None = None


def install(log: int) -> Recorder:
    """Wrap torch.distributed's functions in this process. Call once, before the reader's function is unpickled.

    log: a file descriptor that collectives are written to.
    """
    global _recorder
    _recorder = Recorder(log)
    for name, call in _CALLS.items():
        original = getattr(c10d, name, None)
        if original is None:
            continue  # not in this version of torch
        wrapped = _recorder.wrap(name, call, original)
        setattr(c10d, name, wrapped)
        setattr(dist, name, wrapped)
    work = torch._C._distributed_c10d.Work
    work.wait = _recorder.wrap_wait(work.wait)
    return _recorder


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count what this rank sends, receives and calls: `with spmd.traffic() as moved: ...`, then `moved.sent`.

    Point-to-point bytes in `sent` and `received`, calls of collectives by name in `calls` (outermost only: what a
    collective does inside is not counted) and the bytes of this rank's tensor in each in `collective_bytes`.
    Raises RuntimeError outside of a rank.
    """
    if _recorder is None:
        raise RuntimeError("spmd.traffic() counts inside a rank: call it in the function that spmd.run runs")
    counted = Traffic()
    _recorder.traffics.append(counted)
    try:
        yield counted
    finally:
        _recorder.traffics.remove(counted)
