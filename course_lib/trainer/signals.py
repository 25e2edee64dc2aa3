"""Leaving in order: a signal, or the end of torchrun, only leaves a note, which the loop reads between two steps.

SIGTERM is what schedulers and torchrun send before they kill (torchrun waits 30 s), SIGHUP is a closed terminal, Ctrl-C
is SIGINT. A second Ctrl-C leaves at once. A signal that is ignored stays so: nohup ignores SIGHUP.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from course_lib.trainer.log import say

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK_EVERY = 0.1  # seconds between looks whether torchrun is still there
TIME_TO_LEAVE = 30.0  # seconds, as torchrun gives after SIGTERM


class Request:
    """came: the signal that asked this process to leave; 0 until one does. alone: the launcher has ended."""

    came: int = 0
    alone: bool = False

    def note(self, number: int, frame: FrameType | None = None) -> None:
        self.came = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def reason(self) -> str:
        return "torchrun is gone" if self.alone else "Asked to leave"

    @property
    def status(self) -> int:
        """The exit status that a shell would name for it; that of SIGTERM where another rank was asked and not this."""
        return 128 + (self.came or signal.SIGTERM)


@contextmanager
def asked_to_leave(request: Request) -> Iterator[None]:
    """The request notes the SIGNALS while the context lasts. Only in a process's main thread."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, request.note)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


@contextmanager
def launcher_watched(request: Request) -> Iterator[None]:
    """While the context lasts: if torchrun ends without a word (SIGKILL), that is as if it had sent SIGTERM.

    And as after its SIGTERM, a process that has not left in TIME_TO_LEAVE is ended: it may wait for a rank that is
    stuck, and nobody else would end it. A process that torchrun did not start may outlive its parent.
    """
    launcher, over = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == launcher:
            if over.wait(LOOK_EVERY):
                return
        request.alone = True
        request.note(signal.SIGTERM)
        if not over.wait(TIME_TO_LEAVE):
            say(f"torchrun is gone, and no step has ended in {TIME_TO_LEAVE:g} s since: left without saving.")
            os._exit(request.status)

    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=watch, name="launcher", daemon=True).start()
    try:
        yield
    finally:
        over.set()
