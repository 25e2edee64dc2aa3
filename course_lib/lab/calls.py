"""The collectives an answer calls, in order, with the moment each was waited for.

The recorder of spmd tells of them, so it does not matter how the answer came by `all_reduce`, nor who waits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from course_lib.spmd import record as recording
from course_lib.spmd.calls import nbytes
from course_lib.spmd.report import Op


@dataclass
class Collective:
    """One call of one rank. line: of the answer's file, 0 where it is not on the stack. memory: where the tensor's
    first byte lies. begun, ended: places in the order of events on this rank; ended is None for a call that was never
    waited for. reduce: "SUM", "MAX", ..., None where nothing is reduced. changed: somebody else wrote into its tensor
    meanwhile, for certain. by_future: somebody holds its future, so that it may be waited for unseen.
    """

    name: str
    nbytes: int
    dtype: str
    line: int
    memory: int
    begun: int
    reduce: str | None = None
    ended: int | None = None
    changed: bool = False
    by_future: bool = False


class Log:
    """Collectives as they happen. `now` counts events; `tick()` adds one of the caller's own and returns its place."""

    def __init__(self, file: str) -> None:
        self.collectives: list[Collective] = []
        self.now = 0
        self._file = file
        # By id of the call, which is kept so that ids stay apart; with its tensor and the most writes it may have then.
        self._open: dict[int, tuple[Op, Collective, Any, int]] = {}

    def tick(self) -> int:
        self.now += 1
        return self.now

    def begins(self, op: Op, tensor: Any) -> None:
        if op.point_to_point:
            return
        first = tensor[0] if isinstance(tensor, list | tuple) and tensor else tensor
        memory = first.data_ptr() if isinstance(first, Tensor) else 0
        call = Collective(op.name, nbytes(tensor), op.dtype or "", line_of(self._file), memory, self.tick(), op.reduce)
        self.collectives.append(call)
        self._open[id(op)] = (op, call, first, _writes(first) + own_writes(op))

    def ended(self, op: Op) -> None:
        if id(op) in self._open:
            _, call, tensor, most = self._open.pop(id(op))
            call.ended = self.tick()
            call.changed = _writes(tensor) > most

    def future_taken(self, op: Op) -> None:
        if id(op) in self._open:
            self._open[id(op)][1].by_future = True


def own_writes(op: Op) -> int:
    """The most writes that torch counts of the collective itself: gloo divides and copies with torch's functions."""
    return (op.reduce == "AVG") + op.name.startswith("reduce_scatter")


def _writes(tensor: Any) -> int:
    """How often a tensor was written to, as far as that is certain; 0 where it is not.

    torch counts the writes to a memory as a whole. Of a tensor that is a part of it, nobody can tell which part they
    went to.
    """
    if not isinstance(tensor, Tensor) or tensor.is_inference():
        return 0
    return tensor._version if tensor.untyped_storage().nbytes() == nbytes(tensor) else 0


def line_of(file: str) -> int:
    """The line of `file` that is being run; 0 if it is not on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


@contextmanager
def record(file: str) -> Iterator[Log]:
    """Write down the collectives that this rank calls meanwhile; may be nested. file: the answer's source."""
    log, recorder = Log(file), recording.installed()
    work = torch._C._distributed_c10d.Work
    get_future = work.get_future

    def noted(self: Any) -> Any:
        op, caller = recorder.pending(self), sys._getframe(1)
        while caller.f_code is noted.__code__:  # another record around this one
            caller = caller.f_back
        if op is not None and caller.f_code.co_filename != recording.__file__:
            log.future_taken(op)
        return get_future(self)

    recorder.watchers.append(log)
    work.get_future = noted
    try:
        yield log
    finally:
        work.get_future = get_future
        recorder.watchers.remove(log)
