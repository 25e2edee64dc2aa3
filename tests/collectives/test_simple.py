"""The taught versions against values worked out by hand and against torch's own collectives.

Ranks are started once for each world size; they run the whole table of cases and send back what they got.
"""

import functools

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.collectives import simple

WORLDS = [1, 2, 3, 4, 8]
SIZES = [0, 1, 3, 12, 101]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def own(rank, *shape, dtype=torch.float32):
    """This rank's input: small whole numbers, so that every sum is exact in every dtype and order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-8, 8, shape, generator=generator).to(dtype)


def by_torch(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def run_all_cases():
    rank, n = dist.get_rank(), dist.get_world_size()
    seen = {}

    def same(name, mine, expected):
        seen[name] = mine.shape == expected.shape and mine.dtype == expected.dtype and torch.equal(mine, expected)

    for dtype in DTYPES:
        for size in SIZES:
            x = own(rank, size, dtype=dtype)
            before = x.clone()
            same(f"all_reduce {size} {dtype}", simple.all_reduce(x), by_torch(x))
            same(f"naive {size} {dtype}", simple.naive_all_reduce(x), by_torch(x))

            wide = own(rank, n * size, dtype=dtype)
            same(f"reduce_scatter {size} {dtype}", simple.ring_reduce_scatter(wide), by_torch(wide).view(n, size)[rank])
            expected = torch.cat([own(peer, size, dtype=dtype) for peer in range(n)])
            same(f"all_gather {size} {dtype}", simple.ring_all_gather(x), expected)
            same(f"input unchanged {size} {dtype}", x, before)
            for root in range(n):
                mine = own(rank, size, dtype=dtype)
                roots = own(root, size, dtype=dtype)
                same(f"broadcast {size} {dtype} root {root}", simple.tree_broadcast(mine, root), roots)
                same(f"broadcast in place {size} {dtype} root {root}", mine, roots)

    columns = own(rank, 6, 4).t()  # not contiguous
    same("all_reduce, transposed", simple.all_reduce(columns), by_torch(columns.contiguous()))
    strided = own(rank, 4 * n)[::2]
    total = by_torch(strided.contiguous())
    same("reduce_scatter, strided", simple.ring_reduce_scatter(strided), total.view(n, 2)[rank])
    gathered = torch.cat([own(peer, 6)[::2] for peer in range(n)])
    same("all_gather, strided", simple.ring_all_gather(own(rank, 6)[::2]), gathered)
    target = own(rank, 6, 4).t()
    same("broadcast, transposed", simple.tree_broadcast(target, 0), own(0, 6, 4).t())
    return seen


@functools.cache
def results(world):
    return spmd.run(run_all_cases, ranks=world, show=False)


@pytest.mark.parametrize("world", WORLDS)
def test_equals_torch_on_every_rank(world):
    wrong = [(rank, name) for rank, seen in enumerate(results(world)) for name, right in seen.items() if not right]
    assert not wrong
    assert all(len(seen) > 50 for seen in results(world))


def by_hand():
    rank = dist.get_rank()
    x = torch.tensor([1.0, 2, 3, 4, 5, 6]) * 10**rank  # rank 0: units, rank 1: tens, rank 2: hundreds
    return (
        simple.ring_reduce_scatter(x).tolist(),
        simple.ring_all_gather(x[:2]).tolist(),
        simple.all_reduce(x[:4]).tolist(),
        simple.tree_broadcast(x[:2].clone(), root=2).tolist(),
    )


def test_values_by_hand_on_three_ranks():
    scattered, gathered, reduced, broadcast = zip(*spmd.run(by_hand, ranks=3, show=False), strict=True)
    assert scattered == ([111, 222], [333, 444], [555, 666])
    assert gathered == ([1, 2, 10, 20, 100, 200],) * 3
    assert reduced == ([111, 222, 333, 444],) * 3
    assert broadcast == ([100, 200],) * 3


def in_sub_groups():
    """Two groups of a world of four: group ranks 0 and 1 are world ranks 0 and 2, or 1 and 3."""
    rank = dist.get_rank()
    evens = dist.new_group([0, 2])
    odds = dist.new_group([1, 3])
    group, other = (evens, odds) if rank % 2 == 0 else (odds, evens)
    x = torch.tensor([1, 2]) * 10**rank
    try:
        simple.all_reduce(x, other)
    except ValueError as error:
        refused = str(error)
    return (
        simple.all_reduce(x, group).tolist(),
        simple.ring_reduce_scatter(x, group).tolist(),
        simple.ring_all_gather(x, group).tolist(),
        simple.tree_broadcast(x, 1, group).tolist(),
        refused,
    )


def test_ranks_count_within_the_group():
    reduced, scattered, gathered, broadcast, refused = zip(*spmd.run(in_sub_groups, ranks=4, show=False), strict=True)
    assert reduced == ([101, 202], [1010, 2020]) * 2
    assert scattered == ([101], [1010], [202], [2020])
    assert gathered == ([1, 2, 100, 200], [10, 20, 1000, 2000]) * 2
    assert broadcast == ([100, 200], [1000, 2000]) * 2
    assert refused[0] == "rank 0 called a collective of a group it is not in: the group has ranks [1, 3]"


def sizes_that_do_not_divide():
    with pytest.raises(ValueError, match="10 elements cannot be cut into 4 equal chunks"):
        simple.ring_reduce_scatter(torch.zeros(10))


def test_reduce_scatter_refuses_uneven_chunks():
    spmd.run(sizes_that_do_not_divide, ranks=4, show=False)
