"""Buckets while training: gradients are views of them, they are rebuilt once, sent early, and nothing outlives them."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from ddp_cases import (
    Net,
    all_of,
    clone,
    expected_gradients,
    gradients,
    local,
    loss_of,
    mine,
    same,
    same_everywhere,
    seeded,
    wrapped,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel


def recomputed():
    """Layers whose forward runs again inside backward, of both kinds of checkpoint; and the wrapper inside of one."""

    class Deep(nn.Module):
        def __init__(self, reentrant=None):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5).double() for _ in range(4))
            self.reentrant = reentrant

        def forward(self, x):
            for layer in self.layers:
                again = self.reentrant
                x = torch.tanh(layer(x) if again is None else checkpoint(layer, x, use_reentrant=again))
            return x

    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    single = seeded(Deep)
    single(x).square().mean().backward()
    for reentrant in (None, False, True):
        for outer in (None, False, True):
            model = DistributedDataParallel(seeded(lambda r=reentrant: Deep(r)), bucket_bytes=200, first_bucket_bytes=1)
            for _ in range(3):
                out = model(mine(x)) if outer is None else checkpoint(model, mine(x), use_reentrant=outer)
                out.square().mean().backward()
                same(gradients(model), gradients(single))
                model.zero_grad()


def gradients_are_views():
    """After each backward p.grad lies in its bucket, also where zero_grad has set it to None."""
    for set_to_none in (True, False):
        model = wrapped()
        for step in range(3):
            loss_of(model, *local(step)).backward()
            for bucket in model.reducer.buckets:
                place = bucket.flat.data_ptr()
                for p in bucket.parameters:
                    assert p.grad.data_ptr() == place
                    place += p.numel() * p.element_size()
            model.zero_grad(set_to_none)


def rebuilt_in_the_order_of_rank_0():
    """Layers used in another order than they were registered: buckets follow after the first backward, once."""

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False).double() for _ in range(5))

        def forward(self, x):
            order = [3, 1, 0, 2, 4] if dist.get_rank() == 0 else [0, 1, 2, 3, 4]
            for place in order:
                x = self.layers[place](x)
            return x

    model = DistributedDataParallel(seeded(Backwards), bucket_bytes=1, first_bucket_bytes=1)
    place = {id(layer.weight): place for place, layer in enumerate(model.module.layers)}

    def order():
        return [place[id(p)] for bucket in model.reducer.buckets for p in bucket.parameters]

    assert order() == [4, 3, 2, 1, 0]
    x = torch.ones(2, 4, dtype=torch.float64)
    model(x).sum().backward()
    held = gradients(model)
    assert order() == [4, 3, 2, 1, 0]
    model(x)
    assert order() == [4, 2, 0, 1, 3]
    same(gradients(model), held)  # the gradients that were there when the buckets were rebuilt
    rebuilt = model.reducer.buckets
    model(x).sum().backward()
    assert model.reducer.buckets is rebuilt  # once
    same(gradients(model), [2 * g for g in held])
    same_everywhere(model)


def sent_while_backward_runs():
    """When the last gradient is about to come, all buckets but the last are on their way; in any order of use."""
    for options in ({}, {"find_unused": True}):
        model, on_their_way = wrapped(**options), []
        last = model.module.embedding.weight
        for step in range(3):
            with spmd.traffic() as traffic:
                handle = last.register_hook(lambda _, t=traffic, o=on_their_way: o.append(t.calls["all_reduce"]))
                loss_of(model, *local(step)).backward()
                handle.remove()
            model.zero_grad()
        assert len(model.reducer.buckets) > 3
        assert (
            on_their_way[1:] == [len(model.reducer.buckets) - 1] * 2
        )  # rebuilt: the last gradient is in the last bucket


def what_hooks_keep():
    """A wrapper that is dropped goes, and its module trains alone or in another wrapper."""
    module = seeded(Net)
    model = DistributedDataParallel(module)
    loss_of(model, *local(0)).backward()
    gone = weakref.ref(model.reducer)
    del model
    gc.collect()
    assert gone() is None
    assert not any(p._post_accumulate_grad_hooks for p in module.parameters())
    module.zero_grad()
    with spmd.traffic() as traffic:
        loss_of(module, *local(0)).backward()
    assert not traffic.calls
    module.zero_grad()
    again = DistributedDataParallel(module)
    loss_of(again, *local(0)).backward()
    same(gradients(again), expected_gradients(0))
    copied = clone(again.module)
    loss_of(copied, *local(0)).backward()
    single = seeded(Net)
    loss_of(single, *local(0)).backward()
    same(gradients(copied), gradients(single))  # a copy begins without gradients, and reduces none


def a_step_lets_go_of_its_outputs():
    """Not when the garbage collector comes by: until then each step's logits would be held."""
    model, (x, _) = wrapped(), local(0)
    gc.disable()
    try:
        for _ in range(3):
            outputs = model(x)
            gone = weakref.ref(outputs)
            outputs.sum().backward()
            del outputs
            assert gone() is None
    finally:
        gc.enable()


CASES = [
    recomputed,
    gradients_are_views,
    rebuilt_in_the_order_of_rank_0,
    sent_while_backward_runs,
    what_hooks_keep,
    a_step_lets_go_of_its_outputs,
]


@pytest.mark.parametrize("n", [2, 3])
def test_buckets_at_work(n):
    spmd.run(all_of, CASES, ranks=n)
