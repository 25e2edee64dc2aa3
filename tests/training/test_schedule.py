"""Schedules against torch's own schedulers, against values by hand, and their limits for any numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from course_lib.training.schedule import WarmupCosine, WarmupStableDecay, set_lr

PEAK = 0.25


def optimizer_of(*lrs):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs])


def torchs(make_scheduler, steps):
    """The learning rates of torch's scheduler in each step."""
    optimizer = optimizer_of(PEAK)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def ours(schedule, steps):
    return [PEAK * schedule(step) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 1, 5])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_torchs_linear_then_cosine_annealing(warmup, floor):
    def make(optimizer):
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20 - warmup, eta_min=floor * PEAK)
        if not warmup:
            return cosine
        linear = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        return lr_scheduler.SequentialLR(optimizer, [linear, cosine], milestones=[warmup])

    assert ours(WarmupCosine(warmup, 20, floor), 20) == pytest.approx(torchs(make, 20))


def test_stable_decay_is_torchs_three_in_a_row():
    def make(optimizer):
        linear = lr_scheduler.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
        flat = lr_scheduler.ConstantLR(optimizer, factor=1)
        down = lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.2, total_iters=6)
        return lr_scheduler.SequentialLR(optimizer, [linear, flat, down], milestones=[4, 14])

    assert ours(WarmupStableDecay(4, 20, decay=6, floor=0.2), 20) == pytest.approx(torchs(make, 20))


@pytest.mark.parametrize("schedule", [WarmupCosine(3, 9, 0.2), WarmupStableDecay(3, 9, 4)])
def test_either_may_be_given_to_torchs_lambda_lr(schedule):
    rates = torchs(lambda optimizer: lr_scheduler.LambdaLR(optimizer, schedule), 9)
    assert rates == pytest.approx(ours(schedule, 9))


def test_values_by_hand():
    cosine = WarmupCosine(warmup=3, steps=7, floor=0.1)
    high, low = (0.1 + 0.9 * (1 + sign * math.sqrt(0.5)) / 2 for sign in (1, -1))
    assert [cosine(step) for step in range(9)] == pytest.approx([0.25, 0.5, 0.75, 1, high, 0.55, low, 0.1, 0.1])
    decay = WarmupStableDecay(warmup=1, steps=8, decay=4)
    assert [decay(step) for step in range(9)] == pytest.approx([0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])
    no_decay = WarmupStableDecay(warmup=1, steps=4, decay=0)
    assert [no_decay(step) for step in range(4)] == [0.5, 1, 1, 1]
    all_the_way = WarmupStableDecay(warmup=1, steps=5, decay=4, floor=0.5)
    assert [all_the_way(step) for step in range(5)] == [0.5, 1, 0.875, 0.75, 0.625]


@given(st.data())
def test_a_run_rises_peaks_once_falls_and_wastes_no_step(data):
    steps = data.draw(st.integers(1, 60))
    warmup = data.draw(st.integers(0, steps - 1))
    decay = data.draw(st.integers(0, steps - warmup))
    floor = data.draw(st.floats(0, 1))
    for schedule in (WarmupCosine(warmup, steps, floor), WarmupStableDecay(warmup, steps, decay, floor)):
        factors = [schedule(step) for step in range(steps)]
        assert all(0 < factor <= 1 for factor in factors)
        assert factors[warmup] == 1
        assert all(a < b for a, b in zip(factors[:warmup], factors[1 : warmup + 1], strict=True))
        assert all(a >= b for a, b in zip(factors[warmup:], factors[warmup + 1 :], strict=False))
        assert schedule(steps) == schedule(10 * steps) == pytest.approx(floor)


def test_a_longer_run_can_go_on_from_the_plateau():
    short, long = WarmupStableDecay(5, 50, decay=10), WarmupStableDecay(5, 500, decay=100)
    assert [short(step) for step in range(41)] == [long(step) for step in range(41)]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: WarmupCosine(10, 10), "warmup is 10 of 10 steps; it must be shorter than the run."),
        (lambda: WarmupStableDecay(10, 10, 0), "warmup is 10 of 10 steps"),
        (lambda: WarmupStableDecay(3, 10, 8), "more than the run's 10 steps; a decay of up to 7 would fit."),
        (lambda: WarmupCosine(0, 0), "steps is 0; it must be a whole number of at least 1."),
        (lambda: WarmupCosine(-1, 10), "warmup is -1; it must be a whole number of at least 0."),
        (lambda: WarmupCosine(0.01, 10), "warmup is 0.01; it must be a whole number"),
        (lambda: WarmupStableDecay(0, 10, -2), "decay is -2; it must be a whole number"),
        (lambda: WarmupCosine(0, 10, floor=1.5), "floor is 1.5; it is a share of the peak learning rate, from 0 to 1."),
        (lambda: WarmupCosine(0, 10, floor=float("nan")), "floor is nan"),
        (lambda: WarmupCosine(0, 10)(-1), "step is -1; steps are counted from 0."),
        (lambda: WarmupStableDecay(0, 10, 2)(-1), "step is -1; steps are counted from 0."),
    ],
)
def test_numbers_that_make_no_schedule_are_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


# set_lr


def test_one_rate_for_all_groups_or_one_each():
    optimizer = optimizer_of(1.0, 2.0)
    set_lr(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    set_lr(optimizer, [0.1, 0.2])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    with pytest.raises(ValueError, match="3 learning rates for 2 parameter groups"):
        set_lr(optimizer, [0.1, 0.2, 0.3])


def test_a_rate_kept_as_a_tensor_stays_that_tensor():
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    kept = optimizer.param_groups[0]["lr"]
    set_lr(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] is kept
    assert kept == 0.5


def test_a_resumed_run_needs_its_step_and_nothing_else():
    schedule = WarmupCosine(3, 10)

    def run(weight, optimizer, steps):
        for step in steps:
            set_lr(optimizer, PEAK * schedule(step))
            (weight - step).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    whole = torch.nn.Parameter(torch.zeros(1))
    run(whole, torch.optim.AdamW([whole]), range(10))

    part = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([part])
    run(part, optimizer, range(6))
    resumed = torch.nn.Parameter(part.detach().clone())
    again = torch.optim.AdamW([resumed])
    again.load_state_dict(optimizer.state_dict())
    run(resumed, again, range(6, 10))
    assert torch.equal(resumed, whole)
