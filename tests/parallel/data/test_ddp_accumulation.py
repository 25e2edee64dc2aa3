"""Which backwards are reduced: no_sync and windows, several forwards and backwards, gradients that others touch."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from ddp_cases import (
    SMALL,
    Net,
    all_of,
    batch,
    clone,
    error_of,
    gradients,
    loss_of,
    mine,
    same,
    same_everywhere,
    seeded,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel


def wrapped(**options):
    return DistributedDataParallel(seeded(Net), **SMALL | options)


def local(step):
    return map(mine, batch(step))


def reductions(call, model):
    """How many all-reduces the call makes, in buckets' worth."""
    with spmd.traffic() as traffic:
        call()
    return traffic.calls["all_reduce"] / len(model.reducer.buckets)


def expected_gradients(*steps, times=1):
    """One process: the sum of the gradients of whole batches."""
    single = seeded(Net)
    for step in steps:
        (times * loss_of(single, *batch(step))).backward()
    return gradients(single)


def windows():
    """Two micro-batches without a reduction, one with it; twice; equal to torch's DDP, and to one process."""
    for options in ({}, {"find_unused": True}):
        model, torchs = wrapped(**options), nn.parallel.DistributedDataParallel(seeded(Net))
        for window in range(3):
            for ddp in (model, torchs):
                ddp.zero_grad()
                with ddp.no_sync():
                    for step in (0, 1):
                        loss_of(ddp, *local(3 * window + step)).backward()
                loss_of(ddp, *local(3 * window + 2)).backward()
            same(gradients(model), gradients(torchs))
            same(gradients(model), expected_gradients(*range(3 * window, 3 * window + 3)))


def no_sync_sends_nothing():
    model = wrapped()

    def quiet():
        with model.no_sync():
            loss_of(model, *local(0)).backward()

    loss_of(model, *local(0)).backward()
    model.zero_grad()
    assert reductions(quiet, model) == 0
    single = seeded(Net)
    loss_of(single, *local(0)).backward()
    same(gradients(model), gradients(single))  # this rank's own
    assert model.reducer.sync


def the_forward_decides():
    """As with torch's: a forward outside no_sync is reduced, wherever its backward runs; one inside is not."""
    model = wrapped()
    loss = loss_of(model, *local(0))
    with model.no_sync():
        loss.backward()
    same(gradients(model), expected_gradients(0))
    model.zero_grad()
    with model.no_sync():
        loss = loss_of(model, *local(0))
    assert reductions(loss.backward, model) == 0
    model.zero_grad()
    with model.no_sync():
        unreduced = loss_of(model, *local(0))
    reduced = loss_of(model, *local(1))
    assert reductions(unreduced.backward, model) <= 1  # may be reduced now or with the next: the sum is the same
    reduced.backward()
    same(gradients(model), expected_gradients(0, 1))


def several_forwards_and_backwards():
    model = wrapped()
    for _ in range(2):  # before and after the rebuild
        model.zero_grad()
        (loss_of(model, *local(0)) + loss_of(model, *local(1))).backward()
        same(gradients(model), expected_gradients(0, 1))
        model.zero_grad()
        first, second = loss_of(model, *local(0)), loss_of(model, *local(1))
        second.backward()
        first.backward()
        same(gradients(model), expected_gradients(0, 1))
        model.zero_grad()
        loss = loss_of(model, *local(0))
        loss.backward(retain_graph=True)
        loss.backward()
        same(gradients(model), expected_gradients(0, times=2))
        loss_of(model, *local(1)).backward()  # no zero_grad in between
        same(gradients(model), added(expected_gradients(0, times=2), expected_gradients(1)))


def added(some, others):
    return [a if a is None else a + b for a, b in zip(some, others, strict=True)]


def touched_gradients():
    """Gradients replaced, set to None or zeroed one by one between two backwards."""
    model = wrapped()
    for _ in range(3):
        loss_of(model, *local(0)).backward()
        parameters = [p for p in model.parameters() if p.requires_grad]
        parameters[0].grad = torch.ones_like(parameters[0])  # someone's own tensor
        parameters[1].grad = None
        parameters[2].grad.zero_()
        parameters[3].grad = parameters[3].grad.clone() * 0
        for p in parameters[4:]:
            p.grad = torch.zeros_like(p)
        loss_of(model, *local(1)).backward()
        expected = [g for g in expected_gradients(1) if g is not None]
        expected[0] = expected[0] + 1
        same([p.grad for p in parameters], expected)
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


def forward_without_gradients():
    """Evaluation between two steps, with and without no_grad, changes nothing and reduces nothing."""
    model = wrapped()
    for step in range(2):
        with torch.no_grad():
            assert reductions(lambda: loss_of(model, *local(7)), model) == 0
        loss = loss_of(model, *local(step))
        model.eval()
        loss_of(model, *local(8))
        model.train()
        loss.backward()
        same(gradients(model), expected_gradients(step))
        model.zero_grad()
        with model.no_sync(), torch.no_grad():
            loss_of(model, *local(7))


def gradient_of_the_input():
    """torch.autograd.grad gives the gradient of an input and reduces nothing; a backward after it is reduced."""
    model = DistributedDataParallel(seeded(lambda: nn.Linear(3, 2).double()))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    out = model(x)

    def penalty():
        torch.autograd.grad(out.sum(), x, create_graph=True)

    assert reductions(penalty, model) == 0
    out.sum().backward()
    assert model.reducer.reductions == 1 and not model.reducer.running


class Broken(RuntimeError):
    pass


def a_backward_that_breaks():
    """On all ranks, at different places; the next step is right, and takes nothing over from the broken one."""
    for set_to_none in (True, False):
        for options in ({}, {"find_unused": True}):
            model, single = wrapped(**options), seeded(Net)
            for step in range(4):
                if step in (1, 2):
                    victims = [p for p in model.parameters() if p.requires_grad]
                    victim = victims[(dist.get_rank() + step) % len(victims)]
                    handle = victim.register_hook(breaks)
                    assert error_of(Broken, loss_of(model, *local(9)).backward) == "in the middle"
                    handle.remove()
                    model.zero_grad(set_to_none)
                for net, data in ((model, local(step)), (single, batch(step))):
                    loss_of(net, *data).backward()
                same(gradients(model), gradients(single))
                model.zero_grad(set_to_none)
                single.zero_grad()


def breaks(_):
    raise Broken("in the middle")


def a_backward_that_breaks_on_one_rank():
    """The others see no mean over fewer ranks: what the broken one owes arrives as NaN. Then all go on."""
    model = wrapped()
    loss_of(model, *local(0)).backward()
    model.zero_grad()
    loss = loss_of(model, *local(0))
    last = model.module.embedding.weight  # its gradient comes last
    if dist.get_rank() == 0:
        handle = last.register_hook(breaks)
        error_of(Broken, loss.backward)
        handle.remove()
    else:
        loss.backward()
        assert last.grad.isnan().all()
    model.zero_grad()
    loss_of(model, *local(1)).backward()
    same(gradients(model), expected_gradients(1))


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
    a_step_lets_go_of_its_outputs,
    windows,
    no_sync_sends_nothing,
    the_forward_decides,
    several_forwards_and_backwards,
    touched_gradients,
    gradients_are_views,
    rebuilt_in_the_order_of_rank_0,
    recomputed,
    forward_without_gradients,
    gradient_of_the_input,
    a_backward_that_breaks,
    sent_while_backward_runs,
    what_hooks_keep,
]


@pytest.mark.parametrize("n", [2, 3])
def test_which_backwards_are_reduced(n):
    spmd.run(all_of, [*CASES, a_backward_that_breaks_on_one_rank], ranks=n)
