"""Sharded training is the training of one process: losses and parameters after several steps, on 1 to 4 ranks."""

import cloudpickle
import fsdp_cases
import pytest
import torch
import torch.distributed as dist
from fsdp_cases import SMALL, TIED, alone, nothing, sharded

from course_lib import spmd

CASES = {
    "plain": (SMALL, {}, {}),
    "tied": (TIED, {}, {}),
    "frozen block": (SMALL, {"freeze": "layers.1."}, {}),
    "frozen matrix": (SMALL, {"freeze": "attention.query"}, {}),
    "kept after forward": (SMALL, {}, {"reshard_after_forward": False}),
    "root given up, too": (SMALL, {}, {"reshard_after_forward": True}),
    "nothing ahead of time": (SMALL, {}, {"ahead": 0}),
    "two blocks ahead": (SMALL, {}, {"ahead": 2}),
    "reduced after every micro-batch": (SMALL, {}, {"quiet": nothing}),
}


@pytest.fixture(scope="module", autouse=True)
def by_value():
    cloudpickle.register_pickle_by_value(fsdp_cases)
    yield
    cloudpickle.unregister_pickle_by_value(fsdp_cases)


def all_cases():
    return {name: sharded(config, **both, **options) for name, (config, both, options) in CASES.items()}


def assert_same(found, expected, name):
    (losses, parameters), (right_losses, right_parameters) = found, expected
    for seen, wanted in zip(losses, right_losses, strict=True):
        torch.testing.assert_close(seen, wanted, rtol=0, atol=1e-10, msg=lambda text: f"{name}: {text}")
    assert parameters.keys() == right_parameters.keys()
    for key, wanted in right_parameters.items():
        torch.testing.assert_close(
            parameters[key], wanted, rtol=0, atol=1e-10, msg=lambda text, key=key: f"{name}, {key}: {text}"
        )


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_way_of_sharding_trains_as_one_process_does(n):
    of_ranks = list(spmd.run(all_cases, ranks=n, show=False, timeout=120))
    for name, (config, both, _) in CASES.items():
        expected = alone(config, n, **both)
        for found in of_ranks:
            assert_same(found[name], expected, name)


def replicated():
    rank = dist.get_rank()
    shards = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group, replicate = shards[rank // 2], copies[rank % 2]
    return [sharded(SMALL, group, replicate), sharded(SMALL, group, replicate, quiet=nothing)]


def test_hybrid_sharding_two_groups_that_hold_the_same_shards():
    expected = alone(SMALL, 4)
    for found in spmd.run(replicated, ranks=4, show=False, timeout=120):
        for one in found:
            assert_same(one, expected, "2 x 2")
