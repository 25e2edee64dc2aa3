"""Lab 2c: right answers that are written otherwise than the library's pass, too."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.collectives.autograd import all_to_all
from course_lib.lab import exercise, trial
from course_lib.lab.checking import PASSED, examine
from course_lib.parallel.expert.dispatch import exchange_counts

RIGHT = {}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine makes no answer wrong."""
    monkeypatch.setattr(trial, "PATIENCE_S", 10)


def right(name):
    """Collects an answer to the exercise of that name."""

    def collect(answer):
        RIGHT[f"{name}: {answer.__name__}"] = (name, answer)
        return answer

    return collect


# Choose, up to a capacity


@right("route_with_capacity")
def token_by_token(scores, k, capacity):
    room = [capacity] * scores.shape[1]
    chosen = scores.argsort(dim=-1, descending=True)[:, :k]
    weights = F.normalize(torch.take_along_dim(scores, chosen, -1), p=1, dim=-1)
    kept = torch.zeros_like(chosen, dtype=torch.bool)
    for t, row in enumerate(chosen.tolist()):
        for j, e in enumerate(row):
            kept[t, j] = room[e] > 0
            room[e] -= 1
    return [chosen, weights, kept]


@right("route_with_capacity")
def by_comparing_all_choices(scores, k, capacity):
    weights, chosen = torch.sort(scores, dim=-1, descending=True, stable=True)
    weights, chosen = weights[:, :k], chosen[:, :k]
    flat = chosen.reshape(-1)
    before = (flat.unsqueeze(0) == flat.unsqueeze(1)).tril(-1).sum(1)
    return chosen, weights / weights.sum(1, keepdim=True), (before < capacity).view_as(chosen)


@right("route_with_capacity")
def by_logits(scores, k, capacity):
    logits = scores.log()
    best, chosen = logits.topk(k, dim=-1)
    queue = torch.zeros_like(scores, dtype=torch.int64).scatter_(1, chosen, 1)
    place = torch.cumsum(queue, 0) * queue
    return chosen, best.softmax(-1), place.gather(1, chosen) <= capacity


# Dispatch and combine


@right("dispatch_and_combine")
def added_in_place(x, chosen, weights, experts, n_experts, group=None):
    n, k = dist.get_world_size(group), chosen.shape[1]
    send = torch.bincount(chosen.flatten(), minlength=n_experts).view(n, n_experts // n)
    receive = exchange_counts(send, group)
    which = torch.arange(n_experts // n).repeat(n).repeat_interleave(receive.flatten())
    out, back = send.sum(1).tolist(), receive.sum(1).tolist()
    order = chosen.flatten().argsort()
    rows = all_to_all(x.repeat_interleave(k, 0)[order], out, back, group)
    rows = all_to_all(experts(rows, which), back, out, group)
    rows = rows * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, order // k, rows)


@right("dispatch_and_combine")
def by_torchs_exchange_with_gradients(x, chosen, weights, experts, n_experts, group=None):
    from torch.distributed.nn.functional import all_to_all_single

    n, T, k = dist.get_world_size(group), *chosen.shape
    send = torch.bincount(chosen.flatten(), minlength=n_experts).view(n, n_experts // n)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    which = torch.cat([torch.arange(n_experts // n).repeat_interleave(row) for row in receive])
    out, back = send.sum(1).tolist(), receive.sum(1).tolist()
    order = torch.sort(chosen.flatten(), stable=True).indices
    group = group or dist.group.WORLD
    arrived = all_to_all_single(x.new_empty(sum(back), x.shape[1]), x[order // k], back, out, group=group)
    results = experts(arrived, which)
    returned = all_to_all_single(x.new_empty(T * k, x.shape[1]), results, out, back, group=group)
    own = torch.zeros_like(returned).index_copy(0, order, returned)
    return torch.einsum("tkd,tk->td", own.view(T, k, x.shape[1]), weights)


@right("dispatch_and_combine")
def expert_by_expert(x, chosen, weights, experts, n_experts, group=None):
    n, k = dist.get_world_size(group), chosen.shape[1]
    places = [(chosen == e).nonzero() for e in range(n_experts)]
    send = torch.tensor([len(place) for place in places]).view(n, -1)
    receive = exchange_counts(send, group)
    which = torch.arange(n_experts // n).repeat(n).repeat_interleave(receive.flatten())
    out, back = send.sum(1).tolist(), receive.sum(1).tolist()
    token, choice = torch.cat(places).unbind(1)
    rows = experts(all_to_all(x[token], out, back, group), which)
    rows = all_to_all(rows, back, out, group)
    everything = torch.zeros(*chosen.shape, x.shape[1]).index_put((token, choice), rows)
    return sum((everything[:, j] * weights[:, j, None] for j in range(k)), torch.zeros_like(x))


# The balance loss


@right("balance_loss")
def whole_on_each_rank(probabilities, chosen, group=None):
    from torch.distributed.nn.functional import all_reduce

    everywhere = group or dist.group.WORLD
    sizes = torch.cat([F.one_hot(chosen, probabilities.shape[1]).sum((0, 1)), torch.tensor([len(chosen)])])
    dist.all_reduce(sizes, group=group)
    P = all_reduce(probabilities.sum(0), group=everywhere) / sizes[-1].clamp(min=1)
    return probabilities.shape[1] * (sizes[:-1] / sizes[:-1].sum().clamp(min=1)) @ P


@right("balance_loss")
def token_by_token_weighed(probabilities, chosen, group=None):
    E, n = probabilities.shape[1], dist.get_world_size(group)
    mine = torch.stack([(chosen == e).sum() for e in range(E)])
    counts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(counts, mine, group=group)
    total = torch.stack(counts).sum(0)
    tokens = max(int(total.sum()) // chosen.shape[1], 1)
    pull = total.float() / (tokens * chosen.shape[1])
    return (probabilities @ pull).sum() * (n * E / tokens)


@right("balance_loss")
def in_float64(probabilities, chosen, group=None):
    n, E = dist.get_world_size(group), probabilities.shape[-1]
    f = torch.zeros(E, dtype=torch.float64).index_add(0, chosen.flatten(), torch.ones(chosen.numel()).double())
    dist.all_reduce(f, group=group)
    choices = max(f.sum().item(), 1.0)
    return n * E * chosen.shape[1] * torch.dot(f / choices, probabilities.double().sum(0) / choices)


# The bytes of an exchange


@right("exchange_bytes")
def by_a_fraction(tokens, dim, top_k, n, itemsize=4):
    forward = 2 * tokens * top_k * dim * itemsize * (n - 1) / n
    return [forward, forward]


@right("exchange_bytes")
def counted_row_by_row(tokens, dim, top_k, n, itemsize=4):
    total = 0
    for row in range(tokens * top_k):
        if row % n != 0:  # this rank is rank 0
            total += 4 * dim * itemsize
    return total // 2, total // 2


# A bias


@right("route_with_bias")
def in_order_of_scores(scores, bias, k):
    allowed = torch.zeros_like(scores, dtype=torch.bool)
    allowed.scatter_(1, (scores + bias).topk(k).indices, True)
    weights, chosen = scores.masked_fill(~allowed, -1.0).sort(dim=-1, descending=True)
    return [chosen[:, :k], weights[:, :k] / weights[:, :k].sum(-1, keepdim=True)]


@right("route_with_bias")
def bias_taken_off_again(scores, bias, k):
    best, chosen = torch.topk(scores + bias, k)
    return chosen, F.normalize(best - bias[chosen], p=1, dim=-1)


@right("update_bias")
def by_comparing(bias, counts, rate, group=None):
    load = counts.double()
    dist.all_reduce(load, group=group)
    mean = load.sum() / len(load)
    bias.add_(rate * ((load < mean).float() - (load > mean).float()))


@right("update_bias")
def expert_by_expert_of_gathered(bias, counts, rate, group=None):
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, counts.tolist(), group=group)
    load = [sum(column) for column in zip(*gathered, strict=True)]
    for e, count in enumerate(load):
        if count * len(load) < sum(load):
            bias[e] += rate
        elif count * len(load) > sum(load):
            bias[e] -= rate


@right("update_bias")
def of_whole_numbers(bias, counts, rate, group=None):
    total = counts + 0
    dist.all_reduce(total, group=group)
    bias.copy_(bias + rate * torch.sign(total.sum() - len(total) * total))
    return bias


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    verdict = examine(replace(one, worlds=(2, 3)) if one.on_ranks else one, answer)
    assert verdict.state == PASSED, verdict.message
