"""The taught functions equal one process: value, the gradient of everything that is alike, each shard's own."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor_cases import alike, all_of, leaf, mine, random, same
from torch.autograd import gradcheck

from course_lib import spmd
from course_lib.collectives import autograd
from course_lib.parallel.tensor import simple

T, D, F_, V = 5, 6, 24, 36  # 2, 3 and 4 divide F and V


def conjugate_pair():
    """f and g do as the library's own pair, and neither writes to what it is given."""
    for ours, theirs in ((simple.CopyTo.apply, autograd.copy_to), (simple.ReduceFrom.apply, autograd.reduce_from)):
        x, upstream = random(1 + dist.get_rank(), 4, 3).T, random(9 + dist.get_rank(), 3, 4)
        mine_, other = leaf(x), leaf(x)
        before, grad_before = mine_.detach().clone(), upstream.clone()
        y, z = ours(mine_, None), theirs(other)
        same(y, z)
        y.backward(upstream)
        z.backward(upstream)
        same(mine_.grad, other.grad)
        assert torch.equal(mine_.detach(), before) and torch.equal(upstream, grad_before)


def columns_then_rows():
    whole = [leaf(random(i, *shape)) for i, shape in enumerate([(T, D), (F_, D), (F_,), (D, F_), (D,)])]
    x, up, up_bias, down, down_bias = whole
    y = F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
    y.square().sum().backward()
    parts = [leaf(x), mine(up), mine(up_bias), mine(down, 1), leaf(down_bias)]
    ours = simple.column_then_row(*parts)
    same(ours, y)
    alike(ours)
    ours.square().sum().backward()
    for part, p, dim in zip(parts, whole, (None, 0, 0, 1, None), strict=True):
        same(part.grad, p.grad if dim is None else mine(p.grad, dim), dim)


def embeddings():
    weight, tokens = leaf(random(3, V, D)), torch.arange(-3, 9).view(3, 4) % V
    F.embedding(tokens, weight).pow(3).sum().backward()
    part = mine(weight)
    x = simple.vocab_parallel_embedding(tokens, part)
    same(x, F.embedding(tokens, weight))
    alike(x)
    x.pow(3).sum().backward()
    same(part.grad, mine(weight.grad))


def losses():
    """Also where logits are so large that exp overflows, and where nothing is to be predicted."""
    labels = torch.tensor([0, V - 1, simple.IGNORE, 17, V // 2])
    for scale, offset in ((1, 0.0), (500, 900.0), (1, -2000.0)):
        logits = leaf(random(4, T, V) * scale + offset)
        expected = F.cross_entropy(logits, labels, ignore_index=simple.IGNORE, reduction="none")
        (expected * random(5, T)).sum().backward()
        part = mine(logits, 1)
        found = simple.vocab_parallel_losses(part, labels)
        same(found, expected)
        alike(found)
        (found * random(5, T)).sum().backward()
        same(part.grad, mine(logits.grad, 1))


def sequence_parallel():
    whole = [leaf(random(i, *shape)) for i, shape in enumerate([(12, D), (D,), (F_, D), (D, F_)])]
    x, norm, up, down = whole
    y = F.linear(F.gelu(F.linear(F.rms_norm(x, (D,), norm), up)), down)
    y.pow(3).sum().backward()
    parts = [mine(x), leaf(norm), mine(up), mine(down, 1)]
    ours = simple.sequence_parallel_mlp(*parts)
    same(ours, mine(y))
    ours.pow(3).sum().backward()
    for part, p, dim in zip(parts, whole, (0, None, 0, 1), strict=True):
        same(part.grad, p.grad if dim is None else mine(p.grad, dim), dim, 1e-8)


def initial_values():
    for dim in (0, 1):
        whole = torch.empty(12, 24).normal_(0, 0.3, generator=torch.Generator().manual_seed(11))
        shard = simple.initial_shard((12, 24), dim, 0.3, 11)
        assert torch.equal(shard, mine(whole, dim)) and shard.untyped_storage().nbytes() == shard.nbytes


def dropout():
    n = dist.get_world_size()
    x = torch.full((200, 50), 3.0, dtype=torch.float64)
    replicated = simple.region_dropout(x, 0.4, 7, sharded=False)
    alike(replicated)
    assert abs((replicated == 0).double().mean() - 0.4) < 0.03 and set(replicated.unique().tolist()) == {0.0, 3.0 / 0.6}
    masks = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(masks, simple.region_dropout(x, 0.4, 7, sharded=True))
    masks.append(replicated)
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(((a == 0) & (b == 0)).double().mean() - 0.16) < 0.02  # as independent draws overlap
    again = simple.region_dropout(x, 0.4, 7, sharded=True)
    assert torch.equal(again, masks[dist.get_rank()])


ALL = [conjugate_pair, columns_then_rows, embeddings, losses, sequence_parallel, initial_values, dropout]


def in_a_group():
    """Ranks 1 and 2 of 3: counted 0 and 1."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return
    weight, tokens = random(3, V, D), torch.arange(8)
    same(simple.vocab_parallel_embedding(tokens, mine(weight, group=group), group), weight[:8])
    logits, labels = random(4, T, V), torch.arange(T) * 7
    found = simple.vocab_parallel_losses(mine(logits, 1, group), labels, group)
    same(found, F.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(simple.initial_shard((4, 2), 0, 1, 5, group), simple.initial_shard((4, 2), 0, 1, 5, group))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_equal_to_one_process(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)


def test_equal_on_3_ranks_and_in_a_group_of_2_of_them():
    spmd.run(all_of, [*ALL, in_a_group], ranks=3, timeout=300)


@pytest.mark.parametrize(("heads", "kv_heads", "n"), [(4, 4, 2), (4, 2, 2), (6, 3, 3), (4, 2, 4), (8, 1, 4), (4, 4, 1)])
def test_each_rank_has_whole_heads_and_those_that_serve_them(heads, kv_heads, n):
    """Rows are named (matrix, head, row of the head)."""
    names = [("q", h, e) for h in range(heads) for e in range(2)]
    names += [(matrix, g, e) for matrix in "kv" for g in range(kv_heads) for e in range(2)]
    weight = torch.arange(len(names)).view(-1, 1)
    seen = []
    for rank in range(n):
        rows = [names[i] for i in simple.qkv_rows(weight, heads, kv_heads, rank, n).flatten()]
        mine_ = {matrix: sorted({h for m, h, _ in rows if m == matrix}) for matrix in "qkv"}
        assert rows == [(m, h, e) for m in "qkv" for h in mine_[m] for e in range(2)]
        assert mine_["k"] == mine_["v"] == sorted({h // (heads // kv_heads) for h in mine_["q"]})
        seen += mine_["q"]
    assert seen == list(range(heads))


def test_layer_bytes():
    """Four collectives of the whole each way; sequence parallel: halves of them, twice as many, and two more."""
    assert simple.layer_bytes(8, 16, 1) == simple.layer_bytes(8, 16, 1, 4, True) == (0, 0)
    assert simple.layer_bytes(8, 16, 4, 2) == (4 * 192, 4 * 192)
    assert simple.layer_bytes(8, 16, 4, 2, sequence_parallel=True) == (4 * 192, 6 * 192)


def test_gradients_are_those_of_the_function():
    """gradcheck on one rank: no term of the loss's derivative is lost, the largest logit's least of all."""

    def check():
        logits = leaf(random(1, 3, 4))
        assert gradcheck(lambda x: simple.vocab_parallel_losses(x, torch.tensor([0, 3, -100])), logits)

    spmd.run(check, ranks=1)
