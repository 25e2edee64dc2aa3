"""What an answer costs in time, against the library's version and torch's own, on the ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.lab import calls
from course_lib.lab.evidence import alike, copy, shapes
from course_lib.lab.exercise import Task
from course_lib.timeline import spans

PATIENCE_S = 30  # the answer is known to be right; what may be slow is the machine
ROUNDS, ENOUGH_S = 5, 1.5  # timed calls of each rival: this many, or what fits into this time


@dataclass
class Timed:
    """Timing on one rank. seconds[name]: one per round. right: whether the learner's answer gives what the library's
    does. sent: its bytes, those handed to torch's collectives included, in one call with `args`, of which the shapes
    are kept; collectives: those that it called.
    """

    seconds: dict[str, list[float]]
    right: bool
    sent: int
    args: tuple
    collectives: list[calls.Collective]


def time_rivals(answers: dict[str, Callable], task: Task) -> Timed:
    """On each rank: the answers (the learner's, the library's, others) in turn, several rounds.

    In turn, so that a slow moment of the machine strikes all alike.
    """
    args = task.timing_arguments(dist.get_rank(), dist.get_world_size())
    start = time.perf_counter()
    mine, reference, *rivals = answers.values()
    with spmd.traffic() as traffic, calls.record("") as log:
        value = task.call(mine, *copy(args))
    right = alike(value, task.call(reference, *copy(args)))
    for rival in rivals:  # warm up; the other two have by now
        task.call(rival, *copy(args))
    slowest = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)  # the ranks must agree on the number of rounds
    seconds: dict[str, list[float]] = {name: [] for name in answers}
    for _ in range(max(1, min(ROUNDS, int(ENOUGH_S / slowest)))):
        for name, answer in answers.items():
            given = copy(args) if task.may_change else args
            dist.barrier()
            start = time.perf_counter()
            task.call(answer, *given)
            seconds[name].append(time.perf_counter() - start)
    moved = traffic.sent + sum(traffic.collective_bytes.values())
    return Timed(seconds, right, moved, shapes(args), log.collectives)


def call_once(answer: Callable, task: Task) -> None:
    """On each rank: one call on the timed input, for its timeline."""
    args = task.timing_arguments(dist.get_rank(), dist.get_world_size())
    dist.barrier()
    spans.drain()
    task.call(answer, *args)


def median_of_slowest(timed: list[Timed], name: str) -> float:
    """A call lasts as long as its slowest rank; of several calls, the median."""
    return statistics.median(max(rounds) for rounds in zip(*(t.seconds[name] for t in timed), strict=True))
