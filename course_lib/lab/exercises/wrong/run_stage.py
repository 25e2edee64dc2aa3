"""Wrong answers to `run_stage`, each with one mistake. The exercise says how each must be explained.

Each is the right loop with another forward or another backward of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course_lib.collectives.p2p import isend, rank_and_size, wait
from course_lib.parallel.pipeline.simple_stage import receive

Part = Callable[["Loop", int], None]


class Loop:
    """What stands in the variables of the loop."""

    def __init__(self, stage, order, inputs, loss_of, group) -> None:
        self.stage, self.order, self.inputs, self.loss_of, self.group = stage, order, inputs, loss_of, group
        self.rank, self.n = rank_and_size(group)
        self.last, self.held, self.losses, self.sent = self.rank == self.n - 1, {}, [], []
        self.forgotten = []  # of sends: dropped at once, they may never leave

    def input(self, i: int) -> torch.Tensor:
        x = self.inputs[i]
        return x if self.rank == 0 else receive(x, self.rank - 1, self.group).requires_grad_()

    def gradient(self, y: torch.Tensor) -> torch.Tensor | None:
        return None if self.last else receive(y, self.rank + 1, self.group)


def forward(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def backward(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def answer(name: str, forward: Part = forward, backward: Part = backward, end: Callable = lambda s: s.losses) -> Any:
    """A function as a learner would write it, of these parts."""

    def run_stage(stage, order, inputs, loss_of, group=None):
        s = Loop(stage, order, inputs, loss_of, group)
        for kind, i in s.order:
            (forward if kind == "F" else backward)(s, i)
        wait(s.sent)
        return end(s)

    run_stage.__name__ = name
    return run_stage


# Messages


def _send_output(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        dist.send(y.detach(), group=s.group, group_dst=s.rank + 1)
    s.held[i] = x, y


def _send_gradient(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    if s.rank > 0:
        dist.send(x.grad, group=s.group, group_dst=s.rank - 1)


def _wait_for_output(s: Loop, i: int) -> None:
    forward(s, i)
    wait(s.sent)


def _wait_for_gradient(s: Loop, i: int) -> None:
    backward(s, i)
    wait(s.sent)


def _forget_gradients(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.forgotten += isend(x.grad, s.rank - 1, s.group)


def _gradient_onwards(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, (s.rank + 1) % s.n, s.group)


def _last_waits(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(receive(y, s.rank + 1, s.group))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _last_waits_for_the_first(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(receive(y, (s.rank + 1) % s.n, s.group))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _first_waits(s: Loop, i: int) -> None:
    x = receive(s.inputs[i], (s.rank - 1) % s.n, s.group).requires_grad_()
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _first_sends(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    s.sent += isend(x.grad, s.rank - 1, s.group)


def _never_receives(s: Loop, i: int) -> None:
    x = s.inputs[i].clone().requires_grad_()
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _loss_on_every_rank(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if not s.last:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    y = s.loss_of(y, i)
    s.losses.append(y.detach())
    s.held[i] = x, y


def _without_the_gradient(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    (y if s.last else y.sum()).backward()
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _gradient_of_the_inputs_shape(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(None if s.last else receive(x, s.rank + 1, s.group))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _without_group(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += [dist.isend(x.grad, s.rank - 1)]


both_send_first = answer("both_send_first", _send_output, _send_gradient)
waits_inside = answer("waits_inside", _wait_for_output, _wait_for_gradient)
gradients_never_waited_for = answer("gradients_never_waited_for", backward=_forget_gradients)
gradient_onwards = answer("gradient_onwards", backward=_gradient_onwards)
last_waits = answer("last_waits", backward=_last_waits)
last_waits_for_the_first = answer("last_waits_for_the_first", backward=_last_waits_for_the_first)
first_waits = answer("first_waits", _first_waits)
first_sends = answer("first_sends", backward=_first_sends)
never_receives = answer("never_receives", _never_receives)
loss_on_every_rank = answer("loss_on_every_rank", _loss_on_every_rank)
without_the_gradient = answer("without_the_gradient", backward=_without_the_gradient)
gradient_of_the_inputs_shape = answer("gradient_of_the_inputs_shape", backward=_gradient_of_the_inputs_shape)
without_group = answer("without_group", backward=_without_group)
