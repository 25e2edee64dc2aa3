"""Wrong answers to `dispatch_and_combine`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.autograd import all_to_all
from course_lib.parallel.expert.dispatch import exchange_counts

Group = dist.ProcessGroup | None


def given(x: Tensor, chosen: Tensor, n_experts: int, group: Group) -> SimpleNamespace:
    """What the exercise's cell computes before the blank, and the right order."""
    n = dist.get_world_size(group)
    send = torch.bincount(chosen.flatten(), minlength=n_experts).view(n, n_experts // n)
    receive = exchange_counts(send, group)
    which = torch.arange(n_experts // n, device=x.device).repeat(n).repeat_interleave(receive.flatten())
    order = chosen.flatten().argsort(stable=True)
    out, back = send.sum(1).tolist(), receive.sum(1).tolist()
    return SimpleNamespace(n=n, k=chosen.shape[1], which=which, order=order, send=out, receive=back)


def add(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows.unflatten(0, weights.shape) * weights.unsqueeze(-1)).sum(1)


def there_and_back(rows: Tensor, g: SimpleNamespace, experts: Callable, group: Group) -> Tensor:
    rows = experts(all_to_all(rows, g.send, g.receive, group), g.which)
    return all_to_all(rows, g.receive, g.send, group)


def in_expert_order(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[g.order // g.k], g, experts, group), weights)


def sorted_twice(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[g.order // g.k], g, experts, group)[g.order], weights)


def kept_where_computed(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = experts(all_to_all(x[g.order // g.k], g.send, g.receive, group), g.which)
    return add(rows[g.order.argsort()], weights)


def modulo_tokens(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order % max(len(x), 1)], g, experts, group)
    return add(rows[g.order.argsort()], weights)


def unsorted(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x.repeat_interleave(g.k, 0), g, experts, group), weights)


def by_rank_alone(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    order = (chosen.flatten() // (n_experts // g.n)).argsort(stable=True)
    return add(there_and_back(x[order // g.k], g, experts, group)[order.argsort()], weights)


def without_weights(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()]
    return rows.unflatten(0, weights.shape).sum(1)


def mean_of_results(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()]
    return rows.unflatten(0, weights.shape).mean(1)


def weighed_before(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = (x.unsqueeze(1) * weights.unsqueeze(-1)).flatten(0, 1)[g.order]
    return there_and_back(rows, g, experts, group)[g.order.argsort()].unflatten(0, weights.shape).sum(1)


def weighed_before_and_after(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = (x.unsqueeze(1) * weights.unsqueeze(-1)).flatten(0, 1)[g.order]
    return add(there_and_back(rows, g, experts, group)[g.order.argsort()], weights)


def weighed_twice(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, experts, group) * weights.flatten()[g.order].unsqueeze(-1)
    return add(rows[g.order.argsort()], weights)


def weights_in_expert_order(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()]
    return add(rows, weights.flatten()[g.order].view(weights.shape))


def first_choice_alone(x, chosen, weights, experts, n_experts, group=None):
    chosen, weights = chosen[:, :1], weights[:, :1]
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[g.order], g, experts, group)[g.order.argsort()], weights)


def k_by_T(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()]
    return (rows.unflatten(0, weights.T.shape) * weights.T.unsqueeze(-1)).sum(0)


def experts_left_out(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[g.order // g.k], g, lambda rows, which: rows, group)[g.order.argsort()], weights)


def a_row_for_each_token(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[chosen[:, 0].argsort()], g, experts, group), weights)


def counts_swapped_on_the_way_out(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = experts(all_to_all(x[g.order // g.k], g.receive, g.send, group), g.which)
    return add(all_to_all(rows, g.receive, g.send, group)[g.order.argsort()], weights)


def counts_not_swapped_on_the_way_back(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = experts(all_to_all(x[g.order // g.k], g.send, g.receive, group), g.which)
    return add(all_to_all(rows, g.send, g.receive, group)[g.order.argsort()], weights)


def leaving_without_tokens(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    if len(x) == 0:
        return torch.zeros_like(x)
    return add(there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()], weights)


def leaving_where_no_row_came(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = all_to_all(x[g.order // g.k], g.send, g.receive, group)
    if len(rows) == 0:
        return torch.zeros_like(x)
    rows = all_to_all(experts(rows, g.which), g.receive, g.send, group)
    return add(rows[g.order.argsort()], weights)


def experts_called_for_rows_alone(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = there_and_back(x[g.order // g.k], g, lambda rows, which: experts(rows, which) if len(rows) else rows, group)
    return add(rows[g.order.argsort()], weights)


def exchanged(rows: Tensor, send: list[int], receive: list[int], group: Group) -> Tensor:
    """torch's own exchange, which has no gradient."""
    received = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(received, rows.detach().contiguous(), receive, send, group=group)
    return received


def by_torchs_exchange(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    rows = experts(exchanged(x[g.order // g.k], g.send, g.receive, group), g.which)
    return add(exchanged(rows, g.receive, g.send, group)[g.order.argsort()], weights)


def sent_without_a_graph(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x.detach()[g.order // g.k], g, experts, group)[g.order.argsort()], weights)


def weights_cut_off(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    return add(there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()], weights.detach())


def everything_to_everybody(x, chosen, weights, experts, n_experts, group=None):
    n, (T, k) = dist.get_world_size(group), chosen.shape
    here = n_experts // n
    sizes = exchange_counts(torch.full((n,), T), group).tolist()
    rows = all_to_all(x.repeat(n, 1), [T] * n, sizes, group)
    choices = choices_of_all(chosen, T, sizes, group)
    out = []
    for j in range(k):
        mine = choices[:, j] // here == dist.get_rank(group)
        result = experts(rows[mine], choices[mine, j] % here)
        full = torch.zeros_like(rows).index_copy(0, mine.nonzero().flatten(), result)
        out.append(all_to_all(full, sizes, [T] * n, group).view(n, *x.shape).sum(0))
    return add(torch.stack(out, 1).flatten(0, 1), weights)


def choices_of_all(chosen: Tensor, T: int, sizes: list[int], group: Group) -> Tensor:
    """All ranks' choices."""
    n = dist.get_world_size(group)
    received = chosen.new_empty(sum(sizes), chosen.shape[1])
    dist.all_to_all_single(received, chosen.repeat(n, 1), sizes, [T] * n, group=group)
    return received


def without_group(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, None)
    return add(there_and_back(x[g.order // g.k], g, experts, None)[g.order.argsort()], weights)


def without_return(x, chosen, weights, experts, n_experts, group=None):
    g = given(x, chosen, n_experts, group)
    add(there_and_back(x[g.order // g.k], g, experts, group)[g.order.argsort()], weights)
