"""Parameters that a backward does not reach, where that was not allowed for: refused with their names."""

import pytest
import torch
import torch.distributed as dist
from ddp_cases import Branches, Skipping, all_of, error_of, gradients, rows_of, same, seeded
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, unused


def no_parameter_behind_an_output():
    """With find_unused=False: the loss of rank 0 passes through an output that leads to none of the parameters.

    All raise here, so that they can go on: the others' losses leave out a parameter.
    """

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

        def forward(self, x):
            return self.a(x), 2 * x, self.b(x)

    rank, model = dist.get_rank(), DistributedDataParallel(seeded(Two))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    a, doubled, _ = model(x)
    message = error_of(RuntimeError, (doubled if rank == 0 else a).sum().backward)
    missed = "`a.weight`, `a.bias`, `b.weight`, `b.bias`" if rank == 0 else "`b.weight`, `b.bias`"
    assert message.startswith(f"rank {rank}'s backward gave no gradient to {missed}, and the other ranks wait for it")
    model.zero_grad()
    a, doubled, b = model(x)
    torch.autograd.grad(a.sum(), x, retain_graph=True)  # reaches no parameter either, and is no mistake
    (a + b + doubled).sum().backward()
    same([model.module.b.bias.grad], [torch.full((1,), 6.0, dtype=torch.float64)])


def what_leads_to_a_parameter():
    """The graph walk: far parameters, frozen ones, a tensor that is no result of anything."""
    far, near, frozen = nn.Linear(3, 3).double(), nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    frozen.requires_grad_(False)
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    out = near(torch.tanh(frozen(far(x))))

    def leads(output, *modules):
        return unused.leads_to_any(output, {id(p) for module in modules for p in module.parameters()})

    assert leads(out, near) and leads(out, far) and leads(out, frozen, far)
    assert not leads(out, frozen) and not leads(far(x), near) and not leads(out.detach() * x, near, far)


def no_gradient_from_a_function():
    """A custom function that returns None for a parameter's gradient."""

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g, None

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept, self.dropped = nn.Linear(3, 3).double(), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return Drop.apply(self.kept(x), self.dropped)

    model = DistributedDataParallel(seeded(Dropping), find_unused=True)
    model(rows_of(0, 0)).sum().backward()
    assert model.module.dropped.grad is None and model.module.kept.bias.grad.sum() == 6
    model = DistributedDataParallel(seeded(Dropping))
    message = error_of(RuntimeError, model(rows_of(0, 0)).sum().backward)
    assert "gave no gradient to `dropped`" in message


def refused_on_all_ranks():
    """The same parameter left out everywhere: everybody is told, and the next step works."""
    rank = dist.get_rank()
    model = DistributedDataParallel(seeded(Branches))
    for _ in range(2):
        message = error_of(RuntimeError, model(rows_of(0, rank), [0, 1, 3]).sum().backward)
        assert message == (
            f"rank {rank}'s backward gave no gradient to `layers.2.weight`, `layers.2.bias`, and the other ranks wait "
            "for it: use every parameter in the loss on every rank, freeze those you do not train before wrapping the "
            "module, or pass find_unused=True"
        )
        model.zero_grad()
        model(torch.ones(2, 3, dtype=torch.float64), [0, 1, 2, 3]).sum().backward()
        single = seeded(Branches)
        single(torch.ones(2, 3, dtype=torch.float64), [0, 1, 2, 3]).sum().backward()
        same(gradients(model), gradients(single))
        model.zero_grad()


CASES = [no_parameter_behind_an_output, what_leads_to_a_parameter, no_gradient_from_a_function, refused_on_all_ranks]


@pytest.mark.parametrize("n", [2, 3])
def test_refused(n):
    spmd.run(all_of, CASES, ranks=n)


def test_a_rank_that_leaves_one_out_is_told_while_the_others_wait():
    def train():
        model = DistributedDataParallel(seeded(Branches))
        model(rows_of(0, dist.get_rank()), [0, 1, 2] + [3] * (dist.get_rank() != 1)).sum().backward()

    with pytest.raises(spmd.RankError) as caught:
        spmd.run(train, ranks=3, timeout=30)
    text = str(caught.value)
    assert text.startswith("Rank 1 raised RuntimeError: rank 1's backward gave no gradient to `layers.3.weight`, ")


def test_a_rank_that_uses_none_at_all_is_told_while_the_others_wait():
    def train():
        model = DistributedDataParallel(Skipping(nn.Linear(3, 3).double()))
        x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        model(x, skip=dist.get_rank() == 1).sum().backward()

    with pytest.raises(spmd.RankError, match="^Rank 1 raised RuntimeError: rank 1's backward gave no gradient to `lay"):
        spmd.run(train, ranks=2, timeout=30)


def test_many_names_are_cut():
    text = unused.refusal([f"p{i}" for i in range(11)], 0)
    assert "`p7` and 3 more, and" in text and "p8" not in text
