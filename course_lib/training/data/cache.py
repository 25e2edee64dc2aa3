"""Files that are slow to make, kept for the next time: made once, by one process, and whole or not there at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Loaded = TypeVar("Loaded")


def default_folder() -> Path:
    """Where caches belong by the XDG convention: $XDG_CACHE_HOME or ~/.cache, a folder of our own in it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributed-training-workbook"


def content_key(*parts: str | int | Iterable[str]) -> str:
    """Names what a file was made from. Lengths are hashed as well, so ["ab", "c"] and ["a", "bc"] differ."""
    digest = hashlib.sha256()
    for part in parts:
        texts = [str(part)] if isinstance(part, str | int) else part
        for text in texts:
            raw = text.encode()
            digest.update(f"{len(raw)} ".encode())
            digest.update(raw)
        digest.update(b"|")
    return digest.hexdigest()[:24]


def cached(path: Path, make: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """load(path), after make(path aside) where there is none yet or it cannot be loaded.

    Of several processes that ask at once, one makes it and the others wait; the lock falls with the process that holds
    it, so none waits for a dead one. The file is made under another name and renamed when it is complete: whoever finds
    it finds all of it. Where no lock can be had (some network file systems), each process makes its own and the last
    to rename wins, with the same content.
    """
    with contextlib.suppress(Exception):
        return load(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(path.name + ".lock"), "w")  # noqa: SIM115
    except OSError as error:
        folder, why = path.parent, error.strerror
        raise OSError(
            f"Nothing can be kept in {folder} ({why}): let XDG_CACHE_HOME name a folder that can be written."
        ) from error
    with lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(Exception):
            return load(path)  # another process has made it while we waited
        aside = path.with_name(f"{path.stem}.{os.getpid()}.aside{path.suffix}")
        try:
            make(aside)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    return load(path)
