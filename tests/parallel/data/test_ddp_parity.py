"""Our DDP equals one process on the whole batch, and torch's DDP: loss, gradients, parameters after several steps.

Ranks are started once for each world size and run all cases.
"""

import pytest
import torch
import torch.distributed as dist
from ddp_cases import (
    OPTIMIZERS,
    SMALL,
    Net,
    all_of,
    batch,
    clone,
    error_of,
    gradients,
    loss_of,
    mean_over_ranks,
    mine,
    same,
    same_everywhere,
    same_parameters,
    seeded,
    train,
)
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, buckets, simple


def one_process():
    for optimizer in OPTIMIZERS:
        for options in ({}, SMALL, SMALL | {"find_unused": True}, SMALL | {"check_every": 1}):
            for set_to_none in (True, False):
                single = seeded(Net)
                expected = train(single, optimizer)
                model = DistributedDataParallel(seeded(Net, dist.get_rank()), **options)  # starts from rank 0's values
                seen = train(model, optimizer, part=mine, set_to_none=set_to_none)
                for (loss, *grads), (expected_loss, *expected_grads) in zip(seen, expected, strict=True):
                    same([mean_over_ranks(loss), *grads], [expected_loss, *expected_grads])
                same_parameters(model, single)
                same_everywhere(model)


def torchs_ddp():
    for options in (SMALL, SMALL | {"find_unused": True}):
        module = seeded(Net)
        torchs = nn.parallel.DistributedDataParallel(clone(module))
        model = DistributedDataParallel(module, **options)
        for ours, theirs in zip(train(model, "AdamW", part=mine), train(torchs, "AdamW", part=mine), strict=True):
            same(ours, theirs)
        same_parameters(model, torchs)


def in_a_group():
    """Ranks 1 .. n - 1 train, counted 0 .. n - 2 in their group; rank 0 looks on."""
    group = dist.new_group(range(1, dist.get_world_size()))
    if dist.get_rank() == 0:
        message = error_of(ValueError, DistributedDataParallel, Net(), group)
        assert message.startswith("rank 0 called a collective of a group it is not in")
        return
    expected = train(seeded(Net, 1))
    model = DistributedDataParallel(seeded(Net, dist.get_rank()), group, **SMALL, find_unused=True, check_every=1)
    seen = train(model, part=lambda x: mine(x, group))
    same([g for _, *grads in seen for g in grads], [g for _, *grads in expected for g in grads])


class Mixed(nn.Module):
    """Parameters of three dtypes, in turns."""

    def __init__(self):
        super().__init__()
        kinds = [torch.float64, torch.float32, torch.bfloat16] * 3
        self.layers = nn.ModuleList(nn.Linear(5, 5, dtype=dtype) for dtype in kinds)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x.double()


def several_dtypes():
    model = DistributedDataParallel(seeded(Mixed), **SMALL)
    assert all(len({p.dtype for p in bucket.parameters}) == 1 for bucket in model.reducer.buckets)
    single = seeded(Mixed)
    for step in range(3):
        x = torch.randn(12, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        model(mine(x)).square().mean().backward()
        single(x).square().mean().backward()
        for p, q in zip(model.parameters(), single.parameters(), strict=True):
            tolerance = {torch.float64: 2e-3, torch.float32: 2e-3, torch.bfloat16: 1e-2}[p.dtype]  # bfloat16 forward
            same([p.grad], [q.grad], tolerance)
        same_everywhere(model)
        model.zero_grad()
        single.zero_grad()


def channels_last():
    """Gradients keep the memory format of their parameters, so fused optimizers take them; the values are right."""
    single = seeded(lambda: nn.Conv2d(3, 5, 3).double()).to(memory_format=torch.channels_last)
    model = DistributedDataParallel(clone(single))
    x = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(mine(x)).square().mean().backward()
    single(x).square().mean().backward()
    same(gradients(model), gradients(single))
    assert model.module.weight.grad.stride() == model.module.weight.stride()


def complex_parameters():
    """A complex parameter is averaged like any other."""
    model = DistributedDataParallel(seeded(lambda: nn.Linear(3, 2, dtype=torch.complex128)))
    single = seeded(lambda: nn.Linear(3, 2, dtype=torch.complex128))
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.complex128)
    model(mine(x)).abs().mean().backward()
    single(x).abs().mean().backward()
    same(gradients(model), gradients(single))


def taught_functions():
    """average_gradients and backward_with_overlap leave the same gradients as the wrapper."""
    model = DistributedDataParallel(seeded(Net), **SMALL)
    loss_of(model, *map(mine, batch(0))).backward()
    naive = seeded(Net)
    loss_of(naive, *map(mine, batch(0))).backward()
    simple.average_gradients(naive.parameters())
    same(gradients(naive), gradients(model))
    overlapped = seeded(Net)
    parameters = [p for p in overlapped.parameters() if p.requires_grad]
    packed = simple.pack_buckets([p.numel() * 8 for p in parameters], 300, 60)
    flats = [buckets.make_bucket([parameters[i] for i in its]) for its in packed]
    assert len(flats) > 2
    simple.backward_with_overlap(loss_of(overlapped, *map(mine, batch(0))), flats)
    same(gradients(overlapped), gradients(model))


ALL = [one_process, torchs_ddp, several_dtypes, channels_last, complex_parameters, taught_functions]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_equal_to_one_process_and_to_torch(n):
    spmd.run(all_of, ALL, ranks=n)


def test_equal_on_3_ranks_and_in_a_group_of_2_of_them():
    spmd.run(all_of, [*ALL, in_a_group], ranks=3)
