"""Lab 2a: right answers that are written otherwise than the library's pass, too."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.autograd import Function

from course_lib.collectives.autograd import all_gather, copy_to, reduce_from, reduce_scatter
from course_lib.lab import exercise, trial
from course_lib.lab.checking import PASSED, examine
from course_lib.parallel.tensor.simple import CopyTo, ReduceFrom

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


# f and g


@right("CopyTo")
class ReturnsItself(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.ranks = group
        return x

    @staticmethod
    def backward(ctx, grad):
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.ranks, async_op=True).wait()
        return total, None


@right("CopyTo")
class WithSetup(Function):
    @staticmethod
    def forward(x, group):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        total = grad + 0
        dist.all_reduce(total, group=ctx.group)
        return (total, None)


@right("ReduceFrom")
class Gently(Function):
    @staticmethod
    def forward(ctx, x, group):
        total = torch.empty_like(x).copy_(x)
        work = dist.all_reduce(total, group=group, async_op=True)
        work.wait()
        return total

    @staticmethod
    def backward(ctx, *grads):
        return grads[0].clone(), None


@right("ReduceFrom")
class ByTorchsSetup(Function):
    @staticmethod
    def forward(x, group):
        total = x.contiguous().clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return (grad, None)


# Column, then row


@right("column_then_row")
def by_the_taught_pair(x, up, up_bias, down, down_bias, group=None):
    hidden = torch.nn.functional.gelu(CopyTo.apply(x, group) @ up.T + up_bias)
    return ReduceFrom.apply(hidden @ down.T, group) + down_bias


@right("column_then_row")
def by_transposed_products(x, up, up_bias, down, down_bias, group=None):
    hidden = torch.nn.GELU()(torch.addmm(up_bias, copy_to(x, group), up.T))
    return down_bias.unsqueeze(0) + reduce_from(down @ hidden.T, group).T


# Whole heads


@right("qkv_rows")
def by_index(weight, n_heads, n_kv_heads, rank, n):
    head_dim = len(weight) // (n_heads + 2 * n_kv_heads)
    mine = range(rank * n_heads // n, (rank + 1) * n_heads // n)
    served = sorted({h // (n_heads // n_kv_heads) for h in mine})
    heads = [*mine, *(n_heads + g for g in served), *(n_heads + n_kv_heads + g for g in served)]
    return weight[torch.tensor([h * head_dim + e for h in heads for e in range(head_dim)])]


@right("qkv_rows")
def by_views(weight, n_heads, n_kv_heads, rank, n):
    heads = weight.unflatten(0, (n_heads + 2 * n_kv_heads, -1))
    each = max(1, n_kv_heads // n)
    start = rank * n_kv_heads // n
    q, kv = heads[:n_heads], heads[n_heads:].unflatten(0, (2, n_kv_heads))
    return torch.cat([q.chunk(n)[rank], kv[:, start : start + each].flatten(0, 1)]).flatten(0, 1)


# The vocabulary


@right("vocab_parallel_embedding")
def by_a_product(tokens, weight, group=None):
    names = torch.arange(len(weight)) + dist.get_rank(group) * len(weight)
    one_hot = (tokens.unsqueeze(-1) == names).to(weight.dtype)
    return ReduceFrom.apply(one_hot @ weight, group)


@right("vocab_parallel_embedding")
def written_where_they_belong(tokens, weight, group=None):
    start = dist.get_rank(group) * len(weight)
    here = torch.logical_and(tokens >= start, tokens < start + len(weight))
    x = weight.new_zeros(*tokens.shape, weight.shape[1])
    x[here] = weight[tokens[here] - start]
    return reduce_from(x, group)


@right("vocab_parallel_embedding")
def with_a_row_of_zeros(tokens, weight, group=None):
    local = tokens - dist.get_rank(group) * len(weight)
    local[(local < 0) | (local >= len(weight))] = len(weight)
    return reduce_from(torch.cat([weight, torch.zeros_like(weight[:1])])[local], group)


@right("vocab_parallel_losses")
def by_logsumexp(logits, labels, group=None):
    part = logits.logsumexp(-1)
    largest = part.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    start, size = dist.get_rank(group) * logits.shape[1], logits.shape[1]
    here = (labels >= start) & (labels < start + size)
    target = torch.where(here, logits[torch.arange(len(labels)), (labels - start) % size], 0.0)
    total = largest + reduce_from((part - largest).exp(), group).log()
    return torch.where(labels == -100, 0.0, total - reduce_from(target, group))


@right("vocab_parallel_losses")
def two_sums_at_once(logits, labels, group=None):
    with torch.no_grad():
        largest = logits.max(dim=-1, keepdim=True).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    logits = logits - largest
    one_hot = labels.unsqueeze(-1) == torch.arange(logits.shape[1]) + dist.get_rank(group) * logits.shape[1]
    total, target = ReduceFrom.apply(torch.stack([logits.exp().sum(-1), (logits * one_hot).sum(-1)]), group)
    return (total.log() - target) * (labels >= 0)


# Sequence parallel


@right("sequence_parallel_mlp")
def norm_summed_by_a_hook(x, norm_weight, up, down, group=None):
    def summed(grad):
        total = grad.clone()
        dist.all_reduce(total, group=group)
        return total

    weight = norm_weight.view_as(norm_weight)
    weight.register_hook(summed)
    scale = (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt()
    hidden = torch.nn.functional.gelu(all_gather(x * scale * weight, group=group) @ up.T)
    return reduce_scatter(hidden @ down.T, group=group)


class Gather(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        return reduce_scatter(grad, 0, ctx.group), None


@right("sequence_parallel_mlp")
def by_its_own_function(x, norm_weight, up, down, group=None):
    norm_weight = CopyTo.apply(norm_weight, group)
    x = Gather.apply(torch.nn.functional.rms_norm(x, x.shape[-1:], norm_weight), group)
    return reduce_scatter(torch.nn.functional.gelu(x @ up.T) @ down.T, 0, group)


# Bytes


@right("layer_bytes")
def by_halves(tokens, dim, n, itemsize=4, sequence_parallel=False):
    halves = 4, 4 + 2 * sequence_parallel
    return tuple(count * (n - 1) * tokens * dim * itemsize / n for count in halves)


@right("layer_bytes")
def by_the_cost_of_collectives(tokens, dim, n, itemsize=4, sequence_parallel=False):
    whole = tokens * dim * itemsize
    gather = reduce_scatter = whole * (n - 1) // n
    if sequence_parallel:
        return [2 * (gather + reduce_scatter), 2 * (gather + reduce_scatter + gather)]
    return [2 * (gather + reduce_scatter)] * 2


# Chance


@right("initial_shard")
def split_by_sizes(shape, dim, std, seed, group=None):
    generator = torch.Generator()
    generator.manual_seed(seed)
    whole = torch.normal(torch.zeros(tuple(shape)), std, generator=generator)
    size = shape[dim] // dist.get_world_size(group)
    return whole.narrow(dim, dist.get_rank(group) * size, size).contiguous().clone()


@right("initial_shard")
def with_numbers_of_its_own(shape, dim, std, seed, group=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = torch.empty(shape).normal_(0, std)
    return torch.tensor(whole.tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)].tolist())


@right("region_dropout")
def by_torchs_dropout(x, p, seed, sharded, group=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1000 + (dist.get_rank(group) + 1) * sharded)
        return torch.nn.functional.dropout(x, p)


@right("region_dropout")
def by_numbers_drawn_from_the_seed(x, p, seed, sharded, group=None):
    seeds = torch.randint(2**40, (dist.get_world_size(group) + 1,), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(int(seeds[1 + dist.get_rank(group) if sharded else 0]))
    return x * torch.bernoulli(torch.full_like(x, 1 - p), generator=generator) / (1 - p)


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    few = (2, 3) if one.on_ranks else (1,)
    verdict = examine(replace(one, worlds=few, timing=None), answer)
    assert verdict.state == PASSED, verdict.message


def test_what_is_said_where_nothing_need_travel():
    """No word of collectives that nobody called; and the closing word of a right answer."""
    one = replace(exercise.find("initial_shard"), worlds=(2,))
    wrong = next(wrong.answer for wrong in one.wrong if wrong.answer.__name__ == "first_part")
    assert "collective" not in examine(one, wrong).message.text
    assert examine(one, one.reference).message.text == f"Passed on 2 ranks. {one.closing}"
