"""The taught share of an epoch against torch's own sampler, and the endless order against it."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from course_lib.training.data import epoch_share
from course_lib.training.data.order import Order

SIZES = st.integers(1, 60)
RANKS = st.integers(1, 7)
SEEDS = st.integers(0, 10_000)


@given(SIZES, RANKS, SEEDS, st.integers(0, 20))
def test_epoch_share_is_that_of_torchs_sampler(samples, n, seed, epoch):
    for rank in range(n):
        sampler = DistributedSampler(range(samples), num_replicas=n, rank=rank, seed=seed)
        sampler.set_epoch(epoch)
        assert epoch_share(samples, epoch, seed, rank, n) == list(sampler)


@given(SIZES, SEEDS, st.integers(0, 200), st.integers(0, 200))
def test_the_endless_order_is_epoch_after_epoch(samples, seed, start, count):
    epochs = range((start + count) // samples + 1)
    whole = [i for epoch in epochs for i in epoch_share(samples, epoch, seed, 0, 1)]
    assert Order(samples, seed).take(start, count).tolist() == whole[start : start + count]


@given(SIZES, SEEDS, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), max_size=8))
def test_it_depends_on_no_history(samples, seed, spans):
    order = Order(samples, seed)
    for start, count in spans:
        assert torch.equal(order.take(start, count), Order(samples, seed).take(start, count))


def test_epochs_and_seeds_differ():
    orders = {tuple(Order(50, seed).take(epoch * 50, 50).tolist()) for seed in (0, 100) for epoch in range(5)}
    assert len(orders) == 10
    assert all(Counter(order) == Counter(range(50)) for order in orders)


def test_without_a_seed_every_epoch_is_in_the_order_of_the_data():
    assert Order(3, None).take(1, 6).tolist() == [1, 2, 0, 1, 2, 0]


def test_the_global_random_numbers_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Order(100, 1).take(0, 250)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("count", [0, 1])
def test_types(count):
    taken = Order(4, 1).take(0, count)
    assert taken.dtype == torch.int64 and taken.shape == (count,)
