"""What the sharded modules of one model do together: who is gathered ahead of time, which reduction is in flight.

    forward, block k     wait for k's parameters; start to gather k + 1's; compute; free k's
    backward, block k    wait for k's; start to gather k - 1's; compute; free k's; start to reduce k's gradients, of
                         which no more than one block's are on their way
    backward ends        what is left is reduced and freed

The order of the blocks is taken from the forward: the next one's to gather ahead in forward, the same one's in
backward. Collectives are matched by nothing but their order, so **all ranks must call the same modules in the same
order**; which modules these are may change from step to step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic_ns

import torch
from torch.autograd import Variable

from course_lib.parallel.fsdp.group import ParameterGroup, State
from course_lib.timeline import record


class Unit:
    """A sharded module's place in the model. name: as errors and timelines have it. group: its parameters."""

    def __init__(self, name: str, group: ParameterGroup):
        self.name, self.group = name, group
        self.started_ns = 0
        self.forget()

    def forget(self) -> None:
        """Before a backward: it has not come by here."""
        self.touched = False  # backward was here, so there are gradients to reduce
        self.open = 0  # calls which backward has entered and not left
        self.missing = 0  # gradients that will come, and have not
        self.sync = self.over_replicas = True

    def enters_backward(self) -> None:
        if not self.touched:
            self.touched = True
            nodes = [p.accumulator() for p in self.group.trained()]
            self.missing = sum(map(torch._C._will_engine_execute_node, nodes))
            self.started_ns = monotonic_ns()
        self.open += 1


class Context:
    """units: of one model, the root last. ahead: how many blocks are gathered ahead of time.

    sync, over_replicas: what a backward through a forward made now will do with its gradients.
    """

    def __init__(self, units: list[Unit], ahead: int):
        self.units, self.ahead = units, ahead
        self.sync = self.over_replicas = True
        self.in_forward = self.in_backward = False
        self._entered: list[Unit] = []  # in this forward, so far
        self._expected: list[Unit] = []  # in the forward before
        self._left: list[Unit] = []  # in the order in which forward left them; backward comes the other way
        self._place = 0  # in _left: where backward is
        self._reductions: deque[Iterator[None]] = deque()
        for unit in units:
            unit.group.tell(lambda unit=unit: self._gradient_is_there(unit))

    def begin_forward(self, unit: Unit) -> None:
        """The outermost module is called, or a block by itself: `unit`."""
        self.recover()
        self.in_forward = True
        self.outermost = unit
        self._entered, self._left = [], []

    def enter_forward(self, unit: Unit) -> None:
        """The unit's parameters are there on return."""
        place = len(self._entered)
        self._entered.append(unit)
        unit.group.gather()
        if self._expected[place : place + 1] == [unit]:
            for later in self._expected[place + 1 : place + 1 + self.ahead]:
                later.group.start_gather()
        unit.started_ns = monotonic_ns()

    def leave_forward(self, unit: Unit, free: bool) -> None:
        record(f"forward {unit.name}", unit.started_ns, monotonic_ns())
        self._left.append(unit)
        if free:
            unit.group.free()

    def end_forward(self) -> None:
        """The outermost module's forward has ended."""
        self.in_forward = False
        self._expected = self._entered
        for unit in self.units:
            if unit.group.state is State.GATHERING:  # ahead of time, for a call that did not come
                unit.group.free()

    def enter_backward(self, unit: Unit, sync: bool, over_replicas: bool) -> None:
        """Backward comes to the outputs of one call of the unit. Its parameters are there on return.

        sync, over_replicas: what they were in that call.
        """
        self._begin_backward()
        unit.group.gather()
        unit.enters_backward()
        unit.sync, unit.over_replicas = sync, over_replicas
        before = self._left[: self._place]
        if unit in before:
            self._place = len(before) - 1 - before[::-1].index(unit)
            for earlier in self._left[max(self._place - self.ahead, 0) : self._place][::-1]:
                earlier.group.start_gather()

    def leave_backward(self, unit: Unit) -> None:
        """Backward has come through to the inputs of one call of the unit."""
        unit.open -= 1
        self._reduce_if_complete(unit)

    def _gradient_is_there(self, unit: Unit) -> None:
        if not unit.touched:
            # By a way that does not pass through the outputs: an auxiliary loss kept in the module, or the backward
            # inside a checkpoint with use_reentrant=True. Reduced at the end.
            self._begin_backward()
            unit.touched, unit.open = True, 1
            unit.sync, unit.over_replicas = self.sync, self.over_replicas
            unit.started_ns = monotonic_ns()
        unit.missing -= 1
        self._reduce_if_complete(unit)

    def _begin_backward(self) -> None:
        if self.in_backward:
            return
        self.in_backward = True
        self._place = len(self._left)
        for unit in self.units:
            unit.forget()
        Variable._execution_engine.queue_callback(self._end_backward)

    def _reduce_if_complete(self, unit: Unit) -> None:
        # Parameters may be read as long as one of both is open. A frozen one, or one that is used detached, has no
        # gradient that would tell; the inputs have. Where neither tells, the end of backward does.
        if unit.open == 0 and unit.missing <= 0:
            self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        record(f"backward {unit.name}", unit.started_ns, monotonic_ns())
        unit.group.free()
        unit.touched = False
        if not unit.group.trained():
            return
        if not unit.sync:
            unit.group.keep_gradients()
            return
        self._advance()
        reduction = unit.group.reduce(unit.over_replicas)
        next(reduction)
        self._reductions.append(reduction)

    def _advance(self) -> None:
        """Each reduction in flight goes on to its next message, or to its end: what it sent last has had its time."""
        for reduction in list(self._reductions):
            if next(reduction, StopIteration) is StopIteration:
                self._reductions.remove(reduction)

    def _end_backward(self) -> None:
        for unit in reversed(self.units):
            if unit.touched:
                self._finish(unit)
        while self._reductions:
            self._advance()
        self.in_backward = False
        self._free_all()

    def recover(self) -> None:
        """Put things in order after a forward or a backward that broke, on all ranks in the same place.

        After a backward that broke nobody knows what is in the gradients: all of them are dropped.
        """
        if not (self.in_forward or self.in_backward):
            return
        while self._reductions:
            self._advance()
        if self.in_backward:
            for unit in self.units:
                unit.group.drop_gradients()
        self.in_forward = self.in_backward = False
        self._free_all()

    def settle(self) -> None:
        """All modules have shards on return, and nothing is on its way: outside of forward and backward only."""
        self.recover()
        self._free_all()

    def _free_all(self) -> None:
        for unit in self.units:
            unit.group.free()
