"""What passed between the ranks: every message an answer sends or asks for, written down as it happens.

The tape is a file per rank and case. It survives a hang and a SIGKILL, and the kernel reads it: who sent what to whom,
from which line, into which memory, and what came in. Judging is left to others (meetings.py, signatures/).
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from course_lib.spmd.record import installed
from course_lib.spmd.report import Op

MOST_MESSAGES = 2_000  # of one rank in one case: an endless loop must not fill the disk
MOST_BYTES = 1 << 16  # of one message whose values are kept


@dataclass
class Message:
    """One send or receive of a rank, as the kernel reads it.

    peer: the other rank, counted in the group of the case; None for "any". blocking: by `send` or `recv`. memory: first
    byte and the one after the last. begun, ended: places in the order of events on this rank; ended is None for a
    message that was never waited for. values: flat, as sent or as received; None where they are unknown or too many.
    changed: a send whose tensor had other values when it was waited for.
    """

    kind: Literal["send", "recv"]
    peer: int | None
    line: int
    count: int
    memory: tuple[int, int]
    blocking: bool
    begun: int
    ended: int | None = None
    values: Tensor | None = None
    changed: bool = False

    @property
    def nbytes(self) -> int:
        return self.memory[1] - self.memory[0]


class Outside(ValueError):
    """A message to or from a rank that is not in the group."""


class Tape:
    """Writes down the messages of this rank, of which the recorder of spmd tells it. members: world ranks of the case's
    group. file: the answer's source.
    """

    def __init__(self, path: Path, members: list[int], file: str) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._members, self._file = members, file
        self._open: dict[int, tuple[int, Op, Tensor]] = {}  # by id of the call: its number, itself, its tensor
        self._begun = 0

    def begins(self, op: Op, tensor: Tensor) -> None:
        """Note a message that is about to begin; collectives are not on this tape. Raises Outside."""
        if not op.point_to_point or not isinstance(tensor, Tensor):
            return  # torch will say so, or it is a message of objects
        kind = "send" if "send" in op.name else "recv"
        if op.peer is not None and op.peer not in self._members:
            way = "to" if kind == "send" else "from"
            raise Outside(f"a message {way} rank {op.peer}, which is not in the group of ranks {self._members}")
        number, self._begun = self._begun, self._begun + 1
        self._open[id(op)] = (number, op, tensor)
        start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        within = None if op.peer is None else self._members.index(op.peer)
        blocking = op.name in ("send", "recv")
        about = (kind, within, _line(self._file), tensor.numel(), start, start + size, blocking)
        self._write(number, "begin", about, str(tensor.dtype)[6:], *(_bytes(tensor) if kind == "send" else (0, b"")))

    def ended(self, op: Op) -> None:
        if id(op) in self._open:
            number, _, tensor = self._open.pop(id(op))
            self._write(number, "end", *_bytes(tensor))

    def _write(self, number: int, *event: Any) -> None:
        if number < MOST_MESSAGES:
            os.write(self._out, marshal.dumps((number, *event)))

    def close(self) -> None:
        os.close(self._out)


def _bytes(tensor: Tensor) -> tuple[int, bytes]:
    """(checksum, the bytes of the values unless they are many)"""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return zlib.crc32(data), data if len(data) <= MOST_BYTES else b""


def _line(file: str) -> int:
    """The line of `file` that is being run; 0 if it is not on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


@contextmanager
def record(path: Path, members: list[int], file: str) -> Iterator[None]:
    """Write down what this rank sends and receives meanwhile."""
    tape, recorder = Tape(path, members, file), installed()
    recorder.watchers.append(tape)
    try:
        yield
    finally:
        recorder.watchers.remove(tape)
        tape.close()


def read(path: Path) -> list[Message]:
    """The messages of a tape, in the order they began. A last event cut short by a rank's death is left out."""
    messages: list[Message] = []
    sums: dict[int, int] = {}
    dtypes: dict[int, str] = {}
    if not path.exists():
        return messages
    with open(path, "rb") as file:
        event = 0
        while True:
            try:
                number, what, *facts = marshal.load(file)
            except (EOFError, ValueError, TypeError):
                return messages
            if what == "begin":
                (kind, peer, line, count, start, end, blocking), dtypes[number], sums[number], data = facts
                messages.append(Message(kind, peer, line, count, (start, end), blocking, event))
            else:
                checksum, data = facts
                messages[number].ended = event
                messages[number].changed = messages[number].kind == "send" and checksum != sums[number]
            if what == "begin" and kind == "send" or what == "end" and messages[number].kind == "recv":
                messages[number].values = _values(data, dtypes[number], messages[number].count)
            event += 1


def _values(data: bytes, dtype: str, count: int) -> Tensor | None:
    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)) if data else torch.empty(0)
    return values if len(values) == count else None
