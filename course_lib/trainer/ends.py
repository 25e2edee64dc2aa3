"""How a run ends before its end: the errors that are told in one sentence, and what each means to who started it."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from course_lib.training.checkpoint_files import latest

DONE, FAILED, REFUSED = 0, 1, 2


class Refused(Exception):
    """What was asked for cannot be done; its text is one sentence for the person who asked. All ranks raise it."""


class Failed(Exception):
    """The run cannot go on; its text says when and why, and what would help. All ranks raise it."""


class LostPeer(Failed):
    """Another rank is gone. Each that is left says so for itself: the one that speaks for all may be the lost one."""


def in_words(error: Exception) -> str:
    """An error as a sentence's part: of one that the system names by a number, the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def peer_is_gone(error: BaseException) -> bool:
    """Whether a collective failed because a rank or the store it meets in is gone.

    NCCL and the store have classes for it; gloo raises a RuntimeError that begins with the file of its own.
    """
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/" in str(error))


def way_on(checkpoints: Path) -> str:
    """What --resume would do now."""
    saved = latest(checkpoints)
    if saved is None:
        return "no checkpoint was saved, so --resume begins anew with step 1"
    return f"--resume goes on after step {saved}, where the last checkpoint is"
