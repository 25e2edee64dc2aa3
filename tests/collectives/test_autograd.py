"""Each pair against the gradient of the same computation in one process, in float64.

The computation is written twice: as each rank does it, and as one process does it with all ranks' inputs at hand. The
gradient that counts is that of the sum of all ranks' losses.
"""

import functools

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.collectives import autograd as g

WORLDS = [1, 2, 3, 4]


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves(seed, n, *shape):
    """Inputs of all ranks, for the process that does it all."""
    return [random(seed + rank, *shape).requires_grad_() for rank in range(n)]


def copied(rank, n):
    """All ranks hold x alike and each multiplies it by its own weight."""
    x, weights = random(7, 3, 4).requires_grad_(), [random(50 + peer, 4) for peer in range(n)]
    (g.copy_to(x).mul(weights[rank]).square().sum()).backward()
    alone = random(7, 3, 4).requires_grad_()
    sum((alone * weight).square().sum() for weight in weights).backward()
    return x.grad, alone.grad


def reduced(rank, n):
    """Each rank has a term of a sum; all go on alike, and that is one loss, not n."""
    xs = leaves(10, n, 3, 4)
    mine = random(10 + rank, 3, 4).requires_grad_()
    g.reduce_from(mine * 2).pow(3).sum().backward()
    (sum(xs) * 2).pow(3).sum().backward()
    return mine.grad, xs[rank].grad


def all_gathered(dim):
    def case(rank, n):
        """Each rank goes on with all parts and a weight of its own."""
        xs, weights = leaves(20, n, 2, 3), [random(60 + peer, 2 * n, 3) for peer in range(n)]
        mine = random(20 + rank, 2, 3).requires_grad_()
        weights = [w if dim == 0 else w.view(2, 3 * n) for w in weights]
        g.all_gather(mine, dim).mul(weights[rank]).square().sum().backward()
        sum((torch.cat(xs, dim) * weight).square().sum() for weight in weights).backward()
        return mine.grad, xs[rank].grad

    return case


def reduce_scattered(dim):
    def case(rank, n):
        """Each rank keeps a part of the sum and goes on with it in its own way."""
        xs = leaves(30, n, 2 * n, 3 * n)
        mine = random(30 + rank, 2 * n, 3 * n).requires_grad_()
        (g.reduce_scatter(mine, dim).square() * (rank + 1)).sum().backward()
        sum((part.square() * (peer + 1)).sum() for peer, part in enumerate(sum(xs).chunk(n, dim))).backward()
        return mine.grad, xs[rank].grad

    return case


def scattered_and_gathered(dim):
    def case(rank, n):
        """All hold x alike, each works on its part, all go on alike with the whole: one loss."""
        x, alone = (random(40, 2 * n, 3 * n).requires_grad_() for _ in range(2))
        weight = random(41, 2 * n, 3 * n)
        parts = weight.chunk(n, dim)
        g.gather(g.scatter(x, dim).square() * parts[rank], dim).pow(3).sum().backward()
        (alone.square() * weight).pow(3).sum().backward()
        return x.grad, alone.grad

    return case


def exchanged(rank, n):
    """Rank r sends (r + 2 * peer) % 3 rows to each peer, some none; the receiver weighs what it got."""
    counts = [[(source + 2 * to) % 3 for to in range(n)] for source in range(n)]
    xs = [random(70 + peer, sum(counts[peer]), 2).requires_grad_() for peer in range(n)]
    mine = random(70 + rank, sum(counts[rank]), 2).requires_grad_()
    received = g.all_to_all(mine, counts[rank], [counts[peer][rank] for peer in range(n)])
    (received.square() * (rank + 1)).sum().backward()
    parts = [x.split(count) for x, count in zip(xs, counts, strict=True)]
    sum((parts[source][to].square() * (to + 1)).sum() for source in range(n) for to in range(n)).backward()
    return mine.grad, xs[rank].grad


CASES = {
    "copy_to": copied,
    "reduce_from": reduced,
    "all_gather dim 0": all_gathered(0),
    "all_gather dim 1": all_gathered(1),
    "all_gather dim -1": all_gathered(-1),
    "reduce_scatter dim 0": reduce_scattered(0),
    "reduce_scatter dim 1": reduce_scattered(1),
    "scatter, gather dim 0": scattered_and_gathered(0),
    "scatter, gather dim -1": scattered_and_gathered(-1),
    "all_to_all": exchanged,
}


def run_all_cases():
    rank, n = dist.get_rank(), dist.get_world_size()
    return {name: case(rank, n) for name, case in CASES.items()}


@functools.cache
def results(world):
    return spmd.run(run_all_cases, ranks=world, show=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", WORLDS)
def test_gradient_is_that_of_one_process(world, name):
    for rank, seen in enumerate(results(world)):
        mine, alone = seen[name]
        assert alone is not None and alone.numel() == mine.numel(), f"rank {rank}"
        torch.testing.assert_close(mine, alone, rtol=1e-10, atol=1e-10, msg=lambda text: f"rank {rank}: {text}")  # noqa: B023


def gradients_that_must_survive():
    """Backward is handed a gradient that somebody else holds too, and one that is not contiguous."""
    n = dist.get_world_size()
    calls = {
        "copy_to": (lambda x: g.copy_to(x), (2 * n, 2 * n)),
        "reduce_from": (lambda x: g.reduce_from(x), (2 * n, 2 * n)),
        "all_gather": (lambda x: g.all_gather(x, 1), (2, 2)),
        "reduce_scatter": (lambda x: g.reduce_scatter(x, 1), (2 * n, 2 * n)),
        "scatter": (lambda x: g.scatter(x, 1), (2 * n, 2 * n)),
        "gather": (lambda x: g.gather(x, 1), (2, 2)),
        "all_to_all": (lambda x: g.all_to_all(x, [2] * n, [2] * n), (2 * n, 3)),
    }
    changed = []
    for name, (call, shape) in calls.items():
        x = random(1, *shape[::-1]).t().requires_grad_()  # not contiguous either
        y = call(x)
        grad = random(2 + dist.get_rank(), *y.shape[::-1]).t()
        before = grad.clone()
        y.backward(grad)
        if not torch.equal(grad, before):
            changed.append(name)
    return changed


def test_backward_leaves_its_input_alone():
    assert spmd.run(gradients_that_must_survive, ranks=3, show=False) == [[], [], []]


def refusals():
    said = []
    for call in (
        lambda: g.scatter(torch.ones(4, 10), 1),
        lambda: g.all_to_all(torch.ones(3), [1, 2], [1, 2, 0, 0]),
        lambda: g.all_to_all(torch.ones(3), [1, 1, 0, 0], [1, 1, 0, 0]),
    ):
        with pytest.raises(ValueError) as error:
            call()
        said.append(str(error.value))
    return said


def test_bad_input_is_refused_with_the_numbers():
    assert spmd.run(refusals, ranks=4, show=False)[0] == [
        "scatter over 4 ranks cannot cut dim 1 of (4, 10): 10 is no multiple of 4; pad it to 12",
        "send_counts has 2 numbers and the group 4 ranks: it needs one for each",
        "send_counts [1, 1, 0, 0] add up to 2 rows and x has 3",
    ]
