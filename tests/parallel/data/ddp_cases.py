"""A small model with everything in it that data parallelism must get right; trained with it and without."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel

EXACT = 1e-10  # float64: only the order of additions differs
ROWS = 12  # of the global batch: divides by 1, 2, 3 and 4 ranks
SMALL = {"bucket_bytes": 300, "first_bucket_bytes": 60}  # many buckets even for the small model


class Net(nn.Module):
    """Tied embedding and head, a frozen layer, a norm, a scalar; sizes that no number of ranks divides."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.embedding = nn.Embedding(13, 7)
        self.up = nn.Linear(7, 11)
        self.frozen = nn.Linear(11, 11).requires_grad_(False)
        self.norm = nn.LayerNorm(11)
        self.down = nn.Linear(11, 7)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.to(dtype)

    def forward(self, tokens):
        h = torch.tanh(self.up(self.embedding(tokens)))
        return self.head(self.scale * self.down(self.norm(self.frozen(h))))


def seeded(make, seed=0):
    """A module whose values depend on the seed alone."""
    torch.manual_seed(seed)
    return make()


def batch(step, rows=ROWS, seed=100):
    """Tokens (rows, 5) and labels (rows, 5) of a global step: the same on every rank."""
    generator = torch.Generator().manual_seed(seed + step)
    return torch.randint(13, (2, rows, 5), generator=generator).unbind()


def mine(x, group=None):
    """This rank's rows of a global batch."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    return x[len(x) // n * rank : len(x) // n * (rank + 1)]


def loss_of(model, tokens, labels):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def train(model, optimizer="SGD", steps=4, part=lambda x: x, set_to_none=True, loss=loss_of):
    """Train in place. Returns, for each step, [loss, gradients of all parameters], copied."""
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    seen = []
    for step in range(steps):
        value = loss(model, *map(part, batch(step)))
        value.backward()
        seen.append([value.detach(), *gradients(model)])
        optimizer.step()
        optimizer.zero_grad(set_to_none)
    return seen


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def mean_over_ranks(x, group=None):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x / dist.get_world_size(group)


def same(ours, expected, tolerance=EXACT):
    """Asserts that two lists of tensors (or None) are equal."""
    assert len(ours) == len(expected)
    for place, (a, b) in enumerate(zip(ours, expected, strict=True)):
        assert (a is None) == (b is None), f"{place}: {a} where {b} is expected"
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            error = (a - b).abs().max() if a.numel() else 0
            assert error <= tolerance, f"{place}: off by {error}"


def same_parameters(a, b, tolerance=EXACT):
    same([p.detach() for p in a.parameters()], [p.detach() for p in b.parameters()], tolerance)


def same_everywhere(model, group=None):
    """Asserts that all ranks hold the same bits."""
    for name, p in model.named_parameters():
        root = p.detach().clone()
        dist.broadcast(root, group=group, group_src=0)
        assert torch.equal(root, p.detach()), name


def error_of(kind, call, *args, **kwargs):
    """The message of the error that the call must raise."""
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def all_of(cases):
    """What a rank runs: all cases, one after the other."""
    for case in cases:
        case()


def clone(model):
    return copy.deepcopy(model)


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


class Branches(nn.Module):
    """The layers that `use` names, one after the other, and then the last one."""

    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(layers))
        self.last = nn.Linear(3, 1).double()

    def forward(self, x, use):
        for place in use:
            x = torch.tanh(self.layers[place](x))
        return self.last(x)


def rows_of(step, rank):
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)


class Skipping(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, skip):
        return 2 * x if skip else self.layer(x)
