"""Parameters that a backward does not reach: found, and averaged with those who did."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from ddp_cases import SMALL, Branches, Skipping, all_of, error_of, gradients, rows_of, same, same_everywhere, seeded
from torch import nn
from torch.autograd.graph import get_gradient_edge

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, unused
from course_lib.parallel.data.simple import average_gradients


def used_by(step, rank):
    """Which layers a rank uses: 0 always, 1 in turns, 2 by rank 0 only, 3 never."""
    return [0] + [1] * ((step + rank) % 2) + [2] * (rank == 0)


def one_process(step, n):
    """The mean of the gradients of all ranks, those without one counted as zero; None where nobody has one."""
    single = seeded(Branches)
    for rank in range(n):
        (single(rows_of(step, rank), used_by(step, rank)).square().mean() / n).backward()
    return gradients(single)


def found():
    rank, n = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(seeded(Branches), find_unused=True, **SMALL)
    torchs = nn.parallel.DistributedDataParallel(seeded(Branches), find_unused_parameters=True)
    for step in range(4):
        for ddp in (model, torchs):
            ddp.zero_grad()
            ddp(rows_of(step, rank), used_by(step, rank)).square().mean().backward()
        same(gradients(model), one_process(step, n))
        same(gradients(model), gradients(torchs))
    assert model.module.layers[3].weight.grad is None


def optimizer_leaves_them_alone():
    """What nobody used has no gradient, so weight decay and momentum leave it; all ranks stay equal."""
    rank = dist.get_rank()
    model = DistributedDataParallel(seeded(Branches), find_unused=True, check_every=1, **SMALL)
    before = model.module.layers[3].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    for step in range(4):
        model(rows_of(step, rank), used_by(step, rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.module.layers[3].weight, before)
    same_everywhere(model)


def used_in_an_earlier_micro_batch():
    """A gradient from no_sync counts, though the backward that reduces does not reach the parameter."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, single = DistributedDataParallel(seeded(Branches), find_unused=True, **SMALL), seeded(Branches)
    for _ in range(2):
        with model.no_sync():
            model(rows_of(0, rank), [0, 1]).sum().backward()
        model(rows_of(1, rank), [0]).sum().backward()
        for other in range(n):
            (single(rows_of(0, other), [0, 1]).sum() / n + single(rows_of(1, other), [0]).sum() / n).backward()
        same(gradients(model), gradients(single))
        model.zero_grad()
        single.zero_grad()


def an_output_without_a_use():
    """The loss leaves out one of two outputs: the engine knows, a walk from the outputs would not."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

        def forward(self, x):
            return self.a(x), self.b(x)

    model = DistributedDataParallel(seeded(Two), find_unused=True)
    a, b = model(rows_of(0, dist.get_rank()))
    (a if dist.get_rank() == 0 else b).sum().backward()
    n = dist.get_world_size()
    same([model.module.a.bias.grad], [torch.full((1,), 2 / n, dtype=torch.float64)])
    same([model.module.b.bias.grad], [torch.full((1,), 2 * (n - 1) / n, dtype=torch.float64)])


def nothing_used_on_one_rank():
    """The loss of rank 0 passes through the module and reaches none of its parameters."""
    n = dist.get_world_size()
    model = DistributedDataParallel(seeded(lambda: Skipping(nn.Linear(3, 3).double())), find_unused=True)
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    model(x, skip=dist.get_rank() == 0).sum().backward()
    same([model.module.layer.bias.grad], [torch.full((3,), 2 * (n - 1) / n, dtype=torch.float64)])


def all_ways_out():
    """Outputs in containers and objects; a loss that comes by none of them; an output that has no graph."""

    @dataclass
    class Output:
        value: torch.Tensor

    class Bag:
        pass

    class Shapes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3).double()

        def forward(self, x, shape):
            y = self.layer(x)
            bag = Bag()
            bag.inside = [y]
            self.kept = y.square()
            return {
                "tuple": (1, y), "dict": {"a": [None, {"b": y}]}, "dataclass": Output(y), "object": bag,
                "kept": x, "nothing": "text",
            }[shape]  # fmt: skip

    def value(out):
        while not isinstance(out, torch.Tensor):
            out = out.value if isinstance(out, Output) else out.inside if isinstance(out, Bag) else out
            out = out["a"] if isinstance(out, dict) and "a" in out else out
            out = out["b"] if isinstance(out, dict) else out[-1] if isinstance(out, list | tuple) else out
        return out

    model = DistributedDataParallel(seeded(Shapes))
    x = rows_of(0, dist.get_rank())
    n = dist.get_world_size()
    expected = torch.full((3,), 2.0, dtype=torch.float64)
    for shape in ("tuple", "dict", "dataclass", "object"):
        value(model(x, shape)).sum().backward()
        same([model.module.layer.bias.grad], [expected])
        model.zero_grad()
    model(x, "kept")
    kept = model.module.kept
    with torch.no_grad():
        model(x, "kept")
    kept.sum().backward()
    total = sum((2 * nn.functional.linear(rows_of(0, r), *model.module.parameters())).sum(0) for r in range(n)) / n
    same([model.module.layer.bias.grad], [total.detach()])
    message = error_of(TypeError, model, x, "nothing")
    assert message.startswith("the module's forward returned a str in which no tensor was found")


def averaged_by_hand():
    """average_gradients counts a missing gradient as zero, so that all ranks take part in the same all-reduces."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = seeded(Branches)
    model(rows_of(0, rank), used_by(0, rank)).square().mean().backward()
    average_gradients(model.parameters())
    expected = one_process(0, n)
    pairs = zip(model.parameters(), expected, strict=True)
    same(gradients(model), [torch.zeros_like(p) if g is None else g for p, g in pairs])


def unused_ones_hold_nobody_up():
    """A layer that nobody uses is first in line: buckets behind it are sent while backward runs."""
    one_each = {"bucket_bytes": 1, "first_bucket_bytes": 1}
    model, on_their_way = DistributedDataParallel(seeded(Branches), find_unused=True, **one_each), []
    with spmd.traffic() as traffic:
        model.module.layers[0].weight.register_hook(lambda _: on_their_way.append(traffic.calls["all_reduce"]))
        model(rows_of(0, 0), [0, 1]).sum().backward()
    assert on_their_way[0] >= 10 - 2  # of ten buckets all but the two of layer 0


def the_engine_agrees_with_a_walk():
    """Which accumulators a backward visits: the engine's answer, and the obvious way to find it."""
    model = seeded(Branches)
    nodes = unused.accumulators(list(model.parameters()))
    for use in ([], [0], [1, 3], [0, 1, 2, 3]):
        out = model(rows_of(0, 0), use).sum()
        answers = []
        out.register_hook(lambda _, answers=answers: answers.append(unused.unreached(nodes)))
        reached, todo = set(), [get_gradient_edge(out).node]
        while todo:
            node = todo.pop()
            if node is not None and node not in reached:
                reached.add(node)
                todo += [following for following, _ in node.next_functions]
        out.backward()
        assert answers == [[index for index, node in enumerate(nodes) if node not in reached]]


CASES = [
    found,
    optimizer_leaves_them_alone,
    used_in_an_earlier_micro_batch,
    an_output_without_a_use,
    nothing_used_on_one_rank,
    all_ways_out,
    averaged_by_hand,
    unused_ones_hold_nobody_up,
    the_engine_agrees_with_a_walk,
]


@pytest.mark.parametrize("n", [2, 3])
def test_parameters_left_out(n):
    spmd.run(all_of, CASES, ranks=n)
