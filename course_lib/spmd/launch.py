"""`spmd.run`: start the ranks, wait for them, gather what they left, and explain when something went wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..timeline import Timeline
from . import backend as backends
from . import pickles
from .client import server
from .explain import explain, where
from .gather import gather
from .job import Job, start, wait
from .report import Cause, HangError, MismatchError, RankError, RankReport

# Set on the ranks: the folder of their run. A run inside a rank keeps its own folder in there, and goes with it.
_OUTER = "COURSE_SPMD_FOLDER"


class Results(list):
    """What the ranks returned, by rank. `.ranks`: a RankReport each; `.timeline`: their spans; `.seconds`: the run."""

    def __init__(self, ranks: list[RankReport], timeline: Timeline, seconds: float):
        super().__init__(report.result for report in ranks)
        self.ranks = ranks
        self.timeline = timeline
        self.seconds = seconds


def run(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    timeout: float = 60,
    backend: str | None = None,
    env: dict[str, str] | None = None,
    show: bool = True,
    **kwargs: Any,
) -> Results:
    """Call `fn(*args, **kwargs)` on each of `ranks` fresh processes that share a process group; return their values.

    fn: any function, also one defined in a notebook cell. In it, torch.distributed is initialised: one GPU per rank
    with NCCL where there are enough, gloo on the CPU elsewhere (`backend="gloo"` or `"nccl"` insists). args, kwargs:
    the same for all ranks; sent by pickle.
    timeout: seconds for the whole call of fn. env: variables set on the ranks, on top of this process's own.
    show: print what the ranks print, grouped by rank, when they have ended.

    Returns Results, a list by rank. Nothing of the run is left when this returns or raises.

    Raises RankError (a rank raised or died), HangError (time ran out), MismatchError (the ranks' collectives did not
    match, so that their results are wrong); each names the rank and the line. ValueError or TypeError for arguments
    that cannot work.
    """
    choice = backends.choose(ranks, backend)
    _check(fn, timeout, env)
    if choice.fell_back and show:
        print(choice.why)
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="spmd-", dir=os.environ.get(_OUTER))
    wires: list[socket.socket] = []
    try:
        _write_call(folder, fn, args, kwargs, choice, env)
        with server() as client:
            job = Job(folder, client, wires)
            try:
                start(job, ranks)
                stopped = wait(job, timeout)
                reports = gather(job)
            except KeyboardInterrupt:
                if show:
                    _print(interrupted := gather(job))
                    print(where(interrupted))
                raise
            finally:
                client.end()
        timeline = Timeline([(job.ends[r].spans or []) if r in job.ends else [] for r in range(ranks)])
    finally:
        for wire in wires:
            wire.close()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - started
    if show:
        _print(reports)
    cause = explain(reports, stopped, fn)
    if cause is not None:
        raise _error(cause, reports)
    return Results(reports, timeline, seconds)


def _check(fn: Any, timeout: Any, env: Any) -> None:
    if not callable(fn):
        raise TypeError(f"spmd.run needs a function to call on each rank; it was given a {type(fn).__name__}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}: it must be a number of seconds, more than 0")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env sets {name!r} to {value!r}: names and values of variables must be strings")


def _write_call(
    folder: str, fn: Callable, args: tuple, kwargs: dict, choice: backends.Choice, env: dict[str, str] | None
) -> None:
    name = getattr(fn, "__name__", type(fn).__name__)
    with open(os.path.join(folder, "call.pkl"), "wb") as file:
        parts = [(f"`{name}`", fn)]
        parts += [(f"Argument {i} of `{name}`", arg) for i, arg in enumerate(args, 1)]
        parts += [(f"Argument `{key}` of `{name}`", arg) for key, arg in kwargs.items()]
        sources = pickles.dump((fn, args, kwargs), file, parts)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = range(len(choice.devices))
    run = {
        "backend": choice.backend,
        "devices": choice.devices,
        "env": dict(os.environ),
        "rank_env": [backends.environment(choice, rank, port) | (env or {}) | {_OUTER: folder} for rank in ranks],
        "cwd": _working_folder(),
        "path": [str(entry) for entry in sys.path],
        "sources": sources,
    }
    with open(os.path.join(folder, "run.json"), "w") as file:
        json.dump(run, file)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody removed it
        return "/"


def _print(reports: list[RankReport]) -> None:
    """Each rank's output under its number; one line per rank where a line is all there is."""
    for report in reports:
        text = report.output.rstrip("\n")
        if text:
            print("\n".join(f"[{report.rank}] {line}" for line in text.split("\n")))


def _error(cause: Cause, reports: list[RankReport]) -> Exception:
    if all(r.status == "returned" for r in reports):
        return MismatchError(cause, reports)
    if any(r.status in ("raised", "died") for r in reports):
        error = RankError(cause, reports)
        if cause.rank is not None:
            error.__cause__ = reports[cause.rank].error
        return error
    return HangError(cause, reports)
