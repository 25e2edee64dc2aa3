"""Where a rank is, written down twenty times a second, so that it is known even when the rank is killed.

The blackboard is a small file shared with the launcher: the line the rank's main thread is at, the communication call
it is in, and how many messages it has begun. A rank that dies by SIGKILL can say nothing; its blackboard still tells
where it was a moment before.
"""

from __future__ import annotations

import copy
import itertools
import marshal
import mmap
import os
import sys
import threading
import time

from . import flight
from .oplog import decode, encode
from .record import Recorder, own_line
from .report import Frame, Op

_BYTES = 8192
PERIOD_S = 0.05
_BEATS_TO_FLIGHT = 10  # twice a second: reading torch's recorder takes a few tenths of a millisecond
_COUNT = 4  # bytes of the length that leads the text


class Beacon:
    """Publishes this process's place. `start()` once; `now()` to publish it at once. path: without the ending."""

    def __init__(self, path: str, recorder: Recorder):
        self._flights = path + ".flight"
        with open(path + ".board", "r+b") as file:
            file.write(bytes(_BYTES))  # on a full disk this is an error now, not a SIGBUS later
            file.flush()
            self._board = mmap.mmap(file.fileno(), _BYTES)
        self._recorder = recorder
        self._main = threading.get_ident()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="beacon").start()
        # The two ways a process ends itself between two beats, without a word.
        sys.addaudithook(self._audit)
        leave = os._exit

        def leave_seen(status: int) -> None:
            self.now()
            leave(status)

        os._exit = leave_seen

    def _audit(self, event: str, args: tuple) -> None:
        if event == "os.kill" and args[0] == os.getpid():
            self.now()

    def _run(self) -> None:
        for beat in itertools.count():
            self.now()
            if beat % _BEATS_TO_FLIGHT == 0:
                flight.write(self._flights)
            time.sleep(PERIOD_S)

    def now(self) -> None:
        frame = own_line(sys._current_frames().get(self._main))
        op = None
        current = self._recorder.current
        if current is not None:
            op, waits = current
            if waits is not None:
                op = copy.copy(op)
                op.waits = waits
        place = None if frame is None else (frame.file, frame.line, frame.function)
        text = marshal.dumps((place, None if op is None else encode(op), self._recorder.messages))
        if len(text) <= _BYTES - _COUNT:
            self._board[:_COUNT] = bytes(_COUNT)  # a reader never sees half a text
            self._board[_COUNT : _COUNT + len(text)] = text
            self._board[:_COUNT] = len(text).to_bytes(_COUNT, "little")


def read(path: str) -> tuple[Frame | None, Op | None, int]:
    """The line a rank was last seen at, the communication call it was in, and the messages it had begun."""
    with open(path, "rb") as file:
        board = file.read(_BYTES)
    size = int.from_bytes(board[:_COUNT], "little")
    if not size:
        return None, None, 0
    place, op, messages = marshal.loads(board[_COUNT : _COUNT + size])
    return place and Frame(*place), op and decode(op), messages
