"""Leaving in order: a signal only leaves a note, which the loop reads between two steps.

SIGTERM is what schedulers and torchrun send before they kill (torchrun waits 30 s); Ctrl-C is SIGINT. A second Ctrl-C
leaves at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Request:
    """came: the signal that asked this process to leave; 0 until one does."""

    came: int = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        self.came = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def status(self) -> int:
        """The exit status that a shell would name for it; that of SIGTERM where another rank was asked and not this."""
        return 128 + (self.came or signal.SIGTERM)


@contextmanager
def asked_to_leave() -> Iterator[Request]:
    """A Request that notes SIGTERM and SIGINT while the context lasts. Only in a process's main thread."""
    request = Request()
    before = {number: signal.signal(number, request.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
