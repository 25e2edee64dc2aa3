"""Candidates that take their steps in turns, so that ratios of their times hold on a busy machine too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch
import torch.distributed as dist

from course_lib import spmd

WARM_UP = 2  # steps: buckets are put in another order after the first, shapes are told once

Step = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Of one candidate: seconds of each step, the slowest rank's, and processor seconds of the busiest rank."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    def over(self, other: Times) -> tuple[float, float, float]:
        """This one's time over the other's, step by step: lower quartile, median, upper quartile."""
        low, middle, high = quantiles(_ratios(self.seconds, other.seconds), n=4)
        return low, middle, high

    def cpu_over(self, other: Times) -> float:
        """This one's processor time over the other's: the median over the steps."""
        return median(_ratios(self.cpu_seconds, other.cpu_seconds))


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def take_turns(runs: Mapping[str, Step], steps: int) -> dict[str, Times]:
    """Called on every rank: all candidates, step by step. All ranks return the same."""
    taken = torch.zeros(2, len(runs), steps, device=spmd.device())
    for step in range(-WARM_UP, steps):
        for turn in range(len(runs)):
            place = (turn + step) % len(runs)  # in changing order: each finds the caches as another one left them
            seconds, cpu_seconds = _timed(list(runs.values())[place])
            if step >= 0:
                taken[:, place, step] = torch.tensor([seconds, cpu_seconds])
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    seconds, cpu_seconds = taken.tolist()
    return {name: Times(tuple(seconds[i]), tuple(cpu_seconds[i])) for i, name in enumerate(runs)}


def _timed(run: Step) -> tuple[float, float]:
    """Seconds and processor seconds of a step that all ranks begin together."""
    dist.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu_start


def rows(title: str, times: Mapping[str, Times], base: Mapping[str, str], width: int = 12) -> list[str]:
    """A head, and one line for each candidate: milliseconds, its time over that of `base[name]` with quartiles, cpu."""
    head = f"{'step ms':>9}{'over torch':>12}{'quartiles':>13}{'cpu ms':>9}{'over torch':>12}"
    lines = [f"\n{title:{width}}{head}"]
    for name, its in times.items():
        other = times[base[name]]
        low, middle, high = its.over(other)
        line = f"{name:{width}}{median(its.seconds) * 1e3:9.1f}{middle:11.2f}x{f'{low:.2f} - {high:.2f}':>13}"
        lines.append(line + f"{median(its.cpu_seconds) * 1e3:9.1f}{its.cpu_over(other):11.2f}x")
    return lines


def ranks_text(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"
