"""A watch on an answer while it runs: does it call what it should write?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from course_lib.lab.exercise import Task

COLLECTIVES = os.path.join("course_lib", "collectives") + os.sep
BUILDING_BLOCKS = COLLECTIVES + "p2p.py"  # given to the learner


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
