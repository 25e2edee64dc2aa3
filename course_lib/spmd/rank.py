"""What a rank does, from the fork to the last byte it leaves behind.

The run's folder holds what the launcher wrote: `run.json` (environment, paths, backend) and `call.pkl` (the function
and its arguments). A rank adds, all under its number: `.out` (what it prints), `.log` (its collectives), `.board` (its
blackboard), `.flight` (what torch's flight recorder holds), `.stack` (Python stacks, written by faulthandler), and when
it ends `.end` (a pickle of how it ended) and `.value` (its result or exception). Then it says so on the control socket
and stays, connected, until it is killed: a rank that left at once would look to its peers like a lost connection.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import json
import os
import pickle
import resource
import socket
import sys
import time
import traceback
import types
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..timeline import spans
from . import flight, pickles, record
from .beacon import Beacon
from .report import Frame, Op
from .server import STACK_SIGNAL

_TEXT = 4000  # characters of an error's text that are kept
# Longer than any run: the launcher decides when a run has hung, and explains it.
_PATIENCE = timedelta(days=7)

# What a rank says on its control socket.
BEGUN, ENDED = b"b", b"e"

_device: torch.device | None = None


def device() -> torch.device:
    """The device of this rank: its own GPU, or the CPU. Raises RuntimeError outside of a rank."""
    if _device is None:
        raise RuntimeError("spmd.device() is a rank's device: call it in the function that spmd.run runs")
    return _device


@dataclass
class End:
    """How a rank's function ended."""

    returned: bool
    at_ns: int
    text: str = ""  # "ValueError: ..."
    chain: str = ""  # the texts of the runtime errors among it and what it was raised from or in handling of
    stack: list[Frame] | None = None
    failed_in: Op | None = None
    spans: list | None = None


def main(rank: int, folder: str, control: int) -> None:
    """Run the function of the run in `folder` as `rank`. Does not return: the launcher ends the process."""
    with open(os.path.join(folder, "run.json")) as file:
        run = json.load(file)
    own = os.path.join(folder, str(rank))
    _prepare_process(run, rank, own)
    recorder = record.install(os.open(own + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    beacon = Beacon(own, recorder)
    pickles.keep_sources(run["sources"])
    wire = socket.socket(fileno=control)
    me = os.getpid()
    end, value = _call(run, rank, folder, recorder, beacon, wire)
    if os.getpid() != me:  # the function forked, and this is the child, come out where its parent will
        os._exit(0 if end.returned else 1)
    _leave_behind(own, end, value)
    wire.sendall(ENDED)
    while wire.recv(1):  # b"": the launcher is gone, which kills this process anyway where PDEATHSIG exists
        pass
    os._exit(0)


def _prepare_process(run: dict[str, Any], rank: int, own: str) -> None:
    stacks = open(own + ".stack", "w")  # noqa: SIM115  (faulthandler writes to it as long as the process lives)
    faulthandler.enable(stacks, all_threads=True)  # SIGSEGV, SIGABRT, ...: the line that did it
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=False, chain=False)
    _keep(stacks)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(run["env"])
    os.environ.update(run["rank_env"][rank])
    with contextlib.suppress(OSError):  # the notebook's folder may be gone; the function may not need it
        os.chdir(run["cwd"])
    sys.path[:] = run["path"]
    sys.argv = ["rank"]
    with contextlib.suppress(ValueError):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.set_debug_level_from_env()  # torch reads it when it is imported, which was long ago
    gc.freeze()  # what the server imported is not garbage: keep the collector's hands off the shared pages


def _keep(file: Any) -> None:
    _kept.append(file)


_kept: list[Any] = []


def _call(
    run: dict[str, Any], rank: int, folder: str, recorder: record.Recorder, beacon: Beacon, wire: socket.socket
) -> tuple[End, Any]:
    global _device
    try:
        _device = torch.device(run["devices"][rank])
        if _device.type == "cuda":
            torch.cuda.set_device(_device)
        with open(os.path.join(folder, "call.pkl"), "rb") as file:
            function, args, kwargs = pickles.load(file)
        _become_main(function, args, kwargs)
        _join(run, rank, folder, recorder)
        beacon.start()
        wire.sendall(BEGUN)
        value = function(*args, **kwargs)
        end = End(True, time.monotonic_ns())
        if recorder.failed is not None:  # and was caught: its peers may wait for it still
            end.text, end.failed_in = _error_text(recorder.failed[0]), recorder.failed[1]
        return end, value
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the reader's function ended
        at = time.monotonic_ns()
        chain = _chain(error)
        failed = recorder.failed
        failed_in = failed[1] if failed is not None and any(failed[0] is link for link in chain) else None
        stack = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
        runtime = "\n".join(str(link) for link in chain if isinstance(link, RuntimeError | OSError))
        return End(False, at, _error_text(error), runtime, stack, failed_in), error.with_traceback(None)


def _error_text(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ... ({len(text):,} characters)"


def _chain(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from or while handling, and so on."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _become_main(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Give this process the notebook's (or script's) own names as its `__main__`.

    What is defined there came by value; to pickle it once more, as all_gather_object does, Python looks it up by name.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    names = getattr(function, "__globals__", {})
    if names.get("__name__") == "__main__":
        main.__dict__.update(names)
    for thing in (function, *map(type, args), *map(type, kwargs.values())):
        if getattr(thing, "__module__", None) == "__main__" and hasattr(thing, "__qualname__"):
            setattr(main, thing.__qualname__.partition(".")[0], thing)


def _join(run: dict[str, Any], rank: int, folder: str, recorder: record.Recorder) -> None:
    """Make the default process group, and let the reader's own init_process_group make another in its place.

    Rendezvous is a file: no port to be taken, no host name to be resolved. An init_process_group that would use the
    address and port this launcher put into the environment meets in a file as well; any other is left as it is.
    """
    original = dist.init_process_group
    ours = {name: run["rank_env"][rank][name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    world = len(run["devices"])
    meetings = 0

    def store() -> dist.Store:
        nonlocal meetings
        meetings += 1
        return dist.FileStore(os.path.join(folder, f"store{meetings}"), world)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if dist.is_initialized() and not joined_by_reader:
            # Not before all have joined: a rank that is still connecting would lose its peer.
            while first.add("joined", 0) < world:
                time.sleep(0.001)
            dist.destroy_process_group()
        joined_by_reader.append(True)
        backend = kwargs.pop("backend", args[0] if args else None) or run["backend"]
        method = kwargs.get("init_method", args[1] if len(args) > 1 else None) or "env://"
        here = all(os.environ.get(name) == value for name, value in ours.items())
        size, number = kwargs.get("world_size", -1), kwargs.get("rank", -1)
        if kwargs.get("store") is None and method == "env://" and here and size in (-1, world) and len(args) < 3:
            kwargs.pop("init_method", None)
            kwargs.update(store=store(), world_size=world, rank=rank if number < 0 else number)
            return recorder.meet(world, original, backend, **kwargs)
        if size not in (-1, world):
            return recorder.meet_elsewhere(original, backend, *args[1:], **kwargs)
        return recorder.meet(world, original, backend, *args[1:], **kwargs)

    joined_by_reader: list[bool] = []
    bound = {"device_id": _device} if _device.type == "cuda" else {}
    first = store()
    original(run["backend"], store=first, rank=rank, world_size=world, timeout=_PATIENCE, **bound)
    first.add("joined", 1)
    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group


def _leave_behind(own: str, end: End, value: Any) -> None:
    """Write the value (or the exception) and how the rank ended."""
    what = "What the rank returned" if end.returned else "The exception"
    try:
        with open(own + ".value", "wb") as file:
            pickles.dump(value, file, [(what, value)])
    except pickles.CannotSend as error:
        os.unlink(own + ".value")
        if end.returned:
            end = End(False, end.at_ns, f"{type(error).__name__}: {error}")
    end.spans = spans.drain()
    flight.write(own + ".flight")
    with open(own + ".end", "wb") as file:
        pickle.dump(end, file)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by the reader with something else
            stream.flush()
