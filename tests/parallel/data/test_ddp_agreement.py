"""What ranks must agree on: the module they wrap, its values at the start, buffers, values later on."""

import pytest
import torch
import torch.distributed as dist
from ddp_cases import SMALL, Net, all_of, batch, error_of, gradients, loss_of, mine, same, seeded
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_lib import spmd
from course_lib.parallel.data import DistributedDataParallel, PowerSGD, agreement, bf16


def refusal(make, **options):
    return error_of(ValueError, lambda: DistributedDataParallel(make(), **options))


def odd(value, usual, ranks=(1,)):
    """`value` on some ranks, `usual` on the others."""
    return value if dist.get_rank() in ranks else usual


def modules_that_differ():
    n = dist.get_world_size()
    start = "the ranks did not wrap the same module: rank 0 has "
    end = ". Build the module from the same configuration, in the same order, on every rank"
    trained = "float32, trained"
    text = refusal(lambda: nn.Linear(3, odd(5, 4, [n - 1])))
    assert text == f"{start}`weight` (4, 3) {trained} where rank {n - 1} has `weight` (5, 3) {trained}{end}"
    text = refusal(lambda: nn.Linear(3, 4, bias=odd(False, True)))
    assert text == f"{start}`bias` (4,) float32, trained where rank 1 has nothing{end}"
    text = refusal(lambda: nn.Linear(3, 4, bias=odd(True, False)))
    assert text == f"{start}nothing where rank 1 has `bias` (4,) float32, trained{end}"
    text = refusal(lambda: nn.Linear(3, 4, dtype=odd(torch.float64, torch.float32)))
    assert "rank 1 has `weight` (4, 3) float64, trained" in text
    text = refusal(lambda: nn.Linear(3, 4).requires_grad_(odd(False, True)))
    assert f"`weight` (4, 3) float32, trained where rank 1 has `weight` (4, 3) float32{end}" in text
    names = {"b": nn.Linear(1, 1), "a": nn.Linear(1, 1)}
    text = refusal(lambda: nn.ModuleDict(odd(names, dict(sorted(names.items())))))
    assert "rank 0 has `a.weight` (1, 1) float32, trained where rank 1 has `b.weight` (1, 1)" in text
    text = refusal(lambda: nn.Conv2d(2, 2, 3).to(memory_format=odd(torch.channels_last, torch.contiguous_format)))
    assert "rank 1 has `weight` (2, 2, 3, 3) float32, trained, strides (18, 1, 6, 2)" in text
    text = refusal(lambda: nn.BatchNorm1d(3, track_running_stats=odd(False, True)))
    assert "rank 0 has `running_mean` (3,) float32 where rank 1 has nothing" in text
    others = list(range(1, n))
    text = refusal(lambda: nn.Linear(2, 2 + dist.get_rank()))
    assert "where rank 1 has `weight` (3, 2)" in text
    assert n == 2 or "where rank 1 has `weight` (3, 2) float32, trained, and rank 2 something else. " in text
    text = refusal(lambda: nn.Linear(2, odd(3, 2, others)))
    has = "rank 1 has" if n == 2 else f"ranks {', '.join(map(str, others))} have"
    assert f"where {has} `weight` (3, 2) float32" in text


def settings_that_differ():
    for options, text in (
        ({"bucket_bytes": odd(10, 20)}, "rank 0 has bucket_bytes: 20 where rank 1 has bucket_bytes: 10"),
        ({"find_unused": odd(True, False)}, "rank 0 has find_unused: False where rank 1 has find_unused: True"),
        ({"check_every": odd(1, 0)}, "rank 0 has check_every: 0 where rank 1 has check_every: 1"),
        ({"hook": odd(PowerSGD(2), PowerSGD(1))}, "rank 0 has hook: PowerSGD(1, 1000, 2.0, 0) where rank 1"),
        ({"hook": odd(bf16, None)}, "rank 0 has hook: None where rank 1 has hook: <function bf16"),
    ):
        assert text in refusal(lambda: nn.Linear(2, 2), **options)
    DistributedDataParallel(nn.Linear(2, 2), hook=PowerSGD(1))


def what_cannot_be_wrapped():
    assert refusal(lambda: nn.Linear(2, 2).requires_grad_(False)) == (
        "none of the module's 2 parameters has requires_grad: without any to train, use it as it is, unwrapped"
    )
    assert refusal(nn.ReLU).startswith("none of the module's 0 parameters")
    assert refusal(lambda: nn.Sequential(nn.Embedding(3, 2, sparse=True))) == (
        "`0.weight` will have sparse gradients, and buckets are dense: build `0` with sparse=False"
    )
    assert refusal(lambda: nn.LazyLinear(3)).startswith("`weight` has no shape yet: run one forward")
    assert refusal(lambda: nn.Linear(2, 2, device="meta")).startswith("`weight` is on the meta device")
    assert refusal(lambda: nn.Linear(2, 2), bucket_bytes=0).startswith("bucket_bytes is 0, ")
    assert refusal(lambda: nn.Linear(2, 2), check_every=-1).endswith("and check_every 0 (never) or more")
    from torch.distributed.tensor import DeviceMesh, distribute_tensor

    mesh = DeviceMesh("cpu", range(dist.get_world_size()))
    sharded = nn.Linear(2, 2)
    sharded.weight = nn.Parameter(distribute_tensor(sharded.weight.detach(), mesh))
    assert refusal(lambda: sharded) == (
        "`weight` is a DTensor, of which a rank may hold a part only: wrap modules of plain tensors"
    )


def gradients_that_cannot_be_reduced():
    model = DistributedDataParallel(nn.Linear(2, 2))
    text = error_of(RuntimeError, model(torch.ones(1, 2)).square().sum().backward, create_graph=True)
    assert text == "the gradient of `bias` has a graph: backward(create_graph=True) works in no_sync only"
    model.zero_grad()
    with model.no_sync():
        model(torch.ones(1, 2)).square().sum().backward(create_graph=True)
    model.zero_grad()

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.embedding(x, self.weight, sparse=True)

    model = DistributedDataParallel(Rows())
    text = error_of(RuntimeError, model(torch.tensor([1])).sum().backward)
    assert text == "the gradient of `weight` is sparse, and buckets are dense: build its module with sparse=False"


def thawed_later():
    model = DistributedDataParallel(Net())
    model.module.frozen.bias.requires_grad_(True)
    text = error_of(RuntimeError, model, batch(0)[0])
    assert text.startswith("`frozen.bias` was frozen when the module was wrapped and is trained now")


class Everything(nn.Module):
    """Parameters and buffers of all kinds of dtype, one of them not saved; some share memory, some hold nothing."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2))
        self.bf16 = nn.Parameter(torch.randn(5, dtype=torch.bfloat16), requires_grad=False)
        self.empty = nn.Parameter(torch.randn(0, 4))
        self.scalar = nn.Parameter(torch.randn(()))
        self.register_buffer("count", torch.randint(1000, ()))
        self.register_buffer("flags", torch.rand(7) > 0.5)
        self.register_buffer("phases", torch.randn(4, dtype=torch.complex64), persistent=False)
        self.register_buffer("eighth", torch.randn(6).to(torch.float8_e4m3fn))
        self.register_buffer("turned", torch.randn(3, 4).t())
        self.register_buffer("none", None)

    def forward(self, x):
        return (self.w * x).sum() * self.scalar + self.empty.sum()


def equal_from_the_start():
    before, agreement.BROADCAST_BYTES = agreement.BROADCAST_BYTES, 16  # several batches
    model = seeded(Everything, dist.get_rank())
    expected = seeded(Everything)
    DistributedDataParallel(model)
    agreement.BROADCAST_BYTES = before
    for ours, theirs in zip(tensors_of(model), tensors_of(expected), strict=True):
        assert torch.equal(ours, theirs)
    assert model.turned.stride() == expected.turned.stride()


def tensors_of(model):
    tensors = [*model.parameters(), *model.buffers()]
    return [x.float() if x.dtype == torch.float8_e4m3fn else x for x in tensors]


def an_empty_parameter():
    model = DistributedDataParallel(seeded(Everything))
    model(dist.get_rank()).backward()
    mean = (dist.get_world_size() - 1) / 2 * model.module.scalar.detach()
    same([model.module.w.grad], [mean * torch.ones(3, 2)], 1e-6)
    assert model.module.empty.grad.shape == (0, 4)


class Counting(nn.Module):
    """Replaces one buffer and changes another in place at each forward, differently on each rank."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("changed", torch.zeros(2, dtype=torch.int64))

    def forward(self, x):
        self.seen = self.replaced, self.changed.clone()
        self.replaced = self.replaced + 1 + dist.get_rank()
        self.changed += 1 + dist.get_rank()
        return self.w * x


def buffers_at_each_forward():
    """Each forward begins with rank 0's buffers; in no_sync, or with broadcast_buffers=False, with its own."""
    rank = dist.get_rank()
    for broadcast in (True, False):
        model = DistributedDataParallel(Counting(), broadcast_buffers=broadcast)
        for step in range(3):
            model(1).sum().backward()
            assert model.module.seen[0].tolist() == [step * (1 if broadcast else 1 + rank)] * 2
            assert model.module.seen[1].tolist() == model.module.seen[0].tolist()
        with model.no_sync():
            model(1)
            assert model.module.seen[0].tolist() == [2 + 1 + rank if broadcast else 3 * (1 + rank)] * 2
    module = nn.BatchNorm1d(3)
    ours, torchs = DistributedDataParallel(module), nn.parallel.DistributedDataParallel(nn.BatchNorm1d(3))
    for step in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
        for model in (ours, torchs):
            model(x).square().sum().backward()
        same(list(ours.module.buffers()), list(torchs.module.buffers()), 0)


def values_that_drift():
    rank, n = dist.get_rank(), dist.get_world_size()
    for every in (1, 3):
        model = DistributedDataParallel(seeded(Net), check_every=every, **SMALL)
        for step in range(4):
            loss_of(model, *map(mine, batch(step))).backward()
            model.zero_grad()
        odd_rank = n - 1
        with torch.no_grad():
            if rank == odd_rank:
                model.module.norm.bias[3] += 1e-9
                model.module.down.bias[0] = -0.0 * model.module.down.bias[0]
        for _ in range({1: 0, 3: 2}[every]):  # the next check comes after reduction 4, or 6
            loss_of(model, *map(mine, batch(0))).backward()
        text = error_of(RuntimeError, loss_of, model, *map(mine, batch(0)))
        assert text.startswith(
            f"the parameters have drifted apart: rank {odd_rank} has other values in `norm.bias` than the rest; 2 of 10"
        ), text
    with torch.no_grad():
        model.module.scale.fill_(rank)
        model.module.norm.bias.zero_()
        model.module.down.bias.zero_()
    text = error_of(RuntimeError, agreement.require_same_values, dict(model.named_parameters()))
    others = ", ".join(map(str, range(1, n)))
    assert f"rank{'s' * (n > 2)} {others} ha{'ve' if n > 2 else 's'} other values in `scale`" in text


def how_often_values_are_compared():
    """After every second reduction, whatever else is called in between; never before the first."""
    model = DistributedDataParallel(seeded(Net), check_every=2, **SMALL)
    compared = []
    for step in range(6):
        with spmd.traffic() as traffic:
            with torch.no_grad():
                loss_of(model, *map(mine, batch(step)))
            loss_of(model, *map(mine, batch(step)))
            loss_of(model, *map(mine, batch(step))).backward()
        compared.append(sum(count for name, count in traffic.calls.items() if name.startswith("all_gather")))
        model.zero_grad()
    assert compared == [0, 0, 1, 0, 1, 0], compared


def names_in_a_checkpoint():
    """The module's own names, wrapped or not, inside another module or not; each loads the other's."""
    bare = seeded(Net, 1)
    model = DistributedDataParallel(seeded(Net))
    state = model.state_dict()
    assert list(state) == list(bare.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in bare.named_parameters()]
    bare.load_state_dict(state)
    same(list(bare.state_dict().values()), list(state.values()), 0)
    model.load_state_dict(seeded(Net, 2).state_dict())
    same(list(model.state_dict().values()), list(seeded(Net, 2).state_dict().values()), 0)
    inside = nn.ModuleDict({"a": nn.Linear(2, 2), "net": model, "z": nn.BatchNorm1d(2)})
    outside = nn.ModuleDict({"a": nn.Linear(2, 2), "net": seeded(Net), "z": nn.BatchNorm1d(2)})
    assert list(inside.state_dict()) == list(outside.state_dict())
    outside.load_state_dict(inside.state_dict())
    inside.load_state_dict(outside.state_dict())
    assert "Missing key" in error_of(RuntimeError, model.load_state_dict, {})
    loss_of(model, *map(mine, batch(0))).backward()
    assert any(g is not None for g in gradients(model))


CASES = [
    modules_that_differ,
    settings_that_differ,
    what_cannot_be_wrapped,
    gradients_that_cannot_be_reduced,
    thawed_later,
    equal_from_the_start,
    an_empty_parameter,
    buffers_at_each_forward,
    values_that_drift,
    how_often_values_are_compared,
    names_in_a_checkpoint,
]


@pytest.mark.parametrize("n", [2, 3])
def test_agreement(n):
    spmd.run(all_of, CASES, ranks=n)


floats = st.lists(st.floats(width=32), min_size=1, max_size=50)


@given(floats, st.data())
def test_the_hash_sees_any_change_of_bits(values, data):
    x = torch.tensor(values, dtype=torch.float32)
    bits = x.view(torch.int32).clone()
    place = data.draw(st.integers(0, len(values) - 1))
    bits[place] ^= 1 << data.draw(st.integers(0, 30))
    assert agreement.bits_hash(x) != agreement.bits_hash(bits.view(torch.float32))
    assert agreement.bits_hash(x) == agreement.bits_hash(x.clone())


def test_the_hash_sees_changes_that_a_sum_does_not():
    x = torch.arange(2**20 + 10, dtype=torch.float32)  # more than one chunk
    for i, j in ((0, 1), (5, 2**20 + 5), (2**20, 2**20 + 1)):
        y = x.clone()
        y[[i, j]] = y[[j, i]]
        assert agreement.bits_hash(x) != agreement.bits_hash(y)
        z = x.clone().view(torch.int32)
        z[i] += 1
        z[j] -= 1
        assert agreement.bits_hash(x) != agreement.bits_hash(z.view(torch.float32))
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64):
        a = torch.ones(3, dtype=dtype)
        b = a.clone()
        b[1] = 0
        assert agreement.bits_hash(a) != agreement.bits_hash(b)
