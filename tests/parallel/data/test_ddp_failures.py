"""Ranks that die, skip a step or wrap nothing: what spmd says of it."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from ddp_cases import Net, batch, loss_of, mine, seeded

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel


def step(model, number):
    loss_of(model, *map(mine, batch(number))).backward()
    model.zero_grad()


def test_a_rank_that_dies_in_mid_backward():
    def train():
        model = DistributedDataParallel(seeded(Net))
        step(model, 0)
        if dist.get_rank() == 1:
            model.module.up.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        step(model, 1)

    with pytest.raises(spmd.RankError) as caught:
        spmd.run(train, ranks=3, timeout=30)
    assert str(caught.value).startswith("Rank 1 ")
    assert "SIGKILL" in str(caught.value)


def test_a_rank_that_raises_in_mid_backward():
    def fail(_):
        raise ArithmeticError("no more")

    def train():
        model = DistributedDataParallel(seeded(Net))
        step(model, 0)
        if dist.get_rank() == 2:
            model.module.up.weight.register_hook(fail)
        step(model, 1)

    with pytest.raises(spmd.RankError, match="^Rank 2 raised ArithmeticError: no more"):
        spmd.run(train, ranks=3, timeout=30)


def test_a_rank_that_skips_its_last_step():
    def train():
        model = DistributedDataParallel(seeded(Net))
        for number in range(3):
            if dist.get_rank() != 1 or number < 2:
                step(model, number)

    with pytest.raises(spmd.HangError) as caught:
        spmd.run(train, ranks=2, timeout=2)
    assert "Rank 0 waits for rank 1 in\n  all_reduce of float64" in str(caught.value)


def test_a_rank_that_does_not_wrap_its_module():
    def train():
        if dist.get_rank() > 0:
            DistributedDataParallel(torch.nn.Linear(2, 2))

    with pytest.raises(spmd.HangError) as caught:
        spmd.run(train, ranks=2, timeout=2)
    assert "Rank 1 waits for rank 0 in" in str(caught.value)
    assert "DistributedDataParallel(torch.nn.Linear(2, 2))" in str(caught.value)
