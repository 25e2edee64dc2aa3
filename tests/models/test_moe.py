"""The MoE layer against loops over tokens; precision of the router; counts; what does not fit is told."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from moe_cases import MOE, with_experts

from course_lib.models import (
    GPT,
    MoEConfig,
    init_weights,
)
from course_lib.models.moe import best_experts, capacity, grouped_linear, in_turns, recorded, within_capacity
from course_lib.training.recompute import recompute

KINDS = {
    "plain": MOE,
    "switch": MoEConfig(6, 1, 10, renormalize=False, capacity_factor=1.25),
    "sigmoid, bias, shared, groups": MoEConfig(6, 2, 10, 7, "sigmoid", biased=True, groups=3, top_groups=2),
    "drops by position": MoEConfig(6, 3, 10, capacity_factor=0.5),
    "drops by probability": MoEConfig(6, 3, 10, capacity_factor=0.75, drop="probability"),
    "as it comes": MoEConfig(6, 3, 10, renormalize=False),
    "all of them": MoEConfig(4, 4, 10),
}  # fmt: skip


def double(moe, seed=7):
    return GPT(with_experts(moe), seed).double()


def layer_of(moe, seed=7):
    layer = double(moe, seed).layers[0].ffn
    for p in layer.parameters():
        p.data *= 8  # far from even, and no expert like another
    if layer.router.bias is not None:
        layer.router.bias.copy_(torch.linspace(-0.3, 0.4, moe.n_experts))
    return layer


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def token_by_token(layer, x_BSD, moe):
    """The definition: nothing sorted, nothing grouped."""
    out = torch.zeros_like(x_BSD)
    experts, router = layer.experts, layer.router
    for b, row in enumerate(x_BSD):
        queues = {e: [] for e in range(moe.n_experts)}
        plans = []
        for x in row:
            logits = router.weight @ x
            scores = logits.softmax(0) if moe.scores == "softmax" else logits.sigmoid()
            liked = scores if router.bias is None else scores + router.bias
            size = moe.n_experts // moe.groups
            groups = [range(g * size, (g + 1) * size) for g in range(moe.groups)]
            top = max(moe.top_k // moe.top_groups, 1)
            groups.sort(key=lambda g: -sum(sorted((liked[e].item() for e in g), reverse=True)[:top]))
            allowed = [e for g in groups[: moe.top_groups] for e in g]
            chosen = sorted(allowed, key=lambda e: -liked[e].item())[: moe.top_k]
            total = sum(scores[e] for e in chosen) if moe.renormalize else 1
            plans.append({e: scores[e] / total for e in chosen})
            for e in chosen:
                queues[e].append((scores[e].item(), len(plans) - 1))
        if moe.capacity_factor:
            room = min(len(row), math.ceil(len(row) * moe.top_k / moe.n_experts * moe.capacity_factor))
            for e, queue in queues.items():
                if moe.drop == "probability":
                    queue.sort(key=lambda entry: (-entry[0], entry[1]))
                for _, t in queue[room:]:
                    del plans[t][e]
        for t, plan in enumerate(plans):
            for e, weight in plan.items():
                h = F.silu(experts.gate[e] @ row[t]) * (experts.up[e] @ row[t])
                out[b, t] = out[b, t] + weight * (experts.down[e] @ h)
    return out if layer.shared is None else out + layer.shared(x_BSD)


@pytest.mark.parametrize("moe", KINDS.values(), ids=KINDS)
def test_a_layer_is_its_definition(moe):
    layer, x = layer_of(moe), random(1, 3, 7, 12).requires_grad_()
    other, z = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    y, expected = layer(x), token_by_token(other, z, moe)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    for out in (y, expected):
        (out * random(2, *out.shape)).sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=0, atol=1e-12)
    for (name, p), q in zip(layer.named_parameters(), other.parameters(), strict=True):
        assert p.grad is not None and (q.grad is None or q.grad.any()), name
        torch.testing.assert_close(p.grad, q.grad if q.grad is not None else torch.zeros_like(q), rtol=0, atol=1e-12)


def test_what_is_dropped_does_not_depend_on_the_batch():
    for name in ("switch", "drops by position", "drops by probability"):
        layer, x = layer_of(KINDS[name]), random(1, 4, 9, 12)
        together, kept = layer(x), layer.router(x).kept
        assert 0 < kept.sum() < kept.numel()
        torch.testing.assert_close(together, torch.cat([layer(row[None]) for row in x]), rtol=0, atol=1e-12)


def test_dropping_by_position_looks_at_no_later_token():
    layer, x = layer_of(KINDS["drops by position"]), random(1, 1, 12, 12)
    changed = x.clone()
    changed[:, 8:] = random(5, 1, 4, 12)
    assert torch.equal(layer.router(x).kept[:, :8], layer.router(changed).kept[:, :8])


@given(st.integers(1, 8), st.integers(1, 20), st.data(), st.sampled_from([0.01, 0.5, 1.0, 1.5, 100.0]))
def test_an_expert_takes_no_more_than_its_capacity_and_leaves_no_place_empty(n_experts, seq_len, data, factor):
    k = data.draw(st.integers(1, n_experts))
    for drop in ("position", "probability"):
        moe = MoEConfig(n_experts, k, 1, capacity_factor=factor, drop=drop, renormalize=k > 1)
        scores = random(data.draw(st.integers(0, 99)), 2, seq_len, n_experts).softmax(-1)
        chosen = best_experts(scores, moe)
        kept = within_capacity(scores, chosen, moe)
        room = capacity(seq_len, moe)
        assert 1 <= room <= seq_len
        for b in range(2):
            for e in range(n_experts):
                here = chosen[b] == e
                assert (kept[b] & here).sum() == min(room, here.sum())


def test_a_dropped_token_leaves_the_weights_of_others_alone():
    free, tight = (layer_of(MoEConfig(6, 3, 10, capacity_factor=c)) for c in (None, 0.5))
    x = random(1, 2, 8, 12)
    assert torch.equal(free.router(x).weights, tight.router(x).weights)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_the_router_works_in_float32(scores):
    """In a bfloat16 model, and under autocast: the same weights as from the same numbers taken to float32 first."""
    moe = MoEConfig(6, 2, 10, scores=scores, biased=True)
    router = GPT(with_experts(moe, dim=96, n_heads=4), seed=1).layers[0].ffn.router
    x = torch.randn(2, 9, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    half = copy.deepcopy(router).bfloat16()
    expected = copy.deepcopy(half).float()(x.float())
    found = half(x)
    with torch.autocast("cpu", torch.bfloat16):
        cast = copy.deepcopy(half).float()(x)
    for routing in (found, cast):
        assert routing.logits.dtype == routing.weights.dtype == torch.float32
        assert torch.equal(routing.logits, expected.logits) and torch.equal(routing.weights, expected.weights)
        assert torch.equal(routing.chosen, expected.chosen)
    assert half.bias.dtype == torch.float32


def test_the_bias_stays_float32_and_keeps_its_value():
    model = GPT(with_experts(KINDS["sigmoid, bias, shared, groups"]))
    bias = model.layers[0].ffn.router.bias
    bias += 1.001
    for moved in (copy.deepcopy(model).bfloat16(), copy.deepcopy(model).double(), copy.deepcopy(model).half().float()):
        assert torch.equal(moved.layers[0].ffn.router.bias, bias)
        assert moved.layers[0].ffn.router.bias.dtype == torch.float32
    assert "layers.0.ffn.router.bias" in model.state_dict()
    init_weights(model, seed=0)
    assert not bias.any()
    with torch.device("meta"):
        built = GPT(with_experts(KINDS["sigmoid, bias, shared, groups"]))
    init_weights(built.to_empty(device="cpu"), seed=7)
    same = GPT(built.config, seed=7).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in built.state_dict().items())


def test_autocast_and_16_bits_are_near_float32():
    model = GPT(with_experts(MoEConfig(4, 4, 16), dim=24, n_heads=3)).eval()
    tokens = torch.arange(16).view(1, 16)
    expected = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(tokens)
    for found in (cast, copy.deepcopy(model).bfloat16()(tokens)):
        assert found.dtype == torch.bfloat16
        assert (found - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0, 0], [8, 0, 0], [0, 0, 1]])
@pytest.mark.parametrize("sizes", [(8, 12), (5, 12), (8, 7)], ids=["grouped", "rows by themselves", "outputs not"])
def test_one_call_for_all_experts_is_one_for_each(counts, sizes):
    inputs, outputs = sizes
    rows = random(1, sum(counts), inputs).float().requires_grad_()
    weight = random(2, 3, outputs, inputs).float().requires_grad_()
    upstream = random(3, sum(counts), outputs).float()
    y = grouped_linear(rows, weight, torch.tensor(counts))
    found = [y, *torch.autograd.grad(y, (rows, weight), upstream)]
    parts = rows.split(counts)
    y = torch.cat([part @ matrix.T for part, matrix in zip(parts, weight, strict=True)])
    for a, b in zip(found, [y, *torch.autograd.grad(y, (rows, weight), upstream)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_experts_that_nobody_chose_have_gradients_of_zero():
    layer = layer_of(MOE)
    layer.router.choose = lambda preferred, moe: torch.tensor([1, 4]).expand(*preferred.shape[:2], 2)
    layer(random(1, 2, 5, 12)).square().sum().backward()
    used = [e for e in range(6) if layer.experts.gate.grad[e].any()]
    assert used == [1, 4]
    for no_token in (layer(torch.empty(2, 0, 12).double()), layer(torch.empty(0, 4, 12).double())):
        assert no_token.numel() == 0
        no_token.sum().backward()


def test_groups_bound_how_many_groups_a_token_sees():
    moe = MoEConfig(12, 4, 1, groups=4, top_groups=2)
    chosen = best_experts(random(1, 3, 50, 12), moe)
    for token in (chosen // 3).view(-1, 4).tolist():
        assert len(set(token)) <= 2
    assert len((chosen // 3).unique()) == 4


def test_a_group_is_worth_the_sum_of_its_best():
    """Two experts of three may count: 0.5 and 0 are less than 0.3 and 0.3, the third is not looked at."""
    preferred = torch.tensor([[[0.5, 0.0, 0.0, 0.3, 0.3, 0.0, 0.25, 0.24, 0.24]]])
    chosen = best_experts(preferred, MoEConfig(9, 2, 1, groups=3, top_groups=1))
    assert sorted(chosen.flatten().tolist()) == [3, 4]


def test_in_turns_is_even():
    chosen = in_turns(random(1, 2, 9, 6), MoEConfig(6, 2, 1))
    assert torch.bincount(chosen.flatten()).tolist() == [6] * 6
    assert all(len(set(token)) == 2 for token in chosen.view(-1, 2).tolist())


def test_jitter_moves_scores_in_training_only():
    layer, x = layer_of(MoEConfig(6, 2, 10, jitter=0.1)), random(1, 2, 5, 12)
    still = layer.eval().router(x).logits
    torch.testing.assert_close(still, layer_of(MOE).router(x).logits, rtol=0, atol=0)
    moved = layer.train().router(x).logits
    bound = 0.1 * (x.abs() @ layer.router.weight.abs().T)
    assert not torch.equal(moved, still) and ((moved - still).abs() <= bound * (1 + 1e-9)).all()


def test_recorded_once_and_not_again_by_recomputation():
    plain, model = double(MOE), double(MOE)
    recompute(model.layers)
    tokens = torch.arange(12).view(2, 6)
    sums = []
    for one in (plain, model):
        with recorded(one) as routings:
            loss = one(tokens).square().mean()
            (loss + sum(r.logits.square().mean() for r in routings)).backward()
        assert [r.chosen.shape for r in routings] == [(2, 6, 2)] * 2
        sums.append(sum(p.grad.abs().sum() for p in one.parameters()))
        one(tokens)
        assert len(routings) == 2
    torch.testing.assert_close(*sums, rtol=1e-12, atol=0)


def test_probabilities_add_up_to_one_and_lead_back_to_the_router():
    for scores in ("softmax", "sigmoid"):
        layer = layer_of(MoEConfig(6, 2, 10, scores=scores))
        p = layer.router(random(1, 2, 5, 12)).probabilities
        torch.testing.assert_close(p.sum(-1), torch.ones(2, 5).double())
        p[..., 0].sum().backward()
        assert layer.router.weight.grad.any()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_experts": 0}, "n_experts is 0; it must be a whole number of at least 1."),
        ({"top_k": 1.0}, "top_k is 1.0; it must be a whole number of at least 1."),
        ({"shared_dim": -1}, "shared_dim is -1; it must be a whole number of at least 0."),
        ({"top_k": 7}, "top_k = 7 of the 6 experts in 1 of 1 groups is not possible"),
        ({"groups": 3, "top_groups": 1, "top_k": 3}, "top_k = 3 of the 2 experts in 1 of 3 groups is not possible"),
        ({"groups": 3, "top_groups": 4}, "in 4 of 3 groups is not possible; top_groups goes from 1 to 3"),
        ({"groups": 4}, "n_experts = 6 cannot be cut into 4 groups of one size; groups of 2 or 3 would fit."),
        ({"top_k": 1}, "renormalize with top_k = 1 makes every weight 1"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0; it must be above 0"),
        ({"scores": "relu"}, "scores is 'relu' and must be 'softmax' or 'sigmoid'"),
        ({"drop": "last"}, "drop is 'last' and must be 'position' or 'probability'"),
        ({"jitter": 1.0}, "jitter is 1.0; it must be at least 0 and below 1."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(changes, message):
    with pytest.raises(ValueError) as error:
        MoEConfig(**{"n_experts": 6, "top_k": 2, "expert_dim": 10, **changes})
    assert message in str(error.value)
