"""The taught functions against loops over tokens, and against one process; ranks without tokens included."""

import pytest
import torch
import torch.distributed as dist
from expert_cases import alike, all_of, all_ranks_sum, leaf, random, same
from hypothesis import given
from hypothesis import strategies as st

from course_lib import spmd
from course_lib.parallel.expert import simple

E, D = 12, 5  # 2, 3 and 4 divide E


def route_one_by_one(scores, k, capacity, bias=None):
    """Token after token, expert after expert."""
    room = [capacity] * scores.shape[1]
    chosen, weights, kept = [], [], []
    for row in scores.tolist():
        best = sorted(range(len(row)), key=lambda e: row[e] + (bias[e] if bias else 0), reverse=True)[:k]
        chosen.append(best)
        weights.append([row[e] / sum(row[e] for e in best) for e in best])
        kept.append([room[e] > 0 for e in best])
        for e in best:
            room[e] -= 1
    return torch.tensor(chosen), torch.tensor(weights, dtype=scores.dtype), torch.tensor(kept)


@given(st.integers(1, 9), st.integers(1, 6), st.data(), st.integers(0, 99))
def test_capacity_against_a_queue_for_each_expert(tokens, n_experts, data, seed):
    k, capacity = data.draw(st.integers(1, n_experts)), data.draw(st.integers(0, 10))
    scores = random(seed, tokens, n_experts).softmax(-1)
    ours = simple.route_with_capacity(scores, k, capacity)
    for a, b in zip(ours, route_one_by_one(scores, k, capacity), strict=True):
        same(a.double(), b.double())
    assert ours[2].dtype == torch.bool


def test_no_tokens_choose_nothing():
    chosen, weights, kept = simple.route_with_capacity(torch.empty(0, 4), 2, 3)
    assert chosen.shape == weights.shape == kept.shape == (0, 2)


@given(st.integers(1, 6), st.data(), st.integers(0, 99))
def test_a_bias_chooses_and_does_not_weigh(n_experts, data, seed):
    k = data.draw(st.integers(1, n_experts))
    scores, bias = random(seed, 7, n_experts).sigmoid(), random(seed + 100, n_experts)
    expected = route_one_by_one(scores, k, 0, bias.tolist())[:2]
    for a, b in zip(simple.route_with_bias(scores, bias, k), expected, strict=True):
        same(a.double(), b.double())


def tokens_of(rank):
    """Ranks have different numbers of tokens; rank 1 has none."""
    return [4, 0, 7, 2][rank]


def apply_experts(rows, which, matrices):
    """tanh(x M_e), expert by expert; one without rows multiplies none."""
    out = torch.zeros_like(rows)
    for e, matrix in enumerate(matrices):
        here = (which == e).nonzero().flatten()
        out = out.index_add(0, here, torch.tanh(rows[here] @ matrix))
    return out


def inputs(n, k, popular):
    """All ranks' tokens, and what they chose; only experts of `popular` are chosen."""
    T = sum(map(tokens_of, range(n)))
    allowed = torch.full((E,), -100.0, dtype=torch.float64)
    allowed[list(popular)] = 0
    chosen = (random(3, T, E) + allowed).topk(k).indices
    return random(1, T, D), chosen, random(2, T, k).sigmoid(), random(4, E, D, D)


def dispatched():
    """Value and every gradient equal one process's, with experts and ranks that nobody chose."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for k, popular in ((1, range(E)), (3, range(E)), (2, (0, 1)), (2, (E - 1, 3)), (E, range(E))):
        x, chosen, weights, matrices = inputs(n, k, popular)
        whole = [leaf(x), leaf(weights), leaf(matrices)]
        every = torch.stack([torch.tanh(whole[0] @ matrix) for matrix in whole[2]], 1)  # (T, E, D)
        y = (every[torch.arange(len(x))[:, None], chosen] * whole[1].unsqueeze(-1)).sum(1)
        (y * random(5, *y.shape)).sum().backward()

        sizes = [tokens_of(r) for r in range(n)]
        part = [leaf(x.split(sizes)[rank]), leaf(weights.split(sizes)[rank]), leaf(matrices.chunk(n)[rank])]
        ours = simple.dispatch_and_combine(
            part[0], chosen.split(sizes)[rank], part[1], lambda rows, which, m=part[2]: apply_experts(rows, which, m), E
        )
        same(ours, y.split(sizes)[rank])
        (ours * random(5, *y.shape).split(sizes)[rank]).sum().backward()
        same(part[0].grad, whole[0].grad.split(sizes)[rank], "x")
        same(part[1].grad, whole[1].grad.split(sizes)[rank], "weights")
        same(part[2].grad, whole[2].grad.chunk(n)[rank], "experts")


def balanced():
    """The mean over the ranks of shares, and of their gradients, is the loss of all tokens in one process."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for k in (1, 3):
        _, chosen, _, _ = inputs(n, k, range(4))
        logits = leaf(random(6, len(chosen), E))
        P = logits.softmax(-1).mean(0)
        f = torch.stack([(chosen == e).sum() for e in range(E)]).double() / chosen.numel()
        loss = E * (f * P).sum()
        loss.backward()
        sizes = [tokens_of(r) for r in range(n)]
        part = leaf(logits.split(sizes)[rank])
        share = simple.balance_loss(part.softmax(-1), chosen.split(sizes)[rank])
        same(all_ranks_sum(share) / n, loss.detach())
        share.backward()
        same(part.grad / n, logits.grad.split(sizes)[rank], "logits")
    assert simple.balance_loss(torch.empty(0, E), torch.empty(0, 2, dtype=torch.int64)) == 0


def an_even_router():
    even = torch.full((E, E), 1 / E, dtype=torch.float64)
    share = simple.balance_loss(even, torch.arange(E).view(E, 1))
    same(share, torch.tensor(1.0, dtype=torch.float64))


def updated():
    n = dist.get_world_size()
    counts = torch.arange(4) * 2 + dist.get_rank()
    bias, before = torch.tensor([0.5, -1.0, 2.0, 0.0]), counts.clone()
    simple.update_bias(bias, counts, 0.25)
    torch.testing.assert_close(bias, torch.tensor([0.75, -0.75, 1.75, -0.25]), rtol=0, atol=0)
    assert torch.equal(counts, before)
    # Here the whole decides, not this rank's own: rank 0 has them all on the first, the others on the last.
    counts = torch.tensor([3, 0, 3 * n]) if dist.get_rank() == 0 else torch.tensor([3, 3 * n // (n - 1), 0])
    bias = torch.zeros(3)
    simple.update_bias(bias, counts, 0.125)
    alike(bias)
    total = all_ranks_sum(counts)
    assert bias.tolist() == [0.125 * ((total.sum() > 3 * c) * 1 - (total.sum() < 3 * c) * 1) for c in total.tolist()]


def bytes_sent():
    """What the formula says is what an even load sends; a collective's own rows do not leave the rank."""
    n = dist.get_world_size()
    T, k = 12, 2
    chosen = torch.arange(T * k).view(T, k) % E
    x, matrices = leaf(random(1, T, D)), leaf(random(4, E, D, D).chunk(n)[dist.get_rank()])
    weights = torch.ones(T, k, dtype=torch.float64)
    with spmd.traffic() as forward:
        y = simple.dispatch_and_combine(x, chosen, weights, lambda r, w: apply_experts(r, w, matrices), E)
    with spmd.traffic() as backward:
        y.sum().backward()
    assert forward.calls == {"all_to_all_single": 3} and backward.calls == {"all_to_all_single": 2}
    moved = [forward.collective_bytes["all_to_all_single"] - 8 * E, backward.collective_bytes["all_to_all_single"]]
    assert list(simple.exchange_bytes(T, D, k, n, itemsize=8)) == [size // n * (n - 1) for size in moved]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_taught_functions(ranks):
    spmd.run(all_of, [dispatched, balanced, an_even_router, updated, bytes_sent], ranks=ranks)
