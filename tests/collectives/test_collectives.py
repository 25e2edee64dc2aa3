"""Every algorithm against torch's own collectives, on every rank, over sizes, dtypes, reductions, roots and groups.

Ranks are started once for each world size; they run the whole table and send back the names of what is wrong.
"""

import functools

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives as c
from course_lib import spmd
from course_lib.collectives import direct, front, ring

WORLDS = [1, 2, 3, 4, 5, 8]
SIZES = [0, 1, 2, 7, 64, 1000]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def own(rank, *shape, dtype=torch.float32):
    """This rank's input: small whole numbers, so that every sum is exact in every dtype and order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-8, 8, shape, generator=generator).to(dtype)


def everyone(n, *shape, dtype=torch.float32):
    """(n, *shape): the inputs of all ranks, stacked. Every rank can work out the right answer from it."""
    return torch.stack([own(rank, *shape, dtype=dtype) for rank in range(n)])


class Table:
    """The results of many cases: how many were right, and the names of the others."""

    def __init__(self):
        self.right, self.wrong = 0, []

    def same(self, name, mine, expected):
        if mine is None or expected is None:
            good = mine is expected
        else:
            good = mine.shape == expected.shape and mine.dtype == expected.dtype and torch.equal(mine, expected)
        self.right += good
        if not good:
            self.wrong.append(name)


def reductions(table, rank, n, dtype, size):
    """All reducing collectives on one dtype and size."""
    x, all_x = own(rank, size, dtype=dtype), everyone(n, size, dtype=dtype)
    wide, all_wide = own(rank, n * size, dtype=dtype), everyone(n, n * size, dtype=dtype)
    ops = [(c.SUM, all_x.sum(0), all_wide.sum(0)), (c.MAX, all_x.amax(0), all_wide.amax(0))]
    ops.append((c.MIN, all_x.amin(0), all_wide.amin(0)))
    if dtype.is_floating_point:
        ops.append((c.AVG, all_x.sum(0) / n, all_wide.sum(0) / n))
        ops.append((c.PREMUL(0.5), (all_x * 0.5).sum(0), (all_wide * 0.5).sum(0)))
    for op, total, wide_total in ops:
        case = f"{op.name} {size} {dtype}"
        for algorithm in ("ring", "halving", "tree", "direct", "auto"):
            mine = x.clone()
            returned = c.all_reduce(mine, op, algorithm=algorithm)
            table.same(f"all_reduce {algorithm} {case}", mine, total)
            table.same(f"all_reduce returns x {algorithm} {case}", returned, mine)
        for algorithm in ("ring", "halving", "auto"):
            chunk = c.reduce_scatter(wide, op, algorithm=algorithm)
            table.same(f"reduce_scatter {algorithm} {case}", chunk, wide_total.view(n, size)[rank])
        for root in {0, n - 1}:
            table.same(f"reduce to {root} {case}", c.reduce(x, root, op), total if rank == root else None)
        table.same(f"inputs unchanged {case}", torch.cat([x, wide]), torch.cat([all_x[rank], all_wide[rank]]))


def movements(table, rank, n, dtype, size):
    """All collectives that only move data."""
    x, all_x = own(rank, size, dtype=dtype), everyone(n, size, dtype=dtype)
    case = f"{size} {dtype}"
    for algorithm in ("ring", "halving", "auto"):
        table.same(f"all_gather {algorithm} {case}", c.all_gather(x, algorithm=algorithm), all_x.flatten())
    for root in range(n):
        mine = x.clone()
        c.broadcast(mine, root)
        table.same(f"broadcast {root} {case}", mine, all_x[root])
        table.same(f"gather {root} {case}", c.gather(x, root), all_x.flatten() if rank == root else None)
        parts = own(root, n * size, dtype=dtype)
        out = c.scatter(torch.empty_like(x), parts if rank == root else None, root)
        table.same(f"scatter {root} {case}", out, parts.view(n, size)[rank])
    rows = own(rank, n * size, 3, dtype=dtype)
    expected = torch.cat([own(peer, n * size, 3, dtype=dtype).view(n, size, 3)[rank] for peer in range(n)])
    table.same(f"all_to_all {case}", c.all_to_all(rows), expected)


def uneven_all_to_all(table, rank, n):
    """Rank r sends (r + 2 * peer) % 3 rows to each peer: some send nothing to some."""
    counts = [[(source + 2 * to) % 3 for to in range(n)] for source in range(n)]
    sent = {peer: own(peer, sum(counts[peer]), 2).split(counts[peer]) for peer in range(n)}
    expected = torch.cat([sent[peer][rank] for peer in range(n)])
    receives = [counts[peer][rank] for peer in range(n)]
    table.same("all_to_all uneven", c.all_to_all(own(rank, sum(counts[rank]), 2), counts[rank], receives), expected)
    table.same("all_to_all finds counts", c.all_to_all(own(rank, sum(counts[rank]), 2), counts[rank]), expected)


def layouts(table, rank, n):
    """Not contiguous, more dimensions, an output given."""
    total = everyone(n, 6, 4).sum(0)
    for algorithm in ("ring", "halving", "tree"):
        turned = own(rank, 6, 4).t()
        c.all_reduce(turned, algorithm=algorithm)
        table.same(f"all_reduce {algorithm} transposed", turned, total.t())
    turned = own(rank, 6, 4).t()
    c.broadcast(turned, n - 1)
    table.same("broadcast transposed", turned, own(n - 1, 6, 4).t())
    table.same("reduce transposed", c.reduce(own(rank, 6, 4).t(), 0), total.t() if rank == 0 else None)
    strided, parts = own(rank, 8 * n, 3)[::2], everyone(n, 8 * n, 3)[:, ::2]
    for algorithm in ("ring", "halving"):
        mine = c.reduce_scatter(strided, algorithm=algorithm)
        table.same(f"reduce_scatter {algorithm} strided", mine, parts.sum(0).view(n, 4, 3)[rank])
        table.same(f"all_gather {algorithm} strided", c.all_gather(strided, algorithm=algorithm), parts.flatten(0, 1))
        out = torch.empty(n * 4)
        out[4 * rank : 4 * rank + 4] = own(rank, 4)
        c.all_gather(out[4 * rank : 4 * rank + 4], out=out, algorithm=algorithm)
        table.same(f"all_gather {algorithm} in its own output", out, everyone(n, 4).flatten())
        wide = own(rank, n * 4)
        c.reduce_scatter(wide, out=wide[4 * rank : 4 * rank + 4], algorithm=algorithm)
        expected = everyone(n, n * 4).sum(0)[4 * rank : 4 * rank + 4]
        table.same(f"reduce_scatter {algorithm} into its input", wide[4 * rank : 4 * rank + 4], expected)
    table.same("gather matrix", c.gather(own(rank, 2, 3)), everyone(n, 2, 3).flatten(0, 1) if rank == 0 else None)
    scalar = own(rank)
    c.all_reduce(scalar)
    table.same("all_reduce scalar", scalar, everyone(n).sum(0))
    table.same("all_gather scalar", c.all_gather(own(rank)), everyone(n))
    parameter = torch.nn.Parameter(own(rank, 5))
    table.same("all_reduce of a leaf that needs a gradient", c.all_reduce(parameter).detach(), everyone(n, 5).sum(0))


def many_blocks(table, rank, n):
    """A tensor of several blocks of the direct all-reduce, the last one short."""
    before, direct.BLOCK_BYTES = direct.BLOCK_BYTES, 64
    for size in (n, 100, 131):
        mine = own(rank, size)
        c.all_reduce(mine, c.AVG, algorithm="direct")
        table.same(f"direct all_reduce in blocks {size}", mine, everyone(n, size).sum(0) / n)
    direct.BLOCK_BYTES = before


def many_segments(table, rank, n):
    """A tensor of many segments, some of them short: what the pipeline of the ring is for."""
    before, ring.SEGMENT_BYTES = ring.SEGMENT_BYTES, 64
    for size in (16 * n, 97, 500):
        mine = own(rank, size)
        c.all_reduce(mine, c.AVG, algorithm="ring")
        table.same(f"ring all_reduce in segments {size}", mine, everyone(n, size).sum(0) / n)
        chunk = c.reduce_scatter(own(rank, n * size), algorithm="ring")
        table.same(f"ring reduce_scatter in segments {size}", chunk, everyone(n, n * size).sum(0).view(n, -1)[rank])
        table.same(
            f"ring all_gather in segments {size}",
            c.all_gather(own(rank, size), algorithm="ring"),
            everyone(n, size).flatten(),
        )
    ring.SEGMENT_BYTES = before


def in_flight(table, rank, n):
    """Several collectives in flight, waited for out of order, with others that are not in between."""
    first = c.all_reduce(own(rank, 5000), async_op=True)
    second = c.all_gather(own(rank, 7), async_op=True)
    third = c.reduce_scatter(own(rank, 3 * n), async_op=True)
    between = c.all_reduce(own(rank, 3))
    fourth = c.broadcast(own(rank, 4), n - 1, async_op=True)
    table.same("in flight: not async", between, everyone(n, 3).sum(0))
    table.same("in flight: fourth", fourth.wait(), own(n - 1, 4))
    table.same("in flight: third", third.wait(), everyone(n, 3 * n).sum(0).view(n, 3)[rank])
    table.same("in flight: second", second.wait(), everyone(n, 7).flatten())
    table.same("in flight: first", first.wait(), everyone(n, 5000).sum(0))
    assert first.done()
    root = c.gather(own(rank, 2), async_op=True).wait()
    table.same("in flight: gather", root, everyone(n, 2).flatten() if rank == 0 else None)
    table.same("in flight: all_to_all", c.all_to_all(own(rank, n), async_op=True).wait(), everyone(n, n)[:, rank])
    total = c.reduce(own(rank, 3), async_op=True).wait()
    table.same("in flight: reduce", total, everyone(n, 3).sum(0) if rank == 0 else None)
    part = c.scatter(torch.empty(1), own(0, n) if rank == 0 else None, async_op=True).wait()
    table.same("in flight: scatter", part, own(0, n)[rank : rank + 1])


def among_messages(table, rank, n):
    """A message of the caller's that is on its way before a collective begins and is received after it has ended."""
    note = torch.tensor([7.0, 7.0, 7.0])
    sent = dist.isend(note, 1) if n > 1 and rank == 0 else None
    table.same("all_reduce past a message", c.all_reduce(own(rank, 3), algorithm="tree"), everyone(n, 3).sum(0))
    if rank == 1:
        dist.recv(received := torch.empty(3), 0)
        table.same("the caller's message", received, note)
    if sent:
        sent.wait()


def two_levels(table, rank, n):
    for per_node in [size for size in range(1, n + 1) if n % size == 0]:
        groups = c.levels(per_node)
        for size in (0, 1, 10, 97):
            for op, total in ((c.SUM, everyone(n, size).sum(0)), (c.AVG, everyone(n, size).sum(0) / n)):
                mine = c.two_level_all_reduce(own(rank, size), groups, op)
                exact = n in (1, 2, 4, 8)  # thirds and fifths are rounded in a different order
                table.same(f"two levels {per_node} {op.name} {size}", mine, total if exact or op is c.SUM else mine)
                torch.testing.assert_close(mine, total)


def against_torch(table, rank, n):
    """The inputs of `everyone` are the test's own idea of the right answer; this is torch's."""
    x = own(rank, 33)
    theirs = x.clone()
    dist.all_reduce(theirs)
    table.same("torch's all_reduce", c.all_reduce(x.clone()), theirs)
    gathered = [torch.empty(33) for _ in range(n)]
    dist.all_gather(gathered, x)
    table.same("torch's all_gather", c.all_gather(x), torch.cat(gathered))
    dist.all_reduce(theirs := x.clone(), op=dist.ReduceOp.MAX)
    table.same("torch's MAX, by its name", c.all_reduce(x.clone(), dist.ReduceOp.MAX), theirs)
    rows = own(rank, n * 2)
    dist.all_to_all_single(theirs := torch.empty(n * 2), rows)
    table.same("torch's all_to_all", c.all_to_all(rows), theirs)


def run_all_cases():
    rank, n = dist.get_rank(), dist.get_world_size()
    table = Table()
    for dtype in DTYPES if n < 8 else DTYPES[:1]:
        for size in SIZES:
            reductions(table, rank, n, dtype, size)
            movements(table, rank, n, dtype, size)
    kinds = (
        uneven_all_to_all,
        layouts,
        many_segments,
        many_blocks,
        in_flight,
        among_messages,
        two_levels,
        against_torch,
    )
    for cases in kinds:
        cases(table, rank, n)
    return table.right, table.wrong


@functools.cache
def results(world):
    return spmd.run(run_all_cases, ranks=world, show=False, timeout=120)


@pytest.mark.parametrize("world", WORLDS)
def test_every_algorithm_is_right_on_every_rank(world):
    for rank, (right, wrong) in enumerate(results(world)):
        assert wrong == [], f"rank {rank}"
        assert right > 400


def in_sub_groups():
    """The odd ranks of a world of five: group ranks 0 and 1 are world ranks 1 and 3."""
    group = dist.new_group([1, 3])
    rank = dist.get_rank()
    if rank not in (1, 3):
        with pytest.raises(ValueError, match=r"rank \d called a collective of a group it is not in: .* \[1, 3\]"):
            c.all_reduce(torch.ones(2), group=group)
        return None
    x = torch.tensor([1, 2]) * 10**rank
    return {
        "ring": c.all_reduce(x.clone(), group=group, algorithm="ring").tolist(),
        "halving": c.all_reduce(x.clone(), group=group, algorithm="halving").tolist(),
        "tree": c.all_reduce(x.clone(), group=group, algorithm="tree").tolist(),
        "direct": c.all_reduce(x.clone(), group=group, algorithm="direct").tolist(),
        "reduce_scatter": c.reduce_scatter(x, group=group).tolist(),
        "all_gather": c.all_gather(x, group=group).tolist(),
        "broadcast": c.broadcast(x.clone(), root=1, group=group).tolist(),
        "scatter": c.scatter(torch.empty(1, dtype=torch.int64), x if rank == 1 else None, 0, group).tolist(),
        "all_to_all": c.all_to_all(x, group=group).tolist(),
        "in flight": c.all_reduce(x.clone(), group=group, async_op=True).wait().tolist(),
    }


def test_ranks_count_within_the_group_with_values_by_hand():
    _, one, _, three, _ = spmd.run(in_sub_groups, ranks=5, show=False)
    total = [1010, 2020]
    for name in ("ring", "halving", "tree", "direct", "in flight"):
        assert one[name] == three[name] == total
    assert (one["reduce_scatter"], three["reduce_scatter"]) == ([1010], [2020])
    assert one["all_gather"] == three["all_gather"] == [10, 20, 1000, 2000]
    assert one["broadcast"] == three["broadcast"] == [1000, 2000]
    assert (one["scatter"], three["scatter"]) == ([10], [20])
    assert (one["all_to_all"], three["all_to_all"]) == ([10, 1000], [20, 2000])


def adding_in_bfloat16():
    """Values that bfloat16 holds exactly and cannot add: its 8 bits lose a 1 beside a 256."""
    rank, n = dist.get_rank(), dist.get_world_size()
    share = [256.0, 1.0, 1.0, 1.0][rank]
    x = torch.full((n * 3,), share, dtype=torch.bfloat16)
    with spmd.traffic() as moved:
        ours = c.reduce_scatter(x, algorithm="fp32")
    return ours[0].item(), c.reduce_scatter(x, algorithm="ring")[0].item(), moved.sent


def test_fp32_reduce_scatter_rounds_once_and_sends_no_more_than_bfloat16():
    ours, in_bfloat16, sent = zip(*spmd.run(adding_in_bfloat16, ranks=4, show=False), strict=True)
    assert ours == (260,) * 4  # 259, rounded once
    # The chunk of rank r collects the shares of r + 1, r + 2, ...: where 256 comes first, every 1 after it is lost.
    assert in_bfloat16 == (260, 260, 256, 256)
    assert sent == (3 * 3 * 2,) * 4  # to three peers three elements of two bytes


def random_bfloat16():
    rank, n = dist.get_rank(), dist.get_world_size()
    shares = [torch.randn(n * 500, generator=torch.Generator().manual_seed(peer)).bfloat16() for peer in range(n)]
    in_fp32 = torch.stack([share.float() for share in shares]).sum(0).view(n, -1)[rank].bfloat16()
    ours = c.reduce_scatter(shares[rank], algorithm="fp32")
    in_bf16 = c.reduce_scatter(shares[rank], algorithm="ring")
    torch.testing.assert_close(ours, in_fp32, rtol=0, atol=0)
    return (in_bf16 != in_fp32).float().mean().item()


def test_fp32_reduce_scatter_equals_float32_and_the_ring_in_bfloat16_does_not():
    assert min(spmd.run(random_bfloat16, ranks=4, show=False)) > 0.05


def bytes_by_algorithm():
    moved = {}
    for algorithm in front.ALL_REDUCE:
        with spmd.traffic() as traffic:
            c.all_reduce(torch.ones(4000), algorithm=algorithm)
        moved[algorithm] = (traffic.sent, traffic.messages)
    return moved


def test_the_ring_direct_and_halving_send_the_least_possible():
    for moved in spmd.run(bytes_by_algorithm, ranks=4, show=False):
        assert moved["ring"] == moved["direct"] == (2 * 3 * 4000, 6)  # 2(n-1) chunks of 1,000 elements of 4 bytes
        assert moved["halving"] == (2 * 3 * 4000, 4)  # the same in 2 log2(n) messages


def refusals():
    said = {}

    def refused(name, call, *args, **kwargs):
        with pytest.raises(ValueError) as error:
            call(*args, **kwargs)
        said[name] = str(error.value)

    ones = torch.ones(10)
    refused("root", c.broadcast, ones, root=4)
    refused("uneven", c.reduce_scatter, ones)
    refused("avg", c.all_reduce, torch.ones(3, dtype=torch.int64), c.AVG)
    refused("algorithm", c.all_reduce, ones, algorithm="butterfly")
    refused("op", c.all_reduce, ones, "sum")
    refused("rows", c.all_to_all, ones)
    refused("counts", c.all_to_all, ones, [1, 2, 3])
    refused("sum", c.all_to_all, ones, [1, 2, 3, 5])
    refused("out", c.all_gather, ones, out=torch.empty(10))
    refused("scatter", c.scatter, torch.empty(3), ones, root=dist.get_rank())
    refused("no x", c.scatter, torch.empty(3), None, root=dist.get_rank())
    refused("nodes", c.levels, 3)
    return said


def test_bad_input_is_refused_in_one_sentence_with_the_numbers():
    said = spmd.run(refusals, ranks=4, show=False)[0]
    assert said == {
        "root": "root 4 is not in this group of 4 ranks: choose 0 to 3, counted in the group",
        "uneven": "reduce_scatter cannot deal 10 rows equally to 4 ranks: pad x to 12 rows or pass 8",
        "avg": "AVG makes fractions and x is torch.int64: use SUM, or a floating-point x",
        "algorithm": "unknown algorithm 'butterfly': choose auto, tree, direct, ring, halving",
        "op": "unknown reduction 'sum': use SUM, AVG, MAX, MIN or PREMUL(factor) of course_lib.collectives",
        "rows": "10 rows cannot be dealt equally to 4 ranks: pass send_counts, 4 numbers",
        "counts": "send_counts is [1, 2, 3]: it needs 4 numbers, one for each rank, none below 0",
        "sum": "send_counts [1, 2, 3, 5] add up to 11 rows and x has 10",
        "out": "all_gather writes (40,) of torch.float32, contiguous; out is (10,) of torch.float32",
        "scatter": "scatter to 4 ranks needs 4 x 3 = 12 elements of torch.float32 on the root, and x has 10 of "
        "torch.float32",
        "no x": "rank 0 is the root of this scatter and passed no x: pass 4 parts shaped like out",
        "nodes": "4 ranks are not a whole number of nodes of 3: per_node can be one of [1, 2, 4]",
    }
