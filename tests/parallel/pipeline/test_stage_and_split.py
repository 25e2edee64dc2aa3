"""How layers are shared out, what a stage holds, and backward in two parts."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_cases import EXACT
from torch import nn

from course_lib.models import GPT, GPTConfig, init_weights
from course_lib.parallel.pipeline.simple_stage import LinearInTwo
from course_lib.parallel.pipeline.split import WeightGradients
from course_lib.parallel.pipeline.stage import GPTStage, balance, init_stage


def slowest(costs, cut, first, last):
    each = [sum(costs[i] for i in part) for part in cut]
    each[0] += first
    each[-1] += last
    return max(each)


def every_cut(n, stages):
    """All ways to cut range(n) into that many parts, none of them empty."""
    if stages == 1:
        return [[range(n)]]
    return [[*front, range(at, n)] for at in range(stages - 1, n) for front in every_cut(at, stages - 1)]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8).flatmap(
        lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs)), st.integers(0, 9), st.integers(0, 9))
    )
)
def test_no_other_cut_has_a_faster_slowest_stage(drawn):
    costs, stages, first, last = drawn
    cut = balance(costs, stages, first, last)
    assert [i for part in cut for i in part] == list(range(len(costs)))
    assert len(cut) == stages and all(cut)
    best = min(slowest(costs, other, first, last) for other in every_cut(len(costs), stages))
    assert slowest(costs, cut, first, last) == best


def test_a_dear_head_gets_fewer_layers():
    assert list(map(len, balance([1] * 8, 4, last=2))) in ([2, 2, 3, 1], [2, 3, 2, 1], [3, 2, 2, 1])


CONFIG = GPTConfig(vocab_size=11, dim=8, n_layers=5, n_heads=2, n_kv_heads=1, ffn_dim=12, max_seq_len=8)
TIED = GPTConfig(vocab_size=11, dim=8, n_layers=5, n_heads=2, n_kv_heads=1, ffn_dim=12, max_seq_len=8, tied=True)


@pytest.mark.parametrize("config", [CONFIG, TIED])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_hold_the_models_parameters_under_their_names(config, stages):
    whole = dict(GPT(config, seed=7).named_parameters())
    cut = [GPTStage(config, part, seed=7) for part in balance([1] * 5, stages)]
    names = [name for stage in cut for name, _ in stage.named_parameters()]
    copies = ["head.weight"] if config.tied and stages > 1 else []
    assert sorted(names) == sorted([*whole, *copies])
    for stage in cut:
        for name, p in stage.named_parameters():
            assert torch.equal(p, whole["embedding.weight" if name in copies else name]), name


def test_a_stage_from_meta_has_the_same_values_and_stays_tied():
    for config, part in [(CONFIG, range(2)), (TIED, range(3, 5)), (TIED, range(5))]:
        built = GPTStage(config, part, seed=2)
        with torch.device("meta"):
            stage = GPTStage(config, part)
        stage.to_empty(device="cpu")
        init_stage(stage, seed=2)
        for (name, p), (_, q) in zip(stage.named_parameters(), built.named_parameters(), strict=True):
            assert torch.equal(p, q), name


def test_stages_in_a_row_are_the_model():
    tokens = torch.randint(11, (2, 8))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]] * 2)
    model = GPT(CONFIG)
    x = (tokens, documents)
    for part in balance([1] * 5, 3):
        out = GPTStage(CONFIG, part)(*x)
        x = out if isinstance(out, tuple) else (out,)
    assert torch.equal(x[0], model(tokens, documents))


class Net(nn.Module):
    """Linear layers with bias and without, one frozen, one used twice, a norm, an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.frozen, self.norm = nn.Linear(6, 6).requires_grad_(False), nn.LayerNorm(6)

    def forward(self, x, tokens):
        x = x + self.embedding(tokens)
        x = torch.tanh(self.a(self.norm(self.b(x))))
        return self.b(self.frozen(x))


def net():
    torch.manual_seed(0)
    return Net().double(), torch.randn(3, 4, 6, dtype=torch.float64), torch.randint(5, (3, 4))


def test_the_two_parts_are_the_whole_backward():
    model, x, tokens = net()
    plain, reference = copy.deepcopy(model), x.clone().requires_grad_()
    plain(reference, tokens).sin().sum().backward()
    store, ours = WeightGradients(model), x.clone().requires_grad_()
    for round in (1, 2):  # the second adds to the first
        loss = model(ours, tokens).sin().sum()
        ours.grad = None
        with store.kept("mb"):
            loss.backward()
        assert torch.allclose(ours.grad, reference.grad, atol=EXACT, rtol=0)
        if round == 1:
            assert model.a.weight.grad is None and model.b.weight.grad is None  # for later
        store.compute("mb")
        store.compute("mb")  # nothing is left: it is not added twice
        for (name, p), (_, q) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if q.grad is not None:
                assert torch.allclose(p.grad, round * q.grad, atol=EXACT, rtol=0), name


def test_outside_of_kept_backward_is_whole():
    model, x, tokens = net()
    plain = copy.deepcopy(model)
    WeightGradients(model)
    for each in (model, plain):
        each(x, tokens).sin().sum().backward()
    for (name, p), (_, q) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert q.grad is None or torch.allclose(p.grad, q.grad, atol=EXACT, rtol=0), name


def test_what_was_kept_can_be_forgotten():
    model, x, tokens = net()
    store = WeightGradients(model)
    with store.kept(0):
        model(x, tokens).sum().backward()
    store.forget()
    store.compute(0)
    assert model.a.weight.grad is None


def test_under_autocast_gradients_have_the_weights_dtype():
    layer = nn.Linear(4, 3)
    plain, x = copy.deepcopy(layer), torch.randn(5, 4)
    store = WeightGradients(layer)
    for each in (layer, plain):
        with torch.autocast("cpu", torch.bfloat16):
            y = each(x)
        assert y.dtype == torch.bfloat16
        with store.kept(0):
            y.float().pow(2).sum().backward()
    store.compute(0)
    assert layer.weight.grad.dtype == torch.float32
    assert torch.allclose(layer.weight.grad, plain.weight.grad, rtol=0.05, atol=0.05)


def test_a_layer_of_another_kind_is_left_alone():
    class Other(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    layer = Other(2, 2)
    WeightGradients(nn.Sequential(layer))
    assert "forward" not in vars(layer)


def test_linear_in_two():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weight, later = nn.Parameter(torch.randn(2, 3, dtype=torch.float64)), []
    reference = [x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()]
    for _ in range(2):
        LinearInTwo.apply(x, weight, later).sin().sum().backward()
        (reference[0] @ reference[1].t()).sin().sum().backward()
    assert weight.grad is None and len(later) == 2
    assert torch.allclose(x.grad, reference[0].grad, atol=EXACT, rtol=0)
    for weight_gradient in later:
        weight_gradient()
    assert torch.allclose(weight.grad, reference[1].grad, atol=EXACT, rtol=0)
    assert not weight.grad.requires_grad, "a graph behind a gradient keeps all activations"


def test_init_weights_of_a_tied_head_alone_is_not_enough():
    """Why there is init_stage: by its own name the copy would get values of its own."""
    stage = GPTStage(TIED, range(3, 5), seed=1)
    right = stage.head.weight.detach().clone()
    init_weights(stage, seed=1)
    assert not torch.equal(stage.head.weight, right)
