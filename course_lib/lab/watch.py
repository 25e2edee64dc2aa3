"""A watch on an answer while it runs: what it sends too carelessly, and whether it calls what it should write."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from course_lib.lab.exercise import Task

COLLECTIVES = os.path.join("course_lib", "collectives") + os.sep
BUILDING_BLOCKS = COLLECTIVES + "p2p.py"  # given to the learner


class Sends:
    """Every isend, with the values it was given."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers = itertools.count()
        self._open: weakref.WeakKeyDictionary[Any, tuple[int, torch.Tensor, torch.Tensor]] = weakref.WeakKeyDictionary()
        self._lines: dict[int, int] = {}  # number of the send -> its line, until it is waited for
        self._touched: int | None = None

    def started(self, work: Any, tensor: torch.Tensor) -> None:
        number = next(self._numbers)
        self._lines[number] = _line(self._file)
        self._open[work] = (number, tensor, tensor.detach().clone())

    def waited(self, work: Any) -> None:
        if work not in self._open:
            return
        number, tensor, given = self._open.pop(work)
        line = self._lines.pop(number)
        if self._touched is None and not torch.equal(tensor.nan_to_num(), given.nan_to_num()):
            self._touched = line

    def early(self) -> tuple[int, str] | None:
        if self._touched is not None:
            return self._touched, "touched"
        return (min(self._lines.values()), "never waited") if self._lines else None


def _line(file: str) -> int:
    """The line of `file` that is being run; 0 if it is not on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


@contextmanager
def watch_sends(file: str) -> Iterator[Sends]:
    """Notice a buffer that is changed while it is being sent. On a small tensor the network is so quick that the values
    come out right all the same; on a large one they would not.
    """
    sends, original, work_type = Sends(file), dist.isend, torch._C._distributed_c10d.Work
    original_wait = work_type.wait

    def isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = original(tensor, *args, **kwargs)
        if work is not None:
            sends.started(work, tensor)
        return work

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        sends.waited(work)
        return original_wait(work, *args, **kwargs)

    # Both modules: P2POp compares the function it is given with the one in distributed_c10d.
    dist.isend = c10d.isend = isend
    work_type.wait = wait
    try:
        yield sends
    finally:
        dist.isend = c10d.isend = original
        work_type.wait = original_wait


@contextmanager
def watch_library(answer: Callable, task: Task) -> Iterator[list[str]]:
    """The names of the library's own collectives that are called from outside of them."""
    called: list[str] = []
    reference, own = getattr(task.reference, "__code__", None), getattr(answer, "__code__", None)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code is own:
            return
        ours = code is reference or (COLLECTIVES in code.co_filename and BUILDING_BLOCKS not in code.co_filename)
        outside = frame.f_back is None or COLLECTIVES not in frame.f_back.f_code.co_filename
        if ours and outside and code.co_name not in task.may_call and not code.co_name.startswith("<"):
            called.append(code.co_name)

    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
