"""Recomputation changes no value and no gradient, to the bit; what it saves in memory is counted, not assumed."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib import spmd
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.data import DistributedDataParallel
from course_lib.training.recompute import MATMULS, recompute, saved_bytes

CONFIG = GPTConfig(vocab_size=19, dim=24, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=32, max_seq_len=256)
HOWS = {
    "all": lambda m: recompute(m.layers),
    "every second": lambda m: recompute(m.layers, every=2),
    "every fifth of three": lambda m: recompute(m.layers, every=5),
    "matmuls kept": lambda m: recompute(m.layers, keep=MATMULS),
    "core": lambda m: recompute([layer.attention.core for layer in m.layers]),
    "core within layer": lambda m: (recompute([layer.attention.core for layer in m.layers]), recompute(m.layers)),
}
TOKENS = torch.randint(19, (2, 20), generator=torch.Generator().manual_seed(0))
DOCUMENTS = (torch.arange(20) // 7).expand(2, 20)


def loss_of(model, tokens=TOKENS, documents=None):
    return F.cross_entropy(model(tokens, documents).flatten(0, 1), tokens.flatten())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def count_calls(module):
    """How often the module's own forward has run, as a list of one number."""
    calls, forward = [0], type(module).forward

    class Counting(type(module)):
        def forward(self, *args):
            calls[0] += 1
            return forward(self, *args)

    module.__class__ = Counting
    return calls


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("how", HOWS)
def test_loss_and_gradients_are_the_same_to_the_bit(how, documents):
    plain = GPT(CONFIG).double()
    model = copy.deepcopy(plain)
    HOWS[how](model)
    loss, wanted = loss_of(model, documents=documents), loss_of(plain, documents=documents)
    assert torch.equal(loss, wanted)
    for got, want in zip(gradients(model, loss), gradients(plain, wanted), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("how", HOWS)
def test_names_and_values_stay_as_they_are(how):
    plain, model = GPT(CONFIG), GPT(CONFIG)
    HOWS[how](model)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    model.load_state_dict(plain.state_dict())


def test_the_layers_chosen_run_twice_the_others_once():
    for every, runs in [(1, [2, 2, 2]), (2, [2, 1, 2]), (3, [2, 1, 1])]:
        model = GPT(CONFIG)
        calls = [count_calls(layer) for layer in model.layers]
        recompute(model.layers, every=every)
        loss_of(model).backward()
        assert [count[0] for count in calls] == runs


def test_what_is_kept_is_not_computed_again():
    from torch.utils.flop_counter import FlopCounterMode

    flops = {}
    for how in ("none", "all", "matmuls kept"):
        model = GPT(CONFIG)
        if how != "none":
            HOWS[how](model)
        with FlopCounterMode(display=False) as counter:
            loss_of(model).backward()
        flops[how] = counter.get_total_flops()
    assert flops["matmuls kept"] == flops["none"]
    layers, head = 2 * 20 * (CONFIG.n_layers * (3 * 24 * 24 + 3 * 24 * 32)), 2 * 20 * 24 * 19
    assert flops["none"] == 3 * 2 * (layers + head)  # torch counts nothing for the CPU's fused attention
    assert flops["all"] > flops["none"] + 0.8 * 2 * layers  # it stops once it has the last tensor that backward needs


class Dropping(nn.Module):
    """A toy layer whose gradient shows which elements were dropped."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, x):
        return F.dropout(self.linear(F.dropout(x, 0.5)).relu(), 0.5)


@pytest.mark.parametrize("keep", [(), MATMULS], ids=["nothing kept", "matmuls kept"])
def test_dropout_drops_the_same_elements_again(keep):
    plain = nn.Sequential(*[Dropping() for _ in range(4)])
    model = copy.deepcopy(plain)
    recompute(model, every=2, keep=keep)
    x = torch.randn(5, 6, dtype=torch.float64)
    results = []
    for m in (plain, model):
        torch.manual_seed(11)
        loss = m(x).square().sum()
        got = gradients(m, loss)
        results.append([loss.detach(), *got, torch.rand(1)])  # the stream goes on from the same place
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][0] > 0


@pytest.mark.parametrize("how", HOWS)
def test_without_gradients_it_is_plain_forward(how):
    model = GPT(CONFIG)
    wanted = loss_of(model)
    HOWS[how](model)
    calls = count_calls(model.layers[0])
    with torch.no_grad():
        loss = loss_of(model)
    assert torch.equal(loss, wanted)
    assert not loss.requires_grad
    assert calls[0] <= 1
    for layer in model.layers:
        layer.requires_grad_(False)
    loss_of(model).backward()  # only the embedding, norm and head learn
    assert model.layers[1].ffn.up.weight.grad is None
    assert model.embedding.weight.grad.any()


def test_a_part_without_gradients_inside_stays_without():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                scale = self.linear(x)
            return self.linear(x) * scale

    plain = Part()
    model = copy.deepcopy(plain)
    recompute([model])
    x = torch.randn(3, 4)
    for got, want in zip(gradients(model, model(x).sum()), gradients(plain, plain(x).sum()), strict=True):
        assert torch.equal(got, want)


def test_a_copy_recomputes_its_own_layers():
    model = GPT(CONFIG)
    recompute(model.layers)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(loss_of(twin), loss_of(GPT(CONFIG)))
    loss_of(twin).backward()
    assert twin.layers[0].ffn.up.weight.grad.any()
    assert model.layers[0].ffn.up.weight.grad is None


def gradients_under_ddp(wrap):
    """This rank's gradients of three models over its own rows, recomputed in three ways."""
    rank, n = dist.get_rank(), dist.get_world_size()
    found = []
    for how in (lambda m: None, HOWS["every second"], HOWS["matmuls kept"]):
        model = GPT(CONFIG).double()
        how(model)
        wrapped = wrap(model)
        rows = torch.randint(19, (n, 20), generator=torch.Generator().manual_seed(4))
        loss_of(wrapped, rows[rank : rank + 1]).backward()
        found.append([p.grad for p in model.parameters()])
    return found


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, DistributedDataParallel], ids=["torch", "ours"])
def test_data_parallel_gradients_are_the_same_to_the_bit(wrap):
    for plain, *recomputed in spmd.run(gradients_under_ddp, wrap, ranks=2, show=False):
        for gradients_of_one in recomputed:
            assert all(torch.equal(a, b) for a, b in zip(plain, gradients_of_one, strict=True))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: recompute(m.layers, every=0), "every is 0; it must be at least 1, which recomputes all 3 modules."),
        (lambda m: recompute([]), "There is no module to recompute."),
        (lambda m: (recompute(m.layers, every=2), recompute(m.layers[1:])), "Module 1 (Block) has been given another"),
        (lambda m: recompute([m.layers[0], m.layers[0]]), "Module 1 (Block) stands twice in the list."),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(call, message):
    model = GPT(CONFIG)
    with pytest.raises(ValueError) as error:
        call(model)
    assert message in str(error.value)
    assert "forward" not in vars(model.layers[1])


# saved_bytes


def test_bytes_by_hand():
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)
    loss = 4  # the result is held too
    assert saved_bytes(lambda: (x @ weight).sum()) == loss  # x was there before
    assert saved_bytes(lambda: (x @ weight).relu().sum()) == 4 * 8 * 4 + loss
    assert saved_bytes(lambda: ((x @ weight).relu() @ weight).tanh().sum()) == 2 * 4 * 8 * 4 + loss
    assert saved_bytes(lambda: (x @ weight).exp().view(8, 4).t().sin().sum()) == 4 * 8 * 4 + loss  # views are free
    assert saved_bytes(lambda: weight.detach().mul_(1).sum()) == loss  # in place: nothing new
    assert saved_bytes(lambda: (x[:1].expand(64, 8) @ weight).sum()) == loss
    with torch.no_grad():
        assert saved_bytes(lambda: (x @ weight).relu().sum()) == loss


def saved_by_hooks(model, documents):
    """The same, by autograd's own account: each tensor that a node saves, but for parameters and inputs."""
    known = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), TOKENS]}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(model, documents=documents)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in held.values())


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
def test_bytes_are_those_that_autograd_says_it_saves(documents, backend):
    model = GPT(CONFIG)
    with sdpa_kernel(backend):
        assert saved_bytes(lambda: loss_of(model, documents=documents)) == saved_by_hooks(model, documents) + 4


def bytes_of(how, seq_len=128, backend=SDPBackend.FLASH_ATTENTION):
    model = GPT(CONFIG)
    if how != "none":
        HOWS[how](model)
    tokens = torch.randint(19, (1, seq_len))
    with sdpa_kernel(backend):
        return saved_bytes(lambda: loss_of(model, tokens))


def test_the_more_is_recomputed_the_less_is_kept():
    held = [bytes_of(how) for how in ("none", "matmuls kept", "all")]
    assert all(a > 1.4 * b for a, b in pairwise(held))
    layer = (bytes_of("none") - bytes_of("all")) / 3  # all layers are alike, and all but the first give up their input
    assert bytes_of("every second") == bytes_of("none") - 2 * layer


def test_with_all_layers_recomputed_a_layer_keeps_its_input():
    streams = 128 * 24 * 4
    assert bytes_of("all") - _bytes_of_layers(2) == streams


def _bytes_of_layers(n_layers):
    model = GPT(GPTConfig(19, 24, n_layers, 4, 2, 32, 256))
    recompute(model.layers)
    tokens = torch.randint(19, (1, 128))
    return saved_bytes(lambda: loss_of(model, tokens))


def test_the_core_is_worth_recomputing_where_it_keeps_its_scores():
    """Plain attention keeps (heads, S, S) for each layer; fused attention does not, and there is nothing to gain."""
    scores = 3 * 4 * 128 * 128 * 4
    assert bytes_of("none", backend=SDPBackend.MATH) - bytes_of("core", backend=SDPBackend.MATH) > scores
    assert bytes_of("none") - bytes_of("core") < 0.02 * bytes_of("none")
    # Twice the sequence: twice the bytes, where no scores are kept.
    assert bytes_of("none", 256) == pytest.approx(2 * bytes_of("none"), rel=0.001)
    assert bytes_of("none", 256, SDPBackend.MATH) > 2.5 * bytes_of("none", 128, SDPBackend.MATH)


def test_bytes_do_not_change_the_result():
    model = GPT(CONFIG).double()
    kept = []
    saved_bytes(lambda: kept.append(loss_of(model)))
    assert torch.equal(kept[0], loss_of(model))
    assert all(
        torch.equal(a, b) for a, b in zip(gradients(model, kept[0]), gradients(model, loss_of(model)), strict=True)
    )
