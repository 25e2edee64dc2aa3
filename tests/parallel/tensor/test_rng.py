"""Random numbers: alike where data is alike, others on each rank where it is not; the same again when recomputed."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor_cases import alike, all_of, leaf, random, same
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import spmd
from course_lib.parallel.tensor.linear import columns, rows
from course_lib.parallel.tensor.rng import own_randomness
from course_lib.training.recompute import recompute


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def alike_and_not():
    torch.manual_seed(5)
    before = torch.rand(100)
    with own_randomness():
        inside = torch.rand(1000)
    after = torch.rand(100)
    with own_randomness():
        second = torch.rand(1000)
    for x in (before, after):
        alike(x)
    draws = gathered(inside) + gathered(second)
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.15, "two ranks, or two regions, draw alike"


def not_seen_outside():
    """How much a rank draws inside, or that it raises there, does not move the streams of the others."""
    torch.manual_seed(5)
    with own_randomness():
        torch.rand(1 + 100 * dist.get_rank())
    alike(torch.rand(10))
    try:
        with own_randomness():
            torch.rand(dist.get_rank())
            raise KeyError
    except KeyError:
        pass
    alike(torch.rand(10))


def a_state_is_all_there_is():
    """Who restores the default generator, from a checkpoint or before recomputing, has the same numbers again."""
    torch.manual_seed(5)
    torch.rand(3)
    state = torch.get_rng_state()

    def draw():
        with own_randomness():
            inside = torch.rand(50)
        return inside, torch.rand(50)

    first = draw()
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(), strict=True))


def ranks_of_a_group():
    """Counted in the group; ranks outside need not take part."""
    if dist.get_world_size() < 3:
        return
    group = dist.new_group([1, 2])
    if dist.get_rank() in (1, 2):
        torch.manual_seed(5)
        with own_randomness(group=group):
            x = torch.rand(20)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x, group=group)
        assert not torch.equal(*parts)


class Dropping(nn.Module):
    """A feed-forward with dropout on this rank's columns, where ranks differ, and on the result, where they do not."""

    def __init__(self):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        self.up = nn.Parameter(random(2, 24, 6).chunk(n)[rank].clone())
        self.down = nn.Parameter(random(3, 6, 24).chunk(n, 1)[rank].clone())
        self.masks = []

    def forward(self, x):
        (h,) = columns(x, [self.up])
        with own_randomness(h.device):
            h = F.dropout(h, 0.5)
        self.masks.append((h == 0).double())
        return F.dropout(rows(h, self.down), 0.5)


def recomputed():
    """Recomputation draws the masks of forward again, of both kinds, and so finds the same gradients."""
    plain, again = Dropping(), Dropping()
    recompute([again])
    found = []
    for module in (plain, again):
        torch.manual_seed(9)
        x = leaf(random(1, 4, 3, 6))
        module(x).pow(3).sum().backward()
        found.append([x.grad, module.up.grad, module.down.grad, torch.rand(3)])
    for a, b in zip(*found, strict=True):
        same(a, b)
    alike(found[1][0])
    first, second = again.masks
    assert torch.equal(first, second)
    masks = gathered(first)
    assert all(not torch.equal(masks[0], other) for other in masks[1:])
    other = leaf(random(1, 4, 3, 6))
    torch.manual_seed(9)
    checkpoint(Dropping(), other, use_reentrant=True).pow(3).sum().backward()
    same(other.grad, found[0][0])


ALL = [alike_and_not, not_seen_outside, a_state_is_all_there_is, ranks_of_a_group, recomputed]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_streams(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)
