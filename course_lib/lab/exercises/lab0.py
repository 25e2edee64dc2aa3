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
    least_total=lambda n, args: (n - 1) * nbytes(args[0]),
    least_of="the least a tree can",
    takes_group=True,
    timing=Timing(lambda rank, n, rng: (*large_vector(rank, n, rng), 0), "16 MB", {"gloo's own": gloo_broadcast}),
    hints=[
        "In each round, a rank either sends, receives, or has nothing to do. Which of the three depends on its place "
        "and on the distance of that round alone.",
        "Four ranks, root 0:\n"
        "    distance 1:   place 0 -> place 1\n"
        "    distance 2:   place 0 -> place 2,  place 1 -> place 3",
        "Place p sends if p < distance and p + distance < n. It receives if distance <= p < 2 * distance. Ranks are "
        "places turned by the root: whoever is `distance` places further on has rank `(rank + distance) % n`.",
    ],
    advice={
        "another_number": "The ranks that have the data double in each round.",
        "arrived_and_dropped": "Receive into the tensor you return.",
        "root_0_only": "Is `place` counted from the root?",
        "too_many_bytes": "Let those who have the data already help to pass it on.",
        "unequal_steps": "Does somebody send to a place that is not there?",
    },
    wrong=[
        Wrong(broadcast.ignoring_root, "Right for root 0, wrong for root"),
        Wrong(broadcast.one_round_short, "returned their input unchanged: no message came in there"),
        Wrong(broadcast.by_root_alone, "1.5 times the bytes"),
        Wrong(broadcast.without_bound, "Does somebody send to a place that is not there?"),
        Wrong(broadcast.all_receive, "All receive first and nobody sends"),
        Wrong(broadcast.returning_input, "ranks 1, 2 and 3 returned their input unchanged. No rank sent a message."),
        Wrong(broadcast.forgetting_to_double, "and messages still pass"),
        Wrong(broadcast.into_a_fresh_buffer, "but are not in what it returned. Receive into the tensor you return."),
        Wrong(broadcast.keeping_what_recv_returns, "keeps what `dist.recv` returns, the sender's rank"),
        Wrong(broadcast.without_group, "ight on the whole world, wrong in a group"),
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
    least_total=lambda n, args: (n - 1) * nbytes(args[0]),
    takes_group=True,
    ring=True,
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
        "Before the loop: `partial = chunks[left].clone()`. Then `for step in range(1, n)`: send `partial` to the "
        "right, receive `incoming` from the left with `send_recv`, and add your own share of the chunk that came: "
        "number `(left - step) % n`.",
    ],
    advice={
        "another_ranks_value": "Look at which chunk you send **first**.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(
            reduce_scatter.off_by_one,
            "The values are right, their place is one too far. Look at which chunk you send",
        ),
        Wrong(reduce_scatter.short, "are missing. Each rank sends n - 2 messages; the library's version, n - 1."),
        Wrong(reduce_scatter.whole_tensor, "4 times the bytes"),
        Wrong(reduce_scatter.into_sent_buffer, "` is changed before that send is waited for"),
        Wrong(reduce_scatter.never_waiting, "is never waited for"),
        Wrong(reduce_scatter.send_send, "All send first and nobody receives"),
        Wrong(reduce_scatter.returning_input, "returned its input unchanged. No rank sent a message."),
        Wrong(reduce_scatter.own_chunk, "only its own values, those of ranks 1, 2 and 3 are missing. No rank sent a"),
        Wrong(reduce_scatter.mean, "a mean where a sum is needed"),
        Wrong(reduce_scatter.own_chunk_again, "should hold chunk 3 of every rank, added; it holds chunk 0 of rank 0"),
        Wrong(reduce_scatter.in_place, "changed its input in place"),
        Wrong(reduce_scatter.without_return, "Is a `return` missing?"),
        Wrong(reduce_scatter.by_gloo, "torch did the work"),
        Wrong(reduce_scatter.by_library, "This calls the library's `ring_reduce_scatter`"),
        Wrong(reduce_scatter.endless, "Is there a loop without an end"),
        Wrong(reduce_scatter.leftover_raise, "Delete that line"),
        Wrong(reduce_scatter.one_step_too_many, "ach rank sends n messages; the library's version, n - 1."),
        Wrong(reduce_scatter.three_steps, "Right on 4 ranks, wrong on 2 and 3."),
        Wrong(reduce_scatter.own_share_in_each_message, "what comes in is not passed on"),
        Wrong(reduce_scatter.into_its_input, "changed its input in place: work on a copy"),
        Wrong(reduce_scatter.never_adding, "nothing is added to them"),
        Wrong(reduce_scatter.to_the_left, "You send to the left: rank"),
        Wrong(reduce_scatter.another_row, "what it returned is not that plus its own"),
        Wrong(reduce_scatter.from_the_right, "receive from the rank that sends to you"),
        Wrong(reduce_scatter.in_one_tensor, "` sends and receives in the same memory"),
        Wrong(reduce_scatter.arguments_in_another_order, "send_recv(out, to, into, source)"),
        Wrong(reduce_scatter.without_stepping, "messages still pass"),
        Wrong(reduce_scatter.without_group, "ight on the whole world, wrong in a group"),
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
    least_total=lambda n, args: n * (n - 1) * nbytes(args[0]),
    takes_group=True,
    ring=True,
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
        "chunks_permuted": "Which chunk comes in step s? It belongs into the row of the rank that it set out from.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(all_gather.short, "Each rank sends n - 2 messages; the library's version, n - 1."),
        Wrong(all_gather.rotated, "The values are right, their place is one too far"),
        Wrong(all_gather.own_chunk_only, "stands in 3 places"),
        Wrong(all_gather.in_order_of_arrival, "their order is not"),
        Wrong(all_gather.everything, "times the bytes. Only one chunk need travel"),
        Wrong(all_gather.wrong_shape, "their arrangement is not"),
        Wrong(all_gather.one_step_too_many, "right, but each rank sends n messages where n - 1 suffice"),
        Wrong(all_gather.without_its_own, "(its own chunk): nan"),
        Wrong(all_gather.from_an_empty_row, "sends what was never written (nan) in line"),
        Wrong(all_gather.into_its_own_row, "came to rank 0 in line"),
        Wrong(all_gather.to_everybody, "right, but this is no ring: rank 0 sends to ranks 1, 2 and 3"),
        Wrong(all_gather.without_group, "ight on the whole world, wrong in a group"),
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
    least_total=lambda n, args: 2 * (n - 1) * nbytes(args[0]),
    takes_group=True,
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
        "another_number": "Reducing takes n - 1 steps, gathering n - 1 more.",
        "arrived_and_dropped": "Writing into a chunk writes into `total`; `chunks[i] = ...` puts another tensor into "
        "the list instead.",
        "too_many_bytes": ONE_CHUNK,
    },
    wrong=[
        Wrong(all_reduce.dividing_sizes, "Right where the number of ranks divides the size"),
        Wrong(all_reduce.short, "Each rank sends 2n - 3 messages; the library's version, 2(n - 1). Reducing takes"),
        Wrong(all_reduce.whole_tensor, "2 times the bytes"),
        Wrong(all_reduce.into_sent_buffer, "is changed before that send is waited for"),
        Wrong(all_reduce.mean, "a mean where a sum is needed"),
        Wrong(all_reduce.adding_throughout, "a sum, but of the wrong shares"),
        Wrong(all_reduce.maximum, "all ranks agree, but on a wrong value"),
        Wrong(all_reduce.without_gather, "Each rank sends n - 1 messages; the library's version, 2(n - 1)."),
        Wrong(all_reduce.of_rank_0, "holds rank 0's input"),
        Wrong(all_reduce.returning_input, "returned its input unchanged. No rank sent a message."),
        Wrong(all_reduce.in_place, "changed its input in place"),
        Wrong(all_reduce.flattened, "their arrangement is not"),
        Wrong(all_reduce.in_float, "it should stay int64"),
        Wrong(all_reduce.by_gloo, "This calls `dist.all_reduce`: torch did the work"),
        Wrong(all_reduce.by_gloo_unseen, "that cannot be done with less than"),
        Wrong(all_reduce.small_only, "right on all small inputs, wrong on this large one"),
        Wrong(all_reduce.exits, "called exit"),
        Wrong(all_reduce.killed, "killed by SIGKILL"),
        Wrong(all_reduce.raising, "raised ZeroDivisionError"),
        Wrong(all_reduce.buffer_of_the_first_size, "received into 4 elements what rank 0 sent as 3"),
        Wrong(all_reduce.buffer_of_the_sent_size, "A receive needs a tensor of the size that was sent"),
        Wrong(all_reduce.rebinding, "every rank returned its input unchanged. The right values"),
        Wrong(all_reduce.rebinding_at_last, "but are not in what it returned. Writing into a chunk writes"),
        Wrong(all_reduce.skipping_empty_chunks, "Does a rank leave out a step?"),
        Wrong(all_reduce.gathering_from_another_chunk, "Message 4 of rank 0 carries chunk 3 of rank 0; the library's"),
        Wrong(all_reduce.never_adding, "Message 2 of rank 0 carries chunk 3 of rank 3; the library's, the sum of 2"),
        Wrong(all_reduce.one_step_too_many, "right, but each rank sends 2n - 1 messages where 2(n - 1) suffice"),
        Wrong(all_reduce.adding_too_short, "Message 4 of rank 0 carries chunk 1 of ranks 1, 2 and 3; the"),
        Wrong(all_reduce.without_group, "ight on the whole world, wrong in a group"),
    ],
)

EXERCISES = [TREE_BROADCAST, RING_REDUCE_SCATTER, RING_ALL_GATHER, ALL_REDUCE, FIT_ALPHA_BETA]
