"""Lab 2a: whole heads of a fused query, key and value matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.wrong import qkv_rows as cuts
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple

HEAD, D = 4, 3  # rows of a head, columns of the matrix
Cut = Callable[[Tensor, int, int, int, int], Tensor]


def heads(n_heads: int, n_kv_heads: int, n: int) -> Case:
    def make(rank: int, _: int, rng: torch.Generator) -> tuple[Tensor, int, int, int]:
        return random_tensor(((n_heads + 2 * n_kv_heads) * HEAD, D), rng), n_heads, n_kv_heads, n

    both = f"{n_heads} query heads" + ("" if n_heads == n_kv_heads else f", {n_kv_heads} of keys and values")
    return Case(make, label=f"{both}, {n} rank{'s' * (n != 1)}")


def of_all_ranks(answer: Cut, weight: Tensor, n_heads: int, n_kv_heads: int, n: int) -> dict[str, Any]:
    """The rows of every rank. A view of `weight` is as good as a copy."""
    found = {}
    for rank in range(n):
        rows = answer(weight, n_heads, n_kv_heads, rank, n)
        found[f"rank {rank}"] = rows.detach().clone() if isinstance(rows, Tensor) else rows
    return found


def cut_as(mistaken: Cut, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: what is returned is what this wrong answer returns, on each rank."""

    def compute(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        try:
            return [of_all_ranks(mistaken, *args) for args in inputs]
        except (RuntimeError, IndexError):  # it does not fit this case
            return [{"rank 0": "nothing returns this"}] * n

    return looks_like(compute, mistaken.__name__, sentence)


def row_names(weight: Tensor, n_heads: int, n_kv_heads: int) -> dict[tuple, tuple[str, int]]:
    """Which head each row belongs to: {its values: ("query", 2)}."""
    kinds = [("query", h) for h in range(n_heads)]
    kinds += [(kind, g) for kind in ("key", "value") for g in range(n_kv_heads)]
    return {tuple(row.tolist()): kinds[i // HEAD] for i, row in enumerate(weight)}


@signature
def rows_named(e: Evidence) -> str | None:
    """Rows of the matrix, but others than they should be: which heads they are of."""
    have, want = e.observed[0], e.expected[0]
    if not isinstance(have, Tensor) or have.dim() != 2 or not e.where:
        return None
    weight, n_heads, n_kv_heads, _ = e.inputs[0]
    names = row_names(weight, n_heads, n_kv_heads)
    if any(tuple(row.tolist()) not in names for row in have):
        return None
    found, right = ([names[tuple(row.tolist())] for row in rows] for rows in (have, want))
    if found == right:
        return f"{e.where.strip('`')}: the heads are right, the order of the rows inside of a head is not"
    return f"{e.where.strip('`')} has {told(found)}; it should have {told(right)}"


def told(rows: list[tuple[str, int]]) -> str:
    """ "4 rows of query head 0, 4 of key head 0"."""
    counts: dict[tuple[str, int], int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    parts = [f"{count} of {kind} head {head}" for (kind, head), count in counts.items()]
    return ", ".join(parts).replace(" of ", " rows of ", 1) or "no rows"


QKV_ROWS = Exercise(
    name="qkv_rows",
    lab="lab2a",
    title="This rank's heads",
    minutes=20,
    difficulty=2,
    reference=simple.qkv_rows,
    worlds=(1,),
    cases=[
        heads(4, 4, 2),
        heads(4, 4, 4),
        heads(6, 3, 3),
        heads(8, 4, 2),
        heads(4, 2, 4),
        heads(8, 1, 4),
        heads(8, 2, 8),
        heads(4, 2, 1),
    ],
    call=of_all_ranks,
    signatures=[
        cut_as(
            cuts.plain_chunk,
            "the matrix is cut into n equal parts, across queries, keys and values: rank 0 has queries alone. Cut each "
            "of the three by itself.",
        ),
        cut_as(
            cuts.kv_by_query_counts,
            "keys and values are cut with the number of query heads, and there are fewer of them: the last ranks come "
            "away with other rows than they need. Their number is n_kv_heads.",
        ),
        cut_as(
            cuts.kv_heads_in_turn,
            "the ranks take key and value heads in turn: ranks that share one must be neighbours. Query head h belongs "
            "to key head h // (H/G).",
        ),
        cut_as(
            cuts.every_nth_head,
            "rank 1 takes every n-th head. A rank's heads stand next to each other, so that the query heads that share "
            "a key head are on one rank.",
        ),
        cut_as(
            cuts.parts_of_every_head,
            "each rank has a part of every head. A head is whole: its scores are a product over all of its rows.",
        ),
        cut_as(
            cuts.kv_heads_cut,
            "with fewer key heads than ranks, a head is cut to pieces. It must be whole: some ranks hold the same one.",
        ),
        cut_as(
            cuts.all_kv_heads,
            "every rank has all key and value heads. A rank needs those that serve its own query heads, and no others.",
        ),
        cut_as(
            cuts.keys_before_queries, "the three parts are right, their order is not: queries, then keys, then values."
        ),
        cut_as(
            cuts.head_by_head,
            "the rows stand head by head: query, key and value of the first, then of the second. All of the queries "
            "come first, then all keys, then all values.",
        ),
        cut_as(
            cuts.keys_for_values, "the rows of the keys are there twice, and those of the values are not there at all."
        ),
        cut_as(
            cuts.none_where_there_are_few,
            "with fewer key heads than ranks, n_kv_heads // n is 0: no key, no value. A rank has one at least.",
        ),
        rows_named,
    ],
    hints=[
        "Three matrices lie in one. Take them apart (`weight.split([...])`), cut each, and join this rank's parts.",
        "4 query heads, 2 of keys and values, 4 ranks:\n"
        "              rank 0   rank 1   rank 2   rank 3\n"
        "    query     q0       q1       q2       q3\n"
        "    key       k0       k0       k1       k1\n"
        "    value     v0       v0       v1       v1\n"
        "Keys and values are cut into min(n, G) parts, and rank r has part r * min(n, G) // n.",
        "`q, k, v = weight.split([n_heads * head_dim, n_kv_heads * head_dim, n_kv_heads * head_dim])`; "
        "`parts = min(n, n_kv_heads)`; `place = rank * parts // n`; then `torch.cat` of `q.chunk(n)[rank]`, "
        "`k.chunk(parts)[place]` and `v.chunk(parts)[place]`.",
    ],
    wrong=[
        Wrong(cuts.plain_chunk, "across queries, keys and values"),
        Wrong(cuts.kv_by_query_counts, "cut with the number of query heads"),
        Wrong(cuts.every_nth_head, "takes every n-th head"),
        Wrong(cuts.parts_of_every_head, "a part of every head"),
        Wrong(cuts.kv_heads_in_turn, "key and value heads in turn"),
        Wrong(cuts.kv_heads_cut, "a head is cut to pieces"),
        Wrong(cuts.all_kv_heads, "every rank has all key and value heads"),
        Wrong(cuts.keys_before_queries, "their order is not: queries, then keys"),
        Wrong(cuts.head_by_head, "the rows stand head by head"),
        Wrong(cuts.keys_for_values, "are there twice"),
        Wrong(cuts.none_where_there_are_few, "n_kv_heads // n is 0"),
        Wrong(cuts.one_rank_off, "rank 0 has 4 rows of query head 2, 4 of query head 3"),
        Wrong(cuts.one_kv_head, "4 of query head 1, 4 of key head 0, 4 of value head 0; it should"),
    ],
    closing="Attention needs no message between these rows and the output matrix. Ranks that hold the same key head "
    "each find a part of its gradient: that is summed over them.",
)
