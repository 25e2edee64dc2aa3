"""Lab 2a: the bytes of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.wrong import layer_bytes as counts
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import kind, signature
from course_lib.parallel.tensor import simple


def layer(tokens: int, dim: int, n: int, itemsize: int, sequence_parallel: bool) -> Case:
    def make(rank: int, _: int, rng: torch.Generator) -> tuple[int, int, int, int, bool]:
        return tokens, dim, n, itemsize, sequence_parallel

    way = ", sequence parallel" if sequence_parallel else ""
    return Case(make, label=f"{tokens} tokens of {dim} numbers of {itemsize} bytes, {n} rank{'s' * (n != 1)}{way}")


def both_ways(answer: Callable, *args: Any) -> Any:
    """The two numbers by name; 48.0 is 48."""
    found = answer(*args)
    if not isinstance(found, tuple | list) or len(found) != 2:
        return found
    forward, backward = (int(x) if isinstance(x, float) and x.is_integer() else x for x in found)
    return {"forward": forward, "backward": backward}


def counted_as(mistaken: Callable, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: these are the numbers of this wrong answer."""
    return looks_like(lambda inputs, n: [both_ways(mistaken, *args) for args in inputs], mistaken.__name__, sentence)


@signature
def no_pair(e: Evidence) -> str | None:
    if e.where:
        return None
    return f"the answer returned {kind(e.observed[0])}. Two numbers are wanted: `return forward, backward`"


@signature
def in_collectives(e: Evidence) -> str | None:
    """A number that is a multiple of what an all-gather sends."""
    tokens, dim, n, itemsize, sequence_parallel = e.inputs[0]
    have, want = e.observed[0], e.expected[0]
    once = tokens * dim * itemsize // n * (n - 1)
    if not e.where or not isinstance(have, int | float) or not once or have % once:
        return None
    way = " with sequence parallel" if sequence_parallel else ""
    return (
        f"{e.where.strip('`')}{way}: {show.number(have)} bytes, as many as {show.number(have // once)} all-gathers or "
        f"reduce-scatters of all tokens send; it should be {want // once} (an all-reduce counts as two)"
    )


LAYER_BYTES = Exercise(
    name="layer_bytes",
    lab="lab2a",
    title="The bytes of a layer",
    minutes=15,
    difficulty=2,
    reference=simple.layer_bytes,
    worlds=(1,),
    cases=[
        layer(128, 64, 4, 4, False),
        layer(96, 32, 3, 2, False),
        layer(16, 8, 1, 4, False),
        layer(128, 64, 4, 4, True),
        layer(40, 8, 2, 2, True),
    ],
    call=both_ways,
    signatures=[
        no_pair,
        counted_as(
            counts.one_way_of_a_ring,
            "half of all. An all-reduce is a reduce-scatter and an all-gather: 2 (n - 1)/n of its size. And a layer "
            "has two, one for attention and one for the feed-forward.",
        ),
        counted_as(
            counts.whole_size,
            "that is the size of what is reduced. In a ring, a rank sends (n - 1)/n of it, in each of the two halves "
            "of an all-reduce: nobody sends a chunk to itself.",
        ),
        counted_as(
            counts.of_its_own_tokens,
            "with sequence parallel a rank keeps tokens / n, but what is gathered and scattered is the whole: all "
            "`tokens`.",
        ),
        counted_as(
            counts.sequence_parallel_doubled,
            "sequence parallel sends no more in forward: an all-gather and a reduce-scatter send what one all-reduce "
            "does, (n - 1)/n of the size each.",
        ),
        counted_as(
            counts.all_others,
            "each rank sends all it has to all others, in these numbers. A ring does with 2 (n - 1)/n of the size.",
        ),
        counted_as(counts.elements, "these are elements. Bytes are `itemsize` times as many."),
        counted_as(
            counts.backward_once,
            "forward is right, backward is half. f is the mirror image of g: as many all-reduces as forward has, two.",
        ),
        counted_as(
            counts.nothing_in_backward,
            "forward is right. But in backward f reduces, where forward has nothing to send.",
        ),
        counted_as(
            counts.backward_as_flops,
            "backward has twice the products that forward has, and not twice the messages: one all-reduce for each f.",
        ),
        counted_as(counts.of_all_ranks, "that is what all ranks send together. The question is what one of them does."),
        counted_as(
            counts.not_gathered_again,
            "forward is right. With sequence parallel, backward sends more: to save memory the gathered input was not "
            "kept, and it is gathered once more for each of the two column-parallel matrices.",
        ),
        counted_as(
            counts.gathered_again_once,
            "one all-gather short in backward: a layer has two column-parallel matrices, and the input of each is "
            "gathered once more.",
        ),
        counted_as(
            counts.gathered_again_in_forward,
            "backward is right. In forward nothing is gathered twice: the input is there.",
        ),
        counted_as(counts.swapped, "the numbers are right, their order is not: forward, then backward."),
        in_collectives,
    ],
    hints=[
        "How many all-reduces has a layer in forward, and of what? Attention and the feed-forward are each a column, "
        "then a row.",
        "What is sent, in halves (an all-gather or a reduce-scatter, each (n - 1)/n of `size`):\n"
        "                          forward                   backward\n"
        "    attention             g: 2                      f: 2\n"
        "    feed-forward          g: 2                      f: 2\n"
        "    sequence parallel     gather 1, scatter 1       scatter 1, gather 1, and gather the input again 1\n"
        "                          for each of the two       for each of the two",
        "`once = size // n * (n - 1)`. Forward is `4 * once`, so is backward; with `sequence_parallel`, backward is "
        "`6 * once`.",
    ],
    wrong=[
        Wrong(counts.one_way_of_a_ring, "An all-reduce is a reduce-scatter and an all-gather"),
        Wrong(counts.whole_size, "nobody sends a chunk to itself"),
        Wrong(counts.all_others, "all it has to all others"),
        Wrong(counts.elements, "these are elements"),
        Wrong(counts.backward_once, "backward is half"),
        Wrong(counts.nothing_in_backward, "in backward f reduces"),
        Wrong(counts.backward_as_flops, "twice the products"),
        Wrong(counts.of_all_ranks, "what all ranks send together"),
        Wrong(counts.sequence_parallel_doubled, "sends no more in forward"),
        Wrong(counts.not_gathered_again, "the gathered input was not kept"),
        Wrong(counts.gathered_again_once, "one all-gather short in backward"),
        Wrong(counts.gathered_again_in_forward, "In forward nothing is gathered twice"),
        Wrong(counts.of_its_own_tokens, "what is gathered and scattered is the whole"),
        Wrong(counts.swapped, "their order is not: forward, then backward"),
        Wrong(counts.three_matrices, "as many as 6 all-gathers or reduce-scatters"),
        Wrong(counts.one_number, "Two numbers are wanted"),
    ],
    closing="The bytes grow with the tokens, and not with the width of the feed-forward or the number of heads.",
)
