"""Compression: against torch's hooks where the numbers can be the same; else by what must hold of them."""

import pytest
import torch
import torch.distributed as dist
from ddp_cases import SMALL, Net, all_of, batch, error_of, gradients, loss_of, mean_over_ranks, mine, same, seeded
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, PowerSGD, bf16
from course_lib.parallel.data.buckets import make_bucket
from course_lib.parallel.data.compress import bf16_compress, power_sgd_round


def bytes_sent(call):
    with spmd.traffic() as traffic:
        call()
    return traffic.collective_bytes["all_reduce"]


def torchs_bf16(state, bucket):
    """By its own name torch refuses to register it without NCCL; it runs on gloo nevertheless."""
    return default_hooks.bf16_compress_hook(state, bucket)


def half_the_bytes():
    """As torch's bf16_compress_hook, on 2 ranks to the bit; a third is rounded elsewhere. Gradients are about 1."""
    n = dist.get_world_size()
    ours = DistributedDataParallel(seeded(lambda: Net(torch.float32)), hook=bf16)
    torchs = nn.parallel.DistributedDataParallel(seeded(lambda: Net(torch.float32)))
    torchs.register_comm_hook(None, torchs_bf16)
    for step in range(3):
        for model in (ours, torchs):
            model.zero_grad()
            loss_of(model, *map(mine, batch(step))).backward()
        same(gradients(ours), gradients(torchs), 0 if n == 2 else 1e-2)
    single = seeded(lambda: Net(torch.float32))
    loss_of(single, *batch(2)).backward()
    same(gradients(ours), gradients(single), 1e-2)
    elements = sum(p.numel() for p in ours.parameters() if p.requires_grad)
    assert bytes_sent(lambda: loss_of(ours, *map(mine, batch(0))).backward()) == 2 * elements


def bf16_waits_for_nothing():
    flat = torch.full((5,), 1.0 + dist.get_rank())
    finish = bf16_compress(flat)
    assert flat.tolist() == [1.0 + dist.get_rank()] * 5
    finish()
    assert flat.tolist() == [(dist.get_world_size() + 1) / 2] * 5


class Matrices(nn.Module):
    """Two matrices worth compressing, one in four dimensions, one too small, vectors."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 30), nn.Linear(30, 16)
        self.kernel = nn.Parameter(torch.randn(16, 4, 2, 2))
        self.small = nn.Linear(2, 2)
        self.double()

    def forward(self, x):
        h = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.small((h @ self.kernel.flatten(1))[:, :2])


def sample(step, rows=4):
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(rows, 20, generator=generator, dtype=torch.float64)


def backward(model, step):
    model(sample(step)).square().mean().backward()


def true_mean(model, step):
    """What an exact reduction would give, from the same parameters."""
    single = seeded(Matrices)
    single.load_state_dict(model.state_dict())
    backward(single, step)
    return [mean_over_ranks(g) for g in gradients(single)]


def matrix_by_matrix():
    """The hook's means, errors and q are those of the taught round, bucket for bucket and step after step."""
    hook = PowerSGD(rank=2, start_step=1, min_compression=1.5)
    model = DistributedDataParallel(seeded(Matrices), hook=hook, bucket_bytes=3000, first_bucket_bytes=500)
    parameters = dict(model.named_parameters())
    compressed = [name for name, p in parameters.items() if hook.compresses(p)]
    assert compressed == ["kernel", "a.weight", "b.weight"]
    backward(model, 0)
    same(gradients(model), true_mean(model, 0))  # before start_step
    errors, qs = {}, {}
    for step in range(1, 5):
        model.zero_grad()
        backward(model, step)
        single = seeded(Matrices)
        single.load_state_dict(model.state_dict())
        backward(single, step)
        for name, p in single.named_parameters():
            theirs = parameters[name]
            if name in compressed:
                matrix = p.grad.flatten(1)
                generator = torch.Generator().manual_seed(0)
                first = torch.randn(matrix.shape[1], 2, generator=generator, dtype=torch.float64)
                mean, errors[name], qs[name] = power_sgd_round(
                    matrix, errors.get(name, torch.zeros_like(matrix)), qs.get(name, first)
                )
                same([theirs.grad.flatten(1), hook.errors[theirs], hook.qs[theirs]], [mean, errors[name], qs[name]])
            else:
                same([theirs.grad], [mean_over_ranks(p.grad)])
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


def full_rank_is_exact():
    """With as many columns as the matrix nothing is left out: ours, torch's and the mean are equal."""
    ours = DistributedDataParallel(seeded(Matrices), hook=PowerSGD(rank=32, start_step=0, min_compression=1e-3))
    torchs = nn.parallel.DistributedDataParallel(seeded(Matrices))
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=32, start_powerSGD_iter=2, min_compression_rate=1e-3
    )
    torchs.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(4):
        for model in (ours, torchs):
            model.zero_grad()
            backward(model, step)
        same(gradients(ours), true_mean(ours, step))
        same(gradients(ours), gradients(torchs), 1e-8)
    for error in ours.reducer.hook.errors.values():  # each rank keeps what parts it from the mean; together, nothing
        same([mean_over_ranks(error)], [torch.zeros_like(error)])


def fewer_bytes():
    model = DistributedDataParallel(seeded(Matrices), hook=PowerSGD(rank=1, start_step=0))
    whole = sum(p.numel() for p in model.parameters() if not model.reducer.hook.compresses(p))
    thin = sum(p.shape[0] + p[0].numel() for p in model.parameters() if model.reducer.hook.compresses(p))
    assert bytes_sent(lambda: backward(model, 0)) == 8 * (whole + thin)


def nothing_is_lost():
    """Error feedback: what was sent over many steps of one gradient adds up to it, though each step sends rank 1."""
    hook = PowerSGD(rank=1, start_step=0)
    model = DistributedDataParallel(seeded(Matrices), hook=hook)
    weight = model.module.a.weight
    steps, total = 60, torch.zeros_like(weight)
    for _ in range(steps):
        model.zero_grad()
        backward(model, 7)
        total += weight.grad
    mean = true_mean(model, 7)[list(dict(model.named_parameters())).index("a.weight")]
    once = (weight.grad - mean).norm() / mean.norm()
    on_average = (total / steps - mean).norm() / mean.norm()
    assert on_average < 0.1 < once
    left = mean_over_ranks(hook.errors[weight])
    same([total + left], [steps * mean], 1e-8)  # all that was not sent yet is in the errors


def a_rank_1_gradient_is_found():
    """A mean that is a product of two vectors is sent exactly by one column of each."""
    hook = PowerSGD(rank=1, start_step=0)
    a = torch.arange(1.0, 9.0, dtype=torch.float64)
    p = nn.Parameter(torch.zeros(8, 8, dtype=torch.float64))
    bucket = make_bucket([p])
    p.grad.copy_(torch.outer(a, a.flip(0)))
    expected = p.grad.clone()
    hook(bucket)()
    same([p.grad], [expected], 1e-9)


def half_precision():
    """bfloat16 matrices: compressed in float32, and given back in their own dtype."""
    model = DistributedDataParallel(
        nn.Linear(16, 16, dtype=torch.bfloat16), hook=PowerSGD(rank=16, start_step=0, min_compression=0.1)
    )
    model(torch.ones(2, 16, dtype=torch.bfloat16) * (1 + dist.get_rank())).sum().backward()
    expected = (1 + dist.get_world_size()) * torch.ones(16, 16)
    same([model.module.weight.grad.float()], [expected], 0.02)
    assert model.reducer.hook.errors[model.module.weight].dtype == torch.float32


def trains_like_without():
    """A student learns a teacher's outputs; with rank 1 the loss falls about as far as without compression."""
    teacher = seeded(Matrices, 1)
    losses = []
    for hook in (None, PowerSGD(rank=1, start_step=3, min_compression=1)):
        model = DistributedDataParallel(seeded(Matrices), hook=hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(60):
            x = sample(step % 4)
            loss = (model(x) - teacher(x).detach()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses += [float(mean_over_ranks(loss.detach()))] if step in (0, 59) else []
    start, exact, _, compressed = losses
    assert exact < 0.1 * start and compressed < 0.1 * start, losses


def after_a_break():
    """A backward that breaks forgets the errors it can no longer trust; the next one is finite."""
    hook = PowerSGD(rank=2, start_step=0, min_compression=0.5)
    model = DistributedDataParallel(seeded(Net), hook=hook, **SMALL)
    handle = model.module.embedding.weight.register_hook(_breaks)
    error_of(ZeroDivisionError, loss_of(model, *map(mine, batch(0))).backward)
    handle.remove()
    model.zero_grad()
    loss_of(model, *map(mine, batch(0))).backward()
    assert all(g is None or g.isfinite().all() for g in gradients(model))
    assert all(error.isfinite().all() for error in hook.errors.values()) and hook.errors


def that_returns_no_function():
    """As torch's hooks, which return a future, and as one that forgot its return. The next step is told the same."""

    def forgot(bucket, group):
        dist.all_reduce(bucket.flat)

    def future(bucket, group):
        return dist.all_reduce(bucket.flat, async_op=True).get_future()

    for hook, what in ((forgot, "None"), (future, "a Future")):
        model = DistributedDataParallel(nn.Linear(2, 2).double(), hook=hook)
        message = error_of(TypeError, model(torch.ones(1, 2, dtype=torch.float64)).sum().backward)
        assert message == (
            f"the hook that_returns_no_function.<locals>.{hook.__name__} returned {what}: it must return a function "
            "without arguments that waits and leaves the mean over the group in bucket.flat"
        )
        assert "must return a function" in error_of(TypeError, model, torch.ones(1, 2, dtype=torch.float64))


def _breaks(_):
    raise ZeroDivisionError


CASES = [
    half_the_bytes,
    bf16_waits_for_nothing,
    matrix_by_matrix,
    full_rank_is_exact,
    fewer_bytes,
    nothing_is_lost,
    a_rank_1_gradient_is_found,
    half_precision,
    trains_like_without,
    after_a_break,
    that_returns_no_function,
]


@pytest.mark.parametrize("n", [2, 3])
def test_hooks(n):
    spmd.run(all_of, CASES, ranks=n)


@pytest.mark.parametrize("bad", [{"rank": 0}, {"start_step": -1}, {"min_compression": 0}])
def test_powersgd_says_what_it_needs(bad):
    with pytest.raises(ValueError, match="it needs rank 1 or more, start_step 0 or more, and min_compression above 0"):
        PowerSGD(**bad)
