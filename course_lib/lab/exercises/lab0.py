"""Lab 0: broadcast as a tree, the two rings, all-reduce of any size; and the line through the measured times."""

from __future__ import annotations

from math import ceil, log2

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import simple
from course_lib.lab.exercise import Case, Exercise, Timing, Wrong, random_tensor, vector
from course_lib.lab.exercises.lab0_cost import FIT_ALPHA_BETA
from course_lib.lab.exercises.wrong import all_gather, all_reduce, broadcast, reduce_scatter

FOUR_MILLION = 4_000_000  # elements: 16 MB of float32
RING_STEPS = "With n ranks there are n - 1 steps: does yours make n - 2?"
ONE_CHUNK = "Only one chunk need travel in each step."


def nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def large_vector(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor]:
    return (random_tensor((FOUR_MILLION // n * n,), rng),)


def large_chunk(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor]:
    return (random_tensor((FOUR_MILLION // n,), rng),)


# Broadcast


def gloo_broadcast(x: Tensor, root: int) -> Tensor:
    dist.broadcast(x, root)
    return x


def broadcast_expected(inputs: list[tuple], n: int) -> list[Tensor]:
    root = inputs[0][1]
    return [inputs[root][0]] * n


TREE_BROADCAST = Exercise(
    name="tree_broadcast",
    lab="lab0",
    title="Broadcast as a tree",
    minutes=15,
    difficulty=1,
    reference=simple.tree_broadcast,
    cases=[
        vector(lambda n: 5, root=lambda n: 0),
        vector(lambda n: 5, root=lambda n: n - 1),
        vector(lambda n: 3, root=lambda n: 1, dtype=torch.int64),
    ],
    expected=broadcast_expected,
    may_change=True,
    # The root sends once in each round. Other trees load other ranks, but none of them more than that.
    least_bytes=lambda n, rank, args: ceil(log2(n)) * nbytes(args[0]),
    timing=Timing(lambda rank, n, rng: (*large_vector(rank, n, rng), 0), "16 MB", {"gloo's own": gloo_broadcast}),
    hints=[
        "In each round, a rank either sends, receives, or has nothing to do. Which of the three depends on its place "
        "and on the distance of that round alone.",
        "Four ranks, root 0:\n"
        "    round 1, distance 1:   place 0 -> place 1\n"
        "    round 2, distance 2:   place 0 -> place 2,  place 1 -> place 3",
        "Place p sends if p < distance and p + distance < n. It receives if distance <= p < 2 * distance. Ranks are "
        "places turned by the root: whoever is `distance` places further on has rank `(rank + distance) % n`.",
    ],
    advice={
        "unchanged_input": "The ranks that have the data double in each round. Is there a round too few?",
        "root_0_only": "Is `place` counted from the root?",
        "too_many_bytes": "Let those who have the data already help to pass it on.",
        "unequal_steps": "Does somebody send to a place that is not there?",
    },
    wrong=[
        Wrong(broadcast.ignoring_root, "Right for root 0, wrong for root"),
        Wrong(broadcast.one_round_short, "returned their input unchanged"),
        Wrong(broadcast.by_root_alone, "1.5 times the bytes"),
        Wrong(broadcast.without_bound, "Does somebody send to a place that is not there?"),
        Wrong(broadcast.all_receive, "All receive first and nobody sends"),
        Wrong(broadcast.returning_input, "ranks 1, 2 and 3 returned their input unchanged"),
        Wrong(broadcast.by_gloo, "This calls `dist.broadcast`: torch did the work"),
    ],
)


# Ring reduce-scatter


def reduce_scatter_expected(inputs: list[tuple], n: int) -> list[Tensor]:
    return list(sum(x for (x,) in inputs).chunk(n))


def gloo_reduce_scatter(x: Tensor) -> Tensor:
    out = x.new_empty(x.numel() // dist.get_world_size())
    # torch 2.13 gave it a new name.
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(out, x)
    return out


RING_REDUCE_SCATTER = Exercise(
    name="ring_reduce_scatter",
    lab="lab0",
    title="Ring reduce-scatter",
    minutes=20,
    difficulty=2,
    reference=simple.ring_reduce_scatter,
    cases=[
        vector(lambda n: 2 * n),
        vector(lambda n: 5 * n),
        vector(lambda n: n, dtype=torch.int64),
    ],
    expected=reduce_scatter_expected,
    least_bytes=lambda n, rank, args: nbytes(args[0]) * (n - 1) // n,
    timing=Timing(large_vector, "16 MB", {"gloo's own": gloo_reduce_scatter}),
    hints=[
        "Follow one chunk. The sum of chunk c must end at rank c, and comes there from rank c - 1. So where does it "
        "set out, n - 1 steps earlier?",
        "Four ranks; who holds the partial sum of which chunk:\n"
        "              rank 0   rank 1   rank 2   rank 3\n"
        "    at first    c3       c0       c1       c2      (its own share of it)\n"
        "    step 1      c2       c3       c0       c1      (two shares)\n"
        "    step 2      c1       c2       c3       c0      (three)\n"
        "    step 3      c0       c1       c2       c3      (all four)",
        "Before the loop: `partial = chunks[left].clone()`. In step 1, 2, ... n - 1: send `partial` to the right, "
        "receive `incoming` from the left with `send_recv`, and add your own share of the chunk that came: number "
        "`(left - step) % n`.",
    ],
    advice={
        "another_ranks_value": "Look at which chunk you send **first**.",
        "share_missing": RING_STEPS,
        "mixed_chunks": "What goes to the right is what came from the left plus your own share of *that* chunk.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(
            reduce_scatter.off_by_one,
            "The values are right, their place is one too far. Look at which chunk you send",
        ),
        Wrong(reduce_scatter.short, "are missing. With n ranks there are n - 1 steps"),
        Wrong(reduce_scatter.whole_tensor, "4 times the bytes"),
        Wrong(reduce_scatter.into_sent_buffer, "is changed before that send is waited for"),
        Wrong(reduce_scatter.never_waiting, "is never waited for"),
        Wrong(reduce_scatter.send_send, "All send first and nobody receives"),
        Wrong(reduce_scatter.returning_input, "returned its input unchanged"),
        Wrong(reduce_scatter.own_chunk, "only its own values"),
        Wrong(reduce_scatter.mean, "a mean where a sum is needed"),
        Wrong(reduce_scatter.own_chunk_again, "should hold chunk 3 of every rank, added; it holds chunk 0 of rank 0"),
        Wrong(reduce_scatter.in_place, "changed its input in place"),
        Wrong(reduce_scatter.without_return, "Is a `return` missing?"),
        Wrong(reduce_scatter.by_gloo, "torch did the work"),
        Wrong(reduce_scatter.by_library, "This calls the library's `ring_reduce_scatter`"),
        Wrong(reduce_scatter.endless, "Does this loop end?"),
        Wrong(reduce_scatter.leftover_raise, "Delete that line"),
    ],
)


# Ring all-gather


def gloo_all_gather(chunk: Tensor) -> Tensor:
    out = chunk.new_empty(chunk.numel() * dist.get_world_size())
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, chunk)
    return out


def chunk_case(k: int, dtype: torch.dtype = torch.float32) -> Case:
    words = f"chunk = {k} element{'s' * (k != 1)}" + (f", {str(dtype)[6:]}" if dtype != torch.float32 else "")
    return Case(lambda rank, n, rng: (random_tensor((k,), rng, dtype),), label=words)


RING_ALL_GATHER = Exercise(
    name="ring_all_gather",
    lab="lab0",
    title="Ring all-gather",
    minutes=15,
    difficulty=2,
    reference=simple.ring_all_gather,
    cases=[chunk_case(2), chunk_case(5), chunk_case(1, torch.int64)],
    expected=lambda inputs, n: [torch.cat([chunk for (chunk,) in inputs])] * n,
    least_bytes=lambda n, rank, args: (n - 1) * nbytes(args[0]),
    timing=Timing(large_chunk, "16 MB", {"gloo's own": gloo_all_gather}),
    hints=[
        "Everybody starts with one chunk. After each step everybody has one more: the one that its left neighbour got "
        "the step before.",
        "Four ranks; what rank 2 sends and receives:\n"
        "    step 0   sends c2 (its own)   receives c1\n"
        "    step 1   sends c1             receives c0\n"
        "    step 2   sends c0             receives c3",
        "In step s rank r sends chunk `(r - s) % n` and receives chunk `(r - s - 1) % n`, straight into its row of "
        "`gathered`.",
    ],
    advice={
        "not_finite": RING_STEPS,
        "share_missing": RING_STEPS,
        "chunks_permuted": "Which chunk comes in step s? It belongs into the row of the rank that it set out from.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(all_gather.short, "With n ranks there are n - 1 steps"),
        Wrong(all_gather.rotated, "The values are right, their place is one too far"),
        Wrong(all_gather.own_chunk_only, "stands in 3 places"),
        Wrong(all_gather.in_order_of_arrival, "their order is not"),
        Wrong(all_gather.everything, "times the bytes. Only one chunk need travel"),
        Wrong(all_gather.wrong_shape, "their arrangement is not"),
        Wrong(all_gather.by_gloo, "This calls `dist.all_gather`: torch did the work"),
    ],
)


# All-reduce


def gloo_all_reduce(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


ALL_REDUCE = Exercise(
    name="all_reduce",
    lab="lab0",
    title="All-reduce, for any size",
    minutes=20,
    difficulty=3,
    reference=simple.all_reduce,
    cases=[
        vector(lambda n: 2 * n),
        vector(lambda n: 3 * n + 1),
        vector(lambda n: n - 1),
        vector(lambda n: 2 * n + 1, dtype=torch.int64),
        Case(
            lambda rank, n, rng: (random_tensor((3, 5), rng, torch.float64),),
            size=lambda n: 15,
            label="shape (3, 5), float64",
        ),
    ],
    expected=lambda inputs, n: [sum(x for (x,) in inputs)] * n,
    # A ring of full chunks: (n - 1) of them to reduce, (n - 1) to gather.
    least_bytes=lambda n, rank, args: 2 * (n - 1) * ceil(args[0].numel() / n) * args[0].element_size(),
    timing=Timing(large_vector, "16 MB", {"gloo's own": gloo_all_reduce}),
    hints=[
        "You have written both halves. `chunks` has n views of `total`, some of them one element longer than others; "
        "writing into a chunk writes into `total`.",
        "Four ranks; what rank 2 sends and receives:\n"
        "    step   0    1    2  |  3    4    5\n"
        "    sends  c1   c0   c3 |  c2   c1   c0\n"
        "    gets   c0   c3   c2 |  c1   c0   c3\n"
        "           added        |  copied",
        "In step s, of 2 * (n - 1): send chunk `(rank - 1 - s) % n`, receive chunk `(rank - 2 - s) % n` into a new "
        "tensor of that chunk's size. While s < n - 1 add it to the chunk you have; afterwards copy it over.",
    ],
    advice={
        "dividing_sizes_only": "Do your chunks, put together, make up all of x?",
        "partial_sums": "Adding ends after n - 1 steps: then finished sums arrive, which replace what is there.",
        "share_missing": "Reducing takes n - 1 steps, gathering n - 1 more.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(all_reduce.dividing_sizes, "Right where the number of ranks divides the size"),
        Wrong(all_reduce.short, "Reducing takes n - 1 steps"),
        Wrong(all_reduce.whole_tensor, "2 times the bytes"),
        Wrong(all_reduce.into_sent_buffer, "is changed before that send is waited for"),
        Wrong(all_reduce.mean, "a mean where a sum is needed"),
        Wrong(all_reduce.adding_throughout, "a sum, but of the wrong shares"),
        Wrong(all_reduce.maximum, "all ranks agree, but on a wrong value"),
        Wrong(all_reduce.without_gather, "Reducing takes n - 1 steps, gathering n - 1 more"),
        Wrong(all_reduce.of_rank_0, "holds rank 0's input"),
        Wrong(all_reduce.returning_input, "returned its input unchanged"),
        Wrong(all_reduce.in_place, "changed its input in place"),
        Wrong(all_reduce.flattened, "their arrangement is not"),
        Wrong(all_reduce.in_float, "it should stay int64"),
        Wrong(all_reduce.by_gloo, "This calls `dist.all_reduce`: torch did the work"),
        Wrong(all_reduce.exits, "called exit"),
        Wrong(all_reduce.killed, "killed by SIGKILL"),
        Wrong(all_reduce.raising, "raised ZeroDivisionError"),
    ],
)

EXERCISES = [TREE_BROADCAST, RING_REDUCE_SCATTER, RING_ALL_GATHER, ALL_REDUCE, FIT_ALPHA_BETA]
