"""The log of a rank's collectives: one entry each, appended before the call, so that it outlives the process."""

from __future__ import annotations

import marshal
import os

from .report import Frame, Op

_LENGTH = 4  # bytes of the length before each entry
_WITHDRAWN = b"withdrawn "  # an entry that takes the last one of the group it names back


class Log:
    """Appends to the log. `fd`: a file descriptor opened for appending."""

    def __init__(self, fd: int):
        self._fd = fd

    def add(self, op: Op) -> None:
        self._write(encode(op))

    def withdraw(self, op: Op) -> None:
        """The call was refused before anything happened: as if it had not been made."""
        self._write(_WITHDRAWN + op.key.encode())

    def _write(self, entry: bytes) -> None:
        os.write(self._fd, len(entry).to_bytes(_LENGTH, "little") + entry)


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
    ops: list[Op] = []
    at = 0
    while at + _LENGTH <= len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "little")
        entry, at = data[at + _LENGTH : end], end
        if end > len(data):
            break
        if not entry.startswith(_WITHDRAWN):
            ops.append(decode(entry))
            continue
        key = entry.removeprefix(_WITHDRAWN).decode()
        ops.pop(max(i for i, op in enumerate(ops) if op.key == key))
    return ops
