"""spmd: how long a cold and a warm call take, how soon a failure is explained, what recording a call costs."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.bench._numbers import at_least_1
from course_lib.spmd import record
from course_lib.spmd.calls import CALLS

_COLD = """
import time
import torch.distributed as dist
from course_lib import spmd
from course_lib.spmd import record
from course_lib.spmd.calls import CALLS
start = time.perf_counter()
spmd.run(dist.get_rank, ranks=4)
print(time.perf_counter() - start)
"""
_HANG_S = 1.0


def _one_all_reduce() -> None:
    dist.all_reduce(torch.ones(4))


def _hang() -> None:
    dist.recv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


def _fail() -> None:
    if dist.get_rank() == 1:
        raise ValueError("as planned")
    dist.barrier()


def _nothing(tensor: torch.Tensor, op: object = None, group: object = None, async_op: bool = False) -> None:
    """Stands in for a collective, so that what is timed is the recording alone."""


def _cost_of_recording(calls: int) -> float:
    """Seconds that recording a call takes: the fastest of several rounds."""
    recorded = record.installed().wrap("all_reduce", CALLS["all_reduce"], _nothing)
    x, rounds = torch.ones(1), []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(calls):
            recorded(x)
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds)


def _seconds(run: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        with contextlib.suppress(spmd.SpmdError):  # the explanation is what is timed
            run()
        taken.append(time.perf_counter() - start)
    return taken


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench spmd", description=__doc__)
    parser.add_argument("--times", type=at_least_1, default=10, help="runs of each measurement (default: 10)")
    times = parser.parse_args(argv).times

    def row(name: str, taken: list[float], goal: str = "") -> None:
        values = f"{statistics.median(taken):9.3f}s{min(taken):9.3f}s{max(taken):9.3f}s"
        print(f"{name:42}{values}  {goal}".rstrip(), flush=True)

    print(f"{'':42}{'median':>10}{'least':>10}{'most':>10}  goal", flush=True)
    cold = [float(subprocess.check_output([sys.executable, "-c", _COLD], text=True)) for _ in range(min(times, 3))]
    row("first call of a process, 4 ranks", cold, "<= 5 s")
    for ranks in (1, 2, 4, 8):
        run = _seconds(lambda n=ranks: spmd.run(_one_all_reduce, ranks=n, show=False), times)
        row(f"warm call, {ranks} ranks, one all_reduce", run, "<= 0.5 s" if ranks == 4 else "")
    hang = _seconds(lambda: spmd.run(_hang, ranks=4, timeout=_HANG_S, show=False), min(times, 5))
    row("a hang explained, after its time-out", [t - _HANG_S for t in hang], "<= 2 s")
    row("an exception explained", _seconds(lambda: spmd.run(_fail, ranks=4, show=False), min(times, 5)))
    cost = spmd.run(_cost_of_recording, 200, ranks=1, show=False)[0]
    print(f"{'recording one call':42}{cost * 1e6:8.1f}us")
