"""Balance losses and z-loss: the same in every layout of ranks and micro-batches, value and gradient; the bias."""

import copy

import pytest
import torch
import torch.distributed as dist
from expert_cases import alike, all_of, all_ranks_sum, error_of, leaf, random, same

from course_lib import spmd
from course_lib.models import GPT, GPTConfig, MoEConfig
from course_lib.models.moe import Routing, in_turns, recorded
from course_lib.parallel.expert import (
    balance_share,
    expert_load,
    sequence_balance_share,
    simple,
    update_biases,
    z_share,
)

B, S, E, k, LAYERS = 7, 5, 6, 2, 2


def routing_of(logits, scores="softmax"):
    values = logits.softmax(-1) if scores == "softmax" else logits.sigmoid()
    weights, chosen = values.topk(k)
    return Routing(logits, values, chosen, weights, None)


def whole():
    """Logits of B sequences in each layer, and which tokens count."""
    valid = torch.rand(B, S, generator=torch.Generator().manual_seed(1)) < 0.7
    valid[2] = False  # a row of padding
    return [leaf(3 * random(10 + layer, B, S, E)) for layer in range(LAYERS)], valid


def balance_of(p_TE, chosen_Tk):
    """E * sum of f_e P_e, for tokens in a row."""
    f = torch.stack([(chosen_Tk == e).sum() for e in range(E)]).double() / chosen_Tk.numel()
    return E * (f * p_TE.mean(0)).sum()


def expected_loss(kind, logits, valid, scores):
    loss = 0
    for layer in logits:
        routing = routing_of(layer, scores)
        p, chosen = routing.probabilities, routing.chosen
        if kind == "z":
            loss = loss + layer.exp().sum(-1).log().square()[valid].mean()
        elif kind == "batch":
            loss = loss + balance_of(p[valid], chosen[valid])
        else:
            for b in range(B):
                if valid[b].any():
                    loss = loss + (valid[b].sum() / valid.sum().double()) * balance_of(
                        p[b][valid[b]], chosen[b][valid[b]]
                    )
    return loss


def windows():
    """This rank's micro-batches: of one size or not, one of them empty."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(rank, B, n)
    yield [mine]
    yield [mine[:1], mine[1:]]
    yield [mine[:0], *mine.split(1)]
    mine = torch.arange(B if rank == 0 else 0)  # all of them on rank 0
    yield [mine[:3], mine[3:]]


def in_every_layout():
    n = dist.get_world_size()
    for scores in ("softmax", "sigmoid"):
        for masked in (False, True):
            logits, valid = whole()
            valid = valid if masked else torch.ones_like(valid)
            total = valid.sum()
            for kind in ("batch", "sequence", "z"):
                loss = expected_loss(kind, logits, valid, scores)
                expected = torch.autograd.grad(loss, logits)
                for window in windows():
                    parts = [[leaf(layer[rows]) for layer in logits] for rows in window]
                    load = sum(
                        expert_load([routing_of(x, scores) for x in part], valid[rows] if masked else None)
                        for part, rows in zip(parts, window, strict=True)
                    )
                    dist.all_reduce(load)
                    value = torch.zeros((), dtype=torch.float64)
                    for part, rows in zip(parts, window, strict=True):
                        routings, mask = [routing_of(x, scores) for x in part], valid[rows] if masked else None
                        if kind == "batch":
                            share = balance_share(routings, load, None, mask)
                        elif kind == "sequence":
                            share = sequence_balance_share(routings, total, None, mask)
                        else:
                            share = z_share(routings, total, None, mask)
                        share.backward()
                        value += share.detach()
                        for layer in range(LAYERS):
                            same(part[layer].grad / n, expected[layer][rows], f"{kind}, {scores}, {masked}")
                    same(all_ranks_sum(value) / n, loss, kind)


def the_taught_one_is_the_same():
    rank, n = dist.get_rank(), dist.get_world_size()
    logits, _ = whole()
    part = routing_of(logits[0][rank::n])
    load = expert_load([part])
    dist.all_reduce(load)
    taught = simple.balance_loss(part.scores.flatten(0, 1), part.chosen.flatten(0, 1))
    same(taught, balance_share([part], load))


def nothing_counts():
    """No token on any rank: zeros, and no NaN."""
    logits = [leaf(random(1, 3, S, E))]
    none = torch.zeros(3, S, dtype=torch.bool)
    for routings, valid in (([routing_of(logits[0])], none), ([routing_of(leaf(random(1, 0, S, E)))], None)):
        load = expert_load(routings, valid)
        assert not load.any()
        for share in (
            balance_share(routings, load, None, valid),
            sequence_balance_share(routings, load.sum(), None, valid),
            z_share(routings, 0, None, valid),
        ):
            share.backward(retain_graph=True)
            assert share == 0
    assert not logits[0].grad.any()


def biases():
    model = GPT(GPTConfig(11, 8, 2, 2, 1, 9, S, moe=MoEConfig(E, k, 4, biased=True)))
    load = torch.tensor([[0, 1, 2, 3, 4, 5], [2, 2, 2, 2, 1, 3]])
    update_biases(model, load, 0.25)
    update_biases(model, load, 0.25)
    for layer, expected in zip(model.layers, [[0.5, 0.5, 0.5, -0.5, -0.5, -0.5], [0, 0, 0, 0, 0.5, -0.5]], strict=True):
        assert layer.ffn.router.bias.tolist() == expected
    taught = torch.zeros(E)
    mine = load[1] if dist.get_rank() == 0 else torch.zeros(E, dtype=torch.int64)
    simple.update_bias(taught, mine, 0.25)
    alike(taught)
    assert taught.tolist() == [0, 0, 0, 0, 0.25, -0.25]
    message = error_of(ValueError, update_biases, model, load[:1], 0.1)
    assert message.startswith("the load of 1 layers cannot move the biases of 2, of which 2 have one: ")
    plain = GPT(GPTConfig(11, 8, 2, 2, 1, 9, S, moe=MoEConfig(E, k, 4)))
    assert "of 2, of which 0 have one" in error_of(ValueError, update_biases, plain, load, 0.1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_balance(ranks):
    spmd.run(all_of, [in_every_layout, the_taught_one_is_the_same, nothing_counts, biases], ranks=ranks)


def uneven_model(**moe):
    """A router that sends every token to the first of eight experts, and most of them to the second."""
    model = GPT(GPTConfig(64, 16, 1, 2, 1, 9, 32, moe=MoEConfig(8, 2, 4, **moe)), seed=1)
    with torch.no_grad():
        model.embedding.weight += 0.2
        model.layers[0].ffn.router.weight[:2] += 0.1
    return model


def busiest(load):
    """The largest load over the mean."""
    return (load.max() / load.double().mean()).item()


def measured(model, tokens):
    with torch.no_grad(), recorded(model) as routings:
        model(tokens)
    return expert_load(routings)


def alone():
    """On one rank: each way of balancing evens out a router that is very uneven."""
    tokens = torch.randint(64, (8, 32), generator=torch.Generator().manual_seed(0))
    for kind in ("batch", "sequence"):
        model = uneven_model()
        assert busiest(measured(model, tokens)) == 4
        optimizer = torch.optim.SGD([model.layers[0].ffn.router.weight], lr=0.1)
        for _ in range(40):
            with recorded(model) as routings:
                model(tokens)
            if kind == "batch":
                loss = balance_share(routings, expert_load(routings))
            else:
                loss = sequence_balance_share(routings, tokens.numel())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert busiest(measured(model, tokens)) < 1.5
    model = uneven_model(scores="sigmoid", biased=True)
    before = copy.deepcopy(list(model.parameters()))
    assert busiest(measured(model, tokens)) == 4
    for _ in range(100):
        update_biases(model, measured(model, tokens), 0.005)
    assert busiest(measured(model, tokens)) < 1.5
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    model.layers[0].ffn.router.choose = in_turns
    assert busiest(measured(model, tokens)) == 1


def test_balancing_balances():
    spmd.run(alone, ranks=1)
