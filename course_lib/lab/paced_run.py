"""A schedule on real ranks with the costs of a plan: stages that take fixed times, messages that take theirs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import spmd
from course_lib.lab.paced import Paced
from course_lib.parallel.pipeline.actions import Kind
from course_lib.parallel.pipeline.messages import Key, Messages, Route, Spec
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.simulate import Costs
from course_lib.timeline import Timeline

STEPS = 2  # in the first one, ranks also tell each other what shapes are to come


def run(schedule: Schedule, costs: Costs) -> Timeline:
    """One step's timeline (and the first step's, before it), on as many ranks as the schedule has.

    costs: in seconds. The ranks use the CPU, also where there are GPUs: the stages do nothing but wait. Raises what
    spmd.run does; ScheduleError, within a RankError, for a schedule that is not valid.
    """
    return spmd.run(_steps, schedule, costs, ranks=schedule.n_ranks, backend="gloo", show=False).timeline


class SlowMessages(Messages):
    """Messages that set out late: `seconds[s]` after they were made, for those between stages s and s + 1.

    The sender computes on meanwhile, as it would while a device sends. A thread for each channel keeps its order.
    """

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup | None, device: torch.device, seconds: Sequence[float]
    ) -> None:
        super().__init__(schedule, group, device)
        self.seconds = seconds
        self.threads: dict[tuple, ThreadPoolExecutor] = defaultdict(lambda: ThreadPoolExecutor(1))
        self.waiting: list[Future] = []
        self.lock = Lock()  # the list of what was sent: the threads add to it, a receive takes from it

    def send(self, key: Key, tensors: Sequence[Tensor], wants_gradient: Sequence[bool]) -> None:
        hop = key.stage if key.kind == Kind.F else key.stage - 1
        due = time.monotonic() + self.seconds[hop]
        if key.kind == Kind.F:  # the receive of the gradient may be posted before the activation has set out
            specs = (Spec(t.dtype, tuple(t.shape), w) for t, w in zip(tensors, wants_gradient, strict=True))
            self.returning[key] = [spec for spec in specs if spec.wants_gradient]
        channel = self.threads[self.outgoing[key].to, key.kind]
        self.waiting.append(channel.submit(self._send_at, due, key, tensors, wants_gradient))

    def finish(self) -> None:
        for each in self.waiting:
            each.result()
        self.waiting.clear()
        super().finish()

    def _send_at(self, due: float, key: Key, tensors: Sequence[Tensor], wants_gradient: Sequence[bool]) -> None:
        time.sleep(max(0.0, due - time.monotonic()))
        with self.lock:
            super().send(key, tensors, wants_gradient)

    def _let_go(self, arrived: Route) -> None:
        with self.lock:
            super()._let_go(arrived)


def _steps(schedule: Schedule, costs: Costs) -> None:
    """What each rank does."""
    costs = costs.per_stage(schedule.n_stages)
    stages = {
        s: Paced(8, costs.forward[s], costs.input[s], costs.weight[s]) for s in schedule.stages_of(dist.get_rank())
    }
    pipeline = Pipeline(stages, schedule)
    if any(costs.send):
        pipeline.messages = SlowMessages(schedule, None, torch.device("cpu"), costs.send)
    for _ in range(STEPS):
        dist.barrier()
        pipeline.step([torch.ones(2, 8)] * schedule.n_micro_batches, lambda x: x, lambda y, _: y.sum())
