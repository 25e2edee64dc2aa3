"""Further wrong answers to `run_stage`: all messages meet, and what is computed or kept is wrong."""

from __future__ import annotations

import torch.distributed as dist

from course_lib.collectives.p2p import isend, wait
from course_lib.lab.exercises.wrong.run_stage import Loop, answer, backward, forward
from course_lib.parallel.pipeline.simple_stage import receive


def _loss_over_m(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    if s.last:
        y = y / len(s.inputs)
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _reported_over_m(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i) / len(s.inputs)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _gradient_over_m(s: Loop, i: int) -> None:
    x, y = s.held.pop(i)
    y.backward(None if s.last else receive(y, s.rank + 1, s.group) / len(s.inputs))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _synchronised(s: Loop, i: int) -> None:
    backward(s, i)
    for p in s.stage.parameters():
        dist.all_reduce(p.grad, group=s.group)


def _nothing_freed(s: Loop, i: int) -> None:
    x, y = s.held[i]
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _loss_with_its_graph(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y)
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _output_with_its_graph(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y, s.rank + 1, s.group)
    s.held[i] = x, y


def _without_requires_grad(s: Loop, i: int) -> None:
    x = s.inputs[i] if s.rank == 0 else receive(s.inputs[i], s.rank - 1, s.group)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _losses_not_kept(s: Loop, i: int) -> None:
    x = s.input(i)
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def _from_a_queue(s: Loop, i: int) -> None:
    x, y = s.held.pop(next(iter(s.held)))
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _from_a_stack(s: Loop, i: int) -> None:
    x, y = s.held.popitem()[1]
    y.backward(s.gradient(y))
    if s.rank > 0:
        s.sent += isend(x.grad, s.rank - 1, s.group)


def _gradients_set_back(s: Loop, i: int) -> None:
    s.stage.zero_grad()
    backward(s, i)


def _into_the_inputs(s: Loop, i: int) -> None:
    if s.rank > 0:
        dist.recv(s.inputs[i], group=s.group, group_src=s.rank - 1)
    x = s.inputs[i].requires_grad_()
    y = s.stage(x)
    if s.last:
        y = s.loss_of(y, i)
        s.losses.append(y.detach())
    else:
        s.sent += isend(y.detach(), s.rank + 1, s.group)
    s.held[i] = x, y


def in_an_order_of_its_own(stage, order, inputs, loss_of, group=None):
    """All forwards first, whatever the order says."""
    s = Loop(stage, order, inputs, loss_of, group)
    for i in range(len(inputs)):
        forward(s, i)
    for i in range(len(inputs)):
        backward(s, i)
    wait(s.sent)
    return s.losses


loss_over_m = answer("loss_over_m", backward=_loss_over_m)
reported_over_m = answer("reported_over_m", _reported_over_m)
gradient_over_m = answer("gradient_over_m", backward=_gradient_over_m)
synchronised_each_time = answer("synchronised_each_time", backward=_synchronised)
nothing_freed = answer("nothing_freed", backward=_nothing_freed)
losses_with_their_graph = answer("losses_with_their_graph", _loss_with_its_graph)
outputs_with_their_graph = answer("outputs_with_their_graph", _output_with_its_graph)
without_requires_grad = answer("without_requires_grad", _without_requires_grad)
losses_not_kept = answer("losses_not_kept", _losses_not_kept)
losses_not_returned = answer("losses_not_returned", end=lambda s: None)
losses_added_up = answer("losses_added_up", end=lambda s: sum(s.losses))
from_a_queue = answer("from_a_queue", backward=_from_a_queue)
from_a_stack = answer("from_a_stack", backward=_from_a_stack)
gradients_set_back = answer("gradients_set_back", backward=_gradients_set_back)
into_the_inputs = answer("into_the_inputs", _into_the_inputs)
