"""Lab 2b: right answers that are written otherwise than the library's pass, too."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.autograd import Function

from course_lib.lab import exercise, trial
from course_lib.lab.checking import PASSED, examine
from course_lib.parallel.pipeline import simple, simple_stage
from course_lib.parallel.pipeline.actions import Kind

RIGHT = {}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine makes no answer wrong."""
    monkeypatch.setattr(trial, "PATIENCE_S", 10)


def right(name):
    """Collects an answer to the exercise of that name."""

    def collect(answer):
        RIGHT[f"{name}: {answer.__name__}"] = (name, answer)
        return answer

    return collect


# Orders


@right("gpipe_order")
def in_one_line(rank, n_ranks, n_micro_batches):
    return [(kind, i) for kind in "FB" for i in range(n_micro_batches)]


@right("gpipe_order")
def lazily(rank, n_ranks, n_micro_batches):
    yield from itertools.product((Kind.F, Kind.B), range(n_micro_batches))


@right("gpipe_order")
def of_lists(rank, n_ranks, n_micro_batches):
    order = []
    for i in range(2 * n_micro_batches):
        order.append(["F" if i < n_micro_batches else "B", i % n_micro_batches])
    return tuple(order)


@right("one_f_one_b_order")
def by_what_is_under_way(rank, n_ranks, n_micro_batches):
    order, forward, backward = [], 0, 0
    while backward < n_micro_batches:
        if forward < n_micro_batches and forward - backward < n_ranks - rank:
            order.append(("F", forward))
            forward += 1
        else:
            order.append(("B", backward))
            backward += 1
    return order


@right("one_f_one_b_order")
def by_two_iterators(rank, n_ranks, n_micro_batches):
    forwards = [("F", i) for i in range(n_micro_batches)]
    backwards = [("B", i) for i in range(n_micro_batches)]
    warm_up = n_ranks - rank - 1
    order = forwards[:warm_up]
    for pair in itertools.zip_longest(forwards[warm_up:], backwards):
        order += [action for action in pair if action]
    return order


@right("one_f_one_b_order")
def by_popping(rank, n_ranks, n_micro_batches):
    waiting, left, order = list(range(n_micro_batches)), list(range(n_micro_batches)), []
    for _ in range(min(n_ranks - rank, n_micro_batches)):
        order.append(("F", waiting.pop(0)))
    while left:
        order.append(("B", left.pop(0)))
        if waiting:
            order.append(("F", waiting.pop(0)))
    return order


# The bubble


@right("micro_batches_for")
def first_of_all(n_ranks, share):
    return next(m for m in itertools.count(1) if (n_ranks - 1) / (m + n_ranks - 1) <= share)


@right("micro_batches_for")
def by_fractions(n_ranks, share):
    exact = Fraction(str(share))
    return max(1, math.ceil((n_ranks - 1) * (1 - exact) / exact))


@right("micro_batches_for")
def guessed_and_mended(n_ranks, share):
    guess = max(1, math.floor((n_ranks - 1) * (1 - share) / share) - 1)
    while simple.bubble(n_ranks, guess) > share:
        guess += 1
    return guess


# One stage


@right("run_stage")
def by_torchs_batches(stage, order, inputs, loss_of, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    under_way, losses, works = {}, {}, []

    def message(call, tensor, peer):
        (work,) = dist.batch_isend_irecv([dist.P2POp(call, tensor, group=group, group_peer=peer)])
        return work

    for kind, i in order:
        if kind == "F":
            x = inputs[i]
            if rank:
                x = torch.empty_like(x)
                message(dist.irecv, x, rank - 1).wait()
                x.requires_grad = True
            y = stage(x)
            under_way[i] = (x, y)
            if rank < n - 1:
                works.append(message(dist.isend, y.detach().contiguous(), rank + 1))
            continue
        x, y = under_way[i]
        del under_way[i]
        if rank == n - 1:
            loss = loss_of(y, i)
            losses[i] = loss.item()
            loss.backward()
        else:
            grad = torch.empty_like(y)
            message(dist.irecv, grad, rank + 1).wait()
            torch.autograd.backward(y, grad)
        if rank:
            works.append(message(dist.isend, x.grad, rank - 1))
    for work in works:
        work.wait()
    return [losses[i] for i in sorted(losses)]


@right("run_stage")
def by_autograd_grad(stage, order, inputs, loss_of, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    held, losses, works = {}, [], []
    weights = list(stage.parameters())
    for kind, i in order:
        if kind == "F":
            x = simple_stage.receive(inputs[i], rank - 1, group) if rank else inputs[i].clone()
            x.requires_grad_()
            y = stage(x)
            if rank == n - 1:
                y = loss_of(y, i)
                losses.append(y.detach().clone())
            else:
                works.append(dist.isend(y.detach(), group=group, group_dst=rank + 1))
            held[i] = x, y
        else:
            x, y = held.pop(i)
            grad = simple_stage.receive(y, rank + 1, group) if rank < n - 1 else None
            grad_x, *grads = torch.autograd.grad(y, [x, *weights], grad)
            for weight, g in zip(weights, grads, strict=True):
                weight.grad = g if weight.grad is None else weight.grad + g
            if rank:
                works.append(dist.isend(grad_x, group=group, group_dst=rank - 1))
    [work.wait() for work in works]
    return losses if losses else None


@right("run_stage")
def all_receives_posted_early(stage, order, inputs, loss_of, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    arriving, held, losses, sent = {}, {}, [], []
    for kind, i in order:
        if kind == "F" and rank:
            x = torch.empty_like(inputs[i])
            arriving[i] = x, dist.irecv(x, group=group, group_src=rank - 1)
    for kind, i in order:
        if kind == "F":
            x = inputs[i]
            if rank:
                x, work = arriving.pop(i)
                work.wait()
                x.requires_grad_()
            y = stage(x)
            held[i] = x, y
            if rank < n - 1:
                sent.append(dist.isend(y.detach(), group=group, group_dst=rank + 1))
            else:
                losses.append(loss_of(y, i))
        else:
            x, y = held.pop(i)
            if rank < n - 1:
                grad = torch.empty_like(y)
                dist.recv(grad, group=group, group_src=rank + 1)
                y.backward(grad)
            else:
                losses[i].backward()
                losses[i] = losses[i].detach()
            if rank:
                sent.append(dist.isend(x.grad, group=group, group_dst=rank - 1))
    for work in sent:
        work.wait()
    return losses


# A backward in two parts


class Given(Function):
    @staticmethod
    def forward(ctx, x, weight, later):
        ctx.save_for_backward(x)
        ctx.weight, ctx.later = weight, later
        return x @ weight.t()


@right("LinearInTwo")
class InPlace(Given):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors[0].detach(), ctx.weight

        def weight_gradient():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.addmm_(grad.t(), x)

        ctx.later += [weight_gradient]
        return torch.mm(grad, weight), None, None


@right("LinearInTwo")
class BySums(Given):
    @staticmethod
    def backward(ctx, grad):
        def weight_gradient(grad=grad, x=ctx.saved_tensors[0], weight=ctx.weight):
            with torch.no_grad():
                now = torch.einsum("to,ti->oi", grad, x)
                weight.grad = now if weight.grad is None else weight.grad.add_(now)

        ctx.later.append(weight_gradient)
        return torch.einsum("to,oi->ti", grad, ctx.weight), None, None


def accumulate(weight, grad, x):
    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    weight.grad += (x.mT @ grad).mT


@right("LinearInTwo")
class ByPartial(Given):
    @staticmethod
    def backward(ctx, grad):
        ctx.later.append(partial(accumulate, ctx.weight, grad, ctx.saved_tensors[0].detach()))
        return (ctx.weight.t() @ grad.t()).t(), None, None


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    few = (2, 3) if one.on_ranks else (1,)
    verdict = examine(replace(one, worlds=few, timing=None, timeline=False, overlap=False), answer)
    assert verdict.state == PASSED, verdict.message
