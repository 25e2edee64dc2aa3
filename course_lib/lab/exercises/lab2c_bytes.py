"""Lab 2c: the bytes of an exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.lab import show
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.lab2c_wanted import returns
from course_lib.lab.exercises.wrong import exchange_bytes as sizes
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature
from course_lib.parallel.expert import simple

LAYER = 4096, 1024, 2, 8, 2  # of the closing words: tokens, dim, k, ranks, bytes of a number


def layer(tokens: int, dim: int, k: int, n: int, itemsize: int) -> Case:
    label = f"tokens={tokens}, dim={dim}, top_k={k}, n={n}, itemsize={itemsize}"
    return Case(lambda rank, world, rng: (tokens, dim, k, n, itemsize), label=label)


def both(answer: Callable, *args: int) -> Any:
    """The two numbers, by name. A float that is whole is as good."""
    found = answer(*args)
    if not isinstance(found, tuple | list) or len(found) != 2:
        return found
    forward, backward = (int(x) if isinstance(x, float) and x.is_integer() else x for x in found)
    return {"forward": forward, "backward": backward}


def forward(times: Callable[[int, int, int, int, int], float], name: str, sentence: str) -> Signature:
    """A signature: forward is times(tokens, dim, k, n, itemsize)."""
    return looks_like(
        lambda inputs, n: [{"forward": round(times(*args))} for args in inputs], name, sentence, part="forward"
    )


def backward(times: float, name: str, sentence: str) -> Signature:
    """A signature: forward is right, and backward is so many times as much."""
    return looks_like(
        lambda inputs, n: [{"backward": round(times * simple.exchange_bytes(*args)[0])} for args in inputs],
        name,
        sentence,
        part="backward",
    )


EXCHANGE_BYTES = Exercise(
    name="exchange_bytes",
    lab="lab2c",
    title="The bytes of an exchange",
    minutes=10,
    difficulty=1,
    reference=simple.exchange_bytes,
    worlds=(1,),
    cases=[
        layer(1200, 64, 3, 6, 4),
        layer(30, 5, 4, 3, 2),
        layer(96, 8, 1, 2, 4),
        layer(10, 4, 2, 1, 4),
    ],
    call=both,
    signatures=[
        returns("two numbers, of forward and of backward"),
        forward(
            lambda t, d, k, n, b: t * k * d * b * (n - 1) / n,
            "one_way",
            "that is the way out. What the experts made comes back, as many rows: the other ranks' results leave from "
            "here, too.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * d * b * (n - 1) / n,
            "without_k",
            "k is missing: a token's row goes out once for each of its k choices.",
        ),
        forward(
            lambda t, d, k, n, b: t * d * b * (n - 1) / n,
            "one_way_without_k",
            "k is missing, and the way back.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * k * d * b,
            "with_its_own",
            "all rows are counted. An n-th of them is for experts of this rank, and does not leave it.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * k * d * b / n,
            "to_one_rank",
            "that is what one other rank gets. There are n - 1 of them.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * k * d * b * (n - 1),
            "all_to_each",
            "as if every row went to every other rank (or of all ranks together). Each goes to one: an n-th of the "
            "rows for each rank.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * k * d * (n - 1) / n,
            "numbers",
            "that is the number of numbers. Each has `itemsize` bytes.",
        ),
        forward(
            lambda t, d, k, n, b: 2 * t * k * b * (n - 1) / n,
            "rows_of_one",
            "each row counts as one number. It has `dim` of them.",
        ),
        forward(
            lambda t, d, k, n, b: 4 * t * k * d * b * (n - 1) / n,
            "with_backward",
            "that is forward and backward together, or sent and received.",
        ),
        backward(
            2,
            "backward_twice",
            "forward is right. Backward computes twice as much, but it sends as much as forward: a gradient for each "
            "row, back the way it came.",
        ),
        backward(
            0.5,
            "backward_half",
            "forward is right. In backward both exchanges are made again, the other way round.",
        ),
        backward(0, "no_backward", "forward is right. The gradients travel, too."),
    ],
    hints=[
        "How many rows does a rank have, if each token has k choices? How many of them are for experts elsewhere? And "
        "how often is a row on its way, before the next layer?",
        "4 ranks, 8 tokens each, k = 2: 16 rows, 4 for each rank.\n"
        "    out     12 leave, 4 stay\n"
        "    back    12 leave, 4 stay     results for the others' tokens\n"
        "Each row is `dim` numbers of `itemsize` bytes.",
        "`rows = tokens * top_k // n * (n - 1)`; out and back is `2 * rows * dim * itemsize`; and backward is as much.",
    ],
    wrong=[
        Wrong(sizes.one_way, "that is the way out"),
        Wrong(sizes.without_k, "a token's row goes out once for each"),
        Wrong(sizes.one_way_without_k, "k is missing, and the way back"),
        Wrong(sizes.with_its_own, "does not leave it"),
        Wrong(sizes.to_one_rank, "what one other rank gets"),
        Wrong(sizes.all_to_each, "as if every row went to every other rank"),
        Wrong(sizes.numbers, "the number of numbers"),
        Wrong(sizes.rows_of_one, "each row counts as one number"),
        Wrong(sizes.with_backward, "forward and backward together"),
        Wrong(sizes.backward_twice, "Backward computes twice as much"),
        Wrong(sizes.backward_half, "both exchanges are made again"),
        Wrong(sizes.no_backward, "The gradients travel, too"),
        Wrong(sizes.added_up, "Wanted: two numbers"),
    ],
    closing="For 4,096 tokens of width 1,024 on each of 8 ranks, k = 2, in bfloat16: "
    f"{show.size(simple.exchange_bytes(*LAYER)[0])} from each rank in forward, for one layer.",
)
