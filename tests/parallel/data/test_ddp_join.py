"""Ranks with different numbers of batches: against torch's Join, and against sums worked out by one process."""

import pytest
import torch
import torch.distributed as dist
from ddp_cases import OPTIMIZERS, SMALL, Net, all_of, batch, error_of, gradients, loss_of, same, same_everywhere, seeded
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, PowerSGD


def inputs(rank):
    """Rank r has 2 r + 1 batches: rank 0 ends first, the last rank is alone for its last two."""
    return [batch(10 * rank + step, rows=2) for step in range(2 * rank + 1)]


def with_torchs():
    """Parameters after the join, for both divisors, with and without find_unused; rank 0 or the last runs longest."""
    for by_initial in (True, False):
        for find_unused in (False, True):
            number = dist.get_rank() if find_unused else dist.get_world_size() - 1 - dist.get_rank()
            ours = DistributedDataParallel(seeded(Net), find_unused=find_unused, check_every=1, **SMALL)
            torchs = nn.parallel.DistributedDataParallel(seeded(Net), find_unused_parameters=find_unused)
            for model in (ours, torchs):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                with model.join(divide_by_initial_world_size=by_initial):
                    for tokens, labels in inputs(number):
                        loss_of(model, tokens, labels).backward()
                        optimizer.step()
                        optimizer.zero_grad()
            same([p.detach() for p in ours.parameters()], [p.detach() for p in torchs.parameters()])
            same_everywhere(ours)
            assert ours.reducer.divisor == dist.get_world_size()


def one_process(n, by_initial, optimizer):
    single = seeded(Net)
    optimizer = OPTIMIZERS[optimizer](single.parameters())
    for step in range(2 * n - 1):
        active = [rank for rank in range(n) if step < len(inputs(rank))]
        for rank in active:
            (loss_of(single, *inputs(rank)[step]) / (n if by_initial else len(active))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return single, optimizer


def every_optimizer_takes_every_step():
    """With `step`, momenta stay equal too, so that a second epoch begins on all ranks alike."""
    for name in OPTIMIZERS:
        for by_initial in (True, False):
            for find_unused in (False, True):
                model = DistributedDataParallel(seeded(Net), find_unused=find_unused, **SMALL)
                optimizer = OPTIMIZERS[name](model.parameters())

                def step(optimizer=optimizer):
                    optimizer.step()
                    optimizer.zero_grad()

                with model.join(divide_by_initial_world_size=by_initial, step=step):
                    for tokens, labels in inputs(dist.get_rank()):
                        loss_of(model, tokens, labels).backward()
                        step()
                single, expected = one_process(dist.get_world_size(), by_initial, name)
                same([p.detach() for p in model.parameters()], [p.detach() for p in single.parameters()])
                for p, q in zip(model.parameters(), single.parameters(), strict=True):
                    mine, theirs = optimizer.state.get(p, {}), expected.state.get(q, {})
                    same(list(map(torch.as_tensor, mine.values())), list(map(torch.as_tensor, theirs.values())))


def windows_and_evaluation():
    """Micro-batches in no_sync, and forwards without gradients, are not shadowed as reductions."""
    rank = dist.get_rank()
    model, torchs = DistributedDataParallel(seeded(Net), **SMALL), nn.parallel.DistributedDataParallel(seeded(Net))
    for ddp in (model, torchs):
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join():
            for window in range(rank + 1):
                with ddp.no_sync():
                    loss_of(ddp, *batch(100 * rank + 2 * window, rows=2)).backward()
                loss_of(ddp, *batch(100 * rank + 2 * window + 1, rows=2)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if ddp is model:
                    with torch.no_grad():
                        loss_of(ddp, *batch(0, rows=2))
    same([p.detach() for p in model.parameters()], [p.detach() for p in torchs.parameters()])


def buffers_inside():
    """Buffers are broadcast while some ranks are done, and equal those of a rank that ran longest at the end."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.BatchNorm1d(2).double())
    with model.join():
        for step in range(rank + 1):
            x = torch.full((3, 2), float(rank + step), dtype=torch.float64)
            model(x).sum().backward()
    count = model.module.num_batches_tracked
    assert count == 2 if n > 1 else 1  # rank 0 counted one and was done; each forward of others begins with its 1
    same_everywhere(model)


def rank_0_without_input():
    """Rank 0 shadows from the first step on, also the order of the rebuilt buckets, which it broadcasts."""
    model = DistributedDataParallel(seeded(Net), **SMALL)
    with model.join(divide_by_initial_world_size=False):
        for step in range(3 * (dist.get_rank() > 0)):
            loss_of(model, *batch(step, rows=2)).backward()
            if step < 2:
                model.zero_grad()
    single = seeded(Net)
    loss_of(single, *batch(2, rows=2)).backward()
    if dist.get_rank():
        same(gradients(model), gradients(single))


def with_a_hook():
    """A hook divides by all ranks; the mean over those that still have input comes out nevertheless."""
    model = DistributedDataParallel(seeded(Net), hook=PowerSGD(start_step=100), **SMALL)
    rank, n = dist.get_rank(), dist.get_world_size()
    with model.join(divide_by_initial_world_size=False):
        for step in range(1 + (rank == n - 1)):
            model.zero_grad()
            loss_of(model, *batch(step, rows=2)).backward()
    single = seeded(Net)
    loss_of(single, *batch(1, rows=2)).backward()
    if rank == n - 1:
        same(gradients(model), gradients(single))


def misuse():
    model = DistributedDataParallel(seeded(Net))
    data = batch(0, rows=2)

    def nested():
        with model.join(), model.join():
            pass

    def two_forwards():
        with model.join():
            model(data[0])
            model(data[0])

    def two_backwards():
        with model.join():
            loss = loss_of(model, *data)
            loss.backward(retain_graph=True)
            loss.backward()

    assert error_of(RuntimeError, nested) == "this module is inside a join already: leave it first"
    why = " inside join: ranks that have run out shadow exactly one for each forward outside no_sync"
    assert error_of(RuntimeError, two_forwards) == "1 backward too few" + why
    model.zero_grad()
    assert error_of(RuntimeError, two_backwards) == "1 backward too many" + why
    model.zero_grad()
    loss_of(model, *data).backward()
    single = seeded(Net)
    loss_of(single, *data).backward()
    same(gradients(model), gradients(single))


def an_error_inside():
    """It comes out as it is, and nobody waits for shadows."""
    model = DistributedDataParallel(seeded(Net))

    def fails():
        with model.join():
            loss_of(model, *batch(0, rows=2)).backward()
            raise KeyError("mine")

    assert error_of(KeyError, fails) == "'mine'"
    loss_of(model, *batch(1, rows=2)).backward()


CASES = [
    with_torchs,
    every_optimizer_takes_every_step,
    windows_and_evaluation,
    buffers_inside,
    rank_0_without_input,
    with_a_hook,
    misuse,
    an_error_inside,
]


@pytest.mark.parametrize("n", [2, 3])
def test_uneven_inputs(n):
    spmd.run(all_of, CASES, ranks=n)
