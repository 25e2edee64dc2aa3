"""What is left of a run, rank by rank: records, stacks, output, values; read into a RankReport each."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from . import beacon, flight, oplog, pickles
from .job import OUTPUT_LIMIT, Job
from .report import Frame, RankReport

_STACKS_S = 1.0  # how long live ranks may take to write their stacks down
_SHOWN_BYTES = 64 * 1024  # of one rank's output; what is cut is said
_RANK_MAIN = os.path.join("spmd", "rank.py")

# gloo prints a line on every connection; nobody asked.
_NOISE = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)


def gather(job: Job) -> list[RankReport]:
    """A report on every rank. Those that live still write their stacks down first."""
    alive = [rank for rank in range(job.ranks) if not job.over(rank)]
    job.counts = {rank: beacon.read(job.path(rank, "board"))[2] for rank in alive}
    if alive:
        _collect_stacks(job, alive)
    return [_report(job, rank) for rank in range(job.ranks)]


def _collect_stacks(job: Job, alive: list[int]) -> None:
    """Have the live ranks write their stacks, and wait until they have."""
    time.sleep(2 * beacon.PERIOD_S)  # until their blackboards, too, tell of now
    job.client.ask_stacks()
    deadline = time.monotonic() + _STACKS_S
    while time.monotonic() < deadline:
        if all(_stack_written(job.path(rank, "stack")) for rank in alive):
            return
        time.sleep(0.01)


def _stack_written(path: str) -> bool:
    with open(path, "rb") as file:
        return b" in main\n" in file.read()  # rank.main: the outermost frame but those of the server


def _report(job: Job, rank: int) -> RankReport:
    report = RankReport(rank, "running", output=_output(job.path(rank, "out")))
    report.ops = oplog.read_log(job.path(rank, "log"))
    report.last_seen, waiting, report.messages = beacon.read(job.path(rank, "board"))
    report.moving = 0 < job.counts.get(rank, 0) < report.messages
    flights = flight.read(job.path(rank, "flight"))
    report.begun = {key: group.begun for key, group in flights.items()}
    end = job.ends.get(rank)
    if end is not None:
        report.status = "returned" if end.returned else "raised"
        report.error_text, report.ended_ns, report.failed_in = end.text, end.at_ns, end.failed_in
        report.chain = end.chain
        report.stack = end.stack or []
        try:
            value = _load_value(job.path(rank, "value"))
        except Exception as error:  # whatever the reader's own __setstate__ or __init__ raises in this process
            value = None
            if end.returned:
                report.status = "raised"
                report.error_text = f"nothing, but what it returned cannot be rebuilt in this process: {error!r}"
        report.result, report.error = (value, None) if end.returned else (None, value)
        return report
    report.stack = _read_stack(job.path(rank, "stack"))
    if rank in job.exits:
        report.status = "died"
        report.exit_code, report.ended_ns = job.exits[rank]
        report.failed_in = waiting
    elif waiting := waiting or flight.waiting_in(flights, report.stack, report.where):
        report.status, report.waiting = "waiting", waiting
    elif _stopped(job.pids.get(rank)):
        report.status = "stopped"
    if job.chatter == rank:
        report.status, report.error_text = "raised", f"nothing, but printed more than {OUTPUT_LIMIT >> 20} MiB"
        report.ended_ns = 1
    return report


def _load_value(path: str) -> Any:
    if not os.path.exists(path):
        return None  # an exception that cannot be pickled: its text is known
    with open(path, "rb") as file:
        return pickles.load(file)


_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def _read_stack(path: str) -> list[Frame]:
    """The main thread's stack as faulthandler wrote it (innermost first there), innermost last.

    A process that dies by a signal may do so in a thread of its own without Python frames: all threads are written.
    """
    with open(path, errors="replace") as file:
        threads = [_STACK_LINE.findall(part) for part in re.split(r"\n(?=Thread |Current thread )", file.read())]
    main = next((frames for frames in reversed(threads) if any(f.endswith(_RANK_MAIN) for f, _, _ in frames)), [])
    return [Frame(name, int(line), function) for name, line, function in reversed(main)]


def _stopped(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _output(path: str) -> str:
    """What a rank wrote; of very much, the beginning and the end."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if size <= _SHOWN_BYTES:
            text = file.read().decode(errors="replace")
        else:
            head = file.read(_SHOWN_BYTES // 2).decode(errors="replace")
            file.seek(-_SHOWN_BYTES // 2, os.SEEK_END)
            tail = file.read().decode(errors="replace")
            text = f"{head}\n... {size - _SHOWN_BYTES:,} bytes of {size:,} are not shown ...\n{tail}"
    return _NOISE.sub("", text)
