"""Numbers, comparison and errors for the tests of expert parallelism; float64 everywhere."""

import torch
import torch.distributed as dist

EXACT = 1e-10  # float64: only the order of additions differs


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaf(x):
    """A copy of x that gathers a gradient of its own."""
    return x.detach().clone().requires_grad_()


def same(ours, expected, what="", tolerance=EXACT):
    """Asserts that two tensors are equal."""
    assert ours is not None, f"{what}: there is none"
    assert ours.shape == expected.shape, f"{what}: {tuple(ours.shape)} where {tuple(expected.shape)} is expected"
    error = (ours.detach() - expected.detach()).abs().max() if ours.numel() else 0
    assert error <= tolerance, f"{what}: off by {error}"


def alike(x, what="", group=None):
    """Asserts that all ranks hold the same bits."""
    root = x.detach().clone()
    dist.broadcast(root, group=group, group_src=0)
    assert torch.equal(root, x.detach()), f"{what} differs between ranks"


def all_ranks_sum(x, group=None):
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total


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
