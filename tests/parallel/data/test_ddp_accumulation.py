"""Which backwards are reduced: no_sync and windows, several forwards and backwards, gradients that others touch."""

import pytest
import torch
from ddp_cases import (
    Net,
    all_of,
    expected_gradients,
    gradients,
    local,
    loss_of,
    reductions,
    same,
    seeded,
    wrapped,
)
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel


def windows():
    """Two micro-batches without a reduction, one with it; twice; equal to torch's DDP, and to one process."""
    for options in ({}, {"find_unused": True}):
        model, torchs = wrapped(**options), nn.parallel.DistributedDataParallel(seeded(Net))
        for window in range(3):
            for ddp in (model, torchs):
                ddp.zero_grad()
                with ddp.no_sync():
                    for step in (0, 1):
                        loss_of(ddp, *local(3 * window + step)).backward()
                loss_of(ddp, *local(3 * window + 2)).backward()
            same(gradients(model), gradients(torchs))
            same(gradients(model), expected_gradients(*range(3 * window, 3 * window + 3)))


def no_sync_sends_nothing():
    model = wrapped()

    def quiet():
        with model.no_sync():
            loss_of(model, *local(0)).backward()

    loss_of(model, *local(0)).backward()
    model.zero_grad()
    assert reductions(quiet, model) == 0
    single = seeded(Net)
    loss_of(single, *local(0)).backward()
    same(gradients(model), gradients(single))  # this rank's own
    assert model.reducer.sync


def the_forward_decides():
    """As with torch's: a forward outside no_sync is reduced, wherever its backward runs; one inside is not."""
    model = wrapped()
    loss = loss_of(model, *local(0))
    with model.no_sync():
        loss.backward()
    same(gradients(model), expected_gradients(0))
    model.zero_grad()
    with model.no_sync():
        loss = loss_of(model, *local(0))
    assert reductions(loss.backward, model) == 0
    model.zero_grad()
    with model.no_sync():
        unreduced = loss_of(model, *local(0))
    reduced = loss_of(model, *local(1))
    assert reductions(unreduced.backward, model) <= 1  # may be reduced now or with the next: the sum is the same
    reduced.backward()
    same(gradients(model), expected_gradients(0, 1))


def several_forwards_and_backwards():
    model = wrapped()
    for _ in range(2):  # before and after the rebuild
        model.zero_grad()
        (loss_of(model, *local(0)) + loss_of(model, *local(1))).backward()
        same(gradients(model), expected_gradients(0, 1))
        model.zero_grad()
        first, second = loss_of(model, *local(0)), loss_of(model, *local(1))
        second.backward()
        first.backward()
        same(gradients(model), expected_gradients(0, 1))
        model.zero_grad()
        loss = loss_of(model, *local(0))
        loss.backward(retain_graph=True)
        loss.backward()
        same(gradients(model), expected_gradients(0, times=2))
        loss_of(model, *local(1)).backward()  # no zero_grad in between
        same(gradients(model), added(expected_gradients(0, times=2), expected_gradients(1)))


def added(some, others):
    return [a if a is None else a + b for a, b in zip(some, others, strict=True)]


def touched_gradients():
    """Gradients replaced, set to None or zeroed one by one between two backwards."""
    model = wrapped()
    for _ in range(3):
        loss_of(model, *local(0)).backward()
        parameters = [p for p in model.parameters() if p.requires_grad]
        parameters[0].grad = torch.ones_like(parameters[0])  # someone's own tensor
        parameters[1].grad = None
        parameters[2].grad.zero_()
        parameters[3].grad = parameters[3].grad.clone() * 0
        for p in parameters[4:]:
            p.grad = torch.zeros_like(p)
        loss_of(model, *local(1)).backward()
        expected = [g for g in expected_gradients(1) if g is not None]
        expected[0] = expected[0] + 1
        same([p.grad for p in parameters], expected)
        model.zero_grad()


def forward_without_gradients():
    """Evaluation between two steps, with and without no_grad, changes nothing and reduces nothing."""
    model = wrapped()
    for step in range(2):
        with torch.no_grad():
            assert reductions(lambda: loss_of(model, *local(7)), model) == 0
        loss = loss_of(model, *local(step))
        model.eval()
        loss_of(model, *local(8))
        model.train()
        loss.backward()
        same(gradients(model), expected_gradients(step))
        model.zero_grad()
        with model.no_sync(), torch.no_grad():
            loss_of(model, *local(7))


def gradient_of_the_input():
    """torch.autograd.grad gives the gradient of an input and reduces nothing; a backward after it is reduced."""
    model = DistributedDataParallel(seeded(lambda: nn.Linear(3, 2).double()))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    out = model(x)

    def penalty():
        torch.autograd.grad(out.sum(), x, create_graph=True)

    assert reductions(penalty, model) == 0
    out.sum().backward()
    assert model.reducer.reductions == 1 and not model.reducer.running


def outside_of_the_wrapper():
    """What torch.autograd.grad returns, and a forward of `.module` by itself, are this rank's own."""
    model, single = wrapped(), seeded(Net)
    loss_of(single, *local(0)).backward()
    own = [g for g in gradients(single) if g is not None]

    def bare():
        loss_of(model.module, *local(0)).backward()
        same([p.grad for p in trained], own)
        model.zero_grad()

    def bare_in_no_sync():
        with model.no_sync():
            bare()

    def asked_for():
        same(torch.autograd.grad(loss_of(model, *local(0)), trained), own)

    trained = [p for p in model.parameters() if p.requires_grad]
    for call in (bare, asked_for, bare_in_no_sync):
        assert reductions(call, model) == 0
    loss_of(model, *local(1)).backward()
    same(gradients(model), expected_gradients(1))


CASES = [
    windows,
    no_sync_sends_nothing,
    the_forward_decides,
    several_forwards_and_backwards,
    touched_gradients,
    forward_without_gradients,
    gradient_of_the_input,
    outside_of_the_wrapper,
]


@pytest.mark.parametrize("n", [2, 3])
def test_which_backwards_are_reduced(n):
    spmd.run(all_of, CASES, ranks=n)
