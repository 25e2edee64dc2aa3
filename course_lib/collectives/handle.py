"""Collectives in flight: start one, compute, wait for its result.

A collective made of sends and receives needs somebody to run its steps. With `async_op=True` that is a thread: one
for each group, which takes its collectives in the order in which they were issued, so all ranks run them in the
same order. A collective without `async_op` lets those issued before it on the same group finish first, for the same
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
import torch.distributed as dist
from torch import Tensor

Job = Callable[[], Tensor | None]

# By group: the thread that runs its collectives, and the last one it was given. A group lives as long as its process.
_threads: dict[dist.ProcessGroup, ThreadPoolExecutor] = {}
_last: dict[dist.ProcessGroup, Future] = {}


class Handle:
    """A collective in flight. Leave its tensors alone until `wait()` has returned."""

    def __init__(self, future: Future, side: torch.cuda.Stream | None = None):
        self._future = future
        self._side = side

    def done(self) -> bool:
        """Whether wait() would return at once."""
        return self._future.done()

    def wait(self) -> Tensor | None:
        """The collective's result, once it is there. Raises what the collective raised."""
        result = self._future.result()
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)
        return result


def issue(job: Job, x: Tensor, group: dist.ProcessGroup | None, async_op: bool) -> Tensor | None | Handle:
    """Run the job now and return its result, or give it to the group's thread and return a Handle.

    On a GPU the thread queues its work on a stream of its own, behind what the caller's stream holds already.
    """
    group = group or dist.group.WORLD
    if not async_op:
        if group in _last:
            wait([_last.pop(group)])
        with torch.no_grad():
            return job()
    side = None
    if x.is_cuda:
        side = torch.cuda.Stream(x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))

    def run() -> Tensor | None:
        with torch.no_grad(), torch.cuda.stream(side):
            return job()

    thread = _threads.setdefault(group, ThreadPoolExecutor(1, thread_name_prefix="collectives"))
    _last[group] = thread.submit(run)
    return Handle(_last[group], side)
