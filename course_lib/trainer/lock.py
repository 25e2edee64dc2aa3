"""One trainer in a folder at a time.

Two would append to one log and take each other's checkpoints for remains of a kill. The lock is the system's (flock),
not the file: it is gone when its process is, however that ended, so a killed run can be resumed at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_lib.trainer.ends import Refused
from course_lib.trainer.log import say

LOCK_FILE = "lock"


@contextmanager
def sole_trainer(folder: Path) -> Iterator[None]:
    """Holds the folder, which is made if need be; one that was made and is still empty at the end goes again.

    Raises Refused where another process holds it, on this machine or, in a folder that machines share, on another; and
    where the folder cannot be made or written. A file system that has no locks is told of, and used.
    """
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = locked(folder)
    except OSError as error:
        raise Refused(
            f"--folder {folder} cannot be made or written ({error.strerror}): give another --folder."
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / LOCK_FILE).unlink()  # while it is ours: who opened it before looks whether it is still there
            for path in new:
                path.rmdir()
        os.close(handle)


def locked(folder: Path) -> int:
    """The descriptor of the lock file, locked. Raises Refused where another process has it."""
    path = folder / LOCK_FILE
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise Refused(
                f"Another trainer is at work in {folder} ({holder}): let it end or stop it, or give another --folder."
            ) from None
        except OSError as error:
            say(f"{folder} cannot be locked ({error.strerror}): see to it that no other trainer works in it.")
            return handle
        if is_at(handle, path):
            with contextlib.suppress(OSError):  # who holds it is only for the sentence above
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return handle
        os.close(handle)  # whoever had it has just left and removed it


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
