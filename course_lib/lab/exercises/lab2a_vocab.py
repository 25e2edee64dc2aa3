"""Lab 2a: the embedding, where each rank holds the rows of some tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, generator, random_tensor
from course_lib.lab.exercises.lab2a_graded import GIVEN, cut, graded, in_part, joined, no_gradient, times_n
from course_lib.lab.exercises.wrong import vocab_parallel_embedding as embeddings
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple

V, D = 24, 3
Where = Callable[[int], Tensor]  # tokens, for n ranks


def lookup(tokens: Where, label: str) -> Case:
    """A case: tokens, this rank's rows of the table, and the gradient of the result."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        shared, which = generator("embedding", label, n), tokens(n)
        weight = random_tensor((V, D), shared, torch.float64)
        return which, cut(weight, 0, n)[rank], random_tensor((*which.shape, D), shared, torch.float64)

    return Case(make, label=label)


def run(answer: Callable, tokens: Tensor, weight: Tensor, upstream: Tensor, **group: Any) -> Any:
    def by_weight(leaf: Tensor, **group: Any) -> Any:
        return answer(tokens, leaf, **group)

    return graded(by_weight, {"weight": weight}, upstream, **group)


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    tokens, _, upstream = inputs[0]
    whole = run(F.embedding, tokens, joined(inputs, 1), upstream)
    return [whole | {"gradient of weight": part} for part in cut(whole["gradient of weight"], 0, n)]


def own(tokens: Tensor, rows: int, rank: int) -> tuple[Tensor, Tensor]:
    """Rows of this rank that the tokens ask for, some of them out of range; and which of them are in it."""
    local = tokens - rank * rows
    return local, (local >= 0) & (local < rows)


def read(pick: Callable[[Tensor, int], Tensor]) -> Callable[[list[tuple], int], list[dict[str, Tensor]]]:
    """The sum over the ranks where each reads row pick(local, rows) for every token, without a mask."""

    def compute(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        found = [w[pick(own(t, len(w), rank)[0], len(w))] for rank, (t, w, _) in enumerate(inputs)]
        return [{"result": sum(found)}] * n

    return compute


def masked_after(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    total = read(lambda local, rows: local.where((local >= 0) & (local < rows), 0))(inputs, n)[0]["result"]
    return [
        {"result": total * own(tokens, len(weight), rank)[1].unsqueeze(-1)}
        for rank, (tokens, weight, _) in enumerate(inputs)
    ]


def not_added(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
    found = []
    for rank, (tokens, weight, _) in enumerate(inputs):
        local, here = own(tokens, len(weight), rank)
        found.append({"result": weight[local.where(here, 0)] * here.unsqueeze(-1)})
    return found


@signature
def edge_of_a_shard(e: Evidence) -> str | None:
    """Wrong for the first or the last token of the ranks' rows alone: off by one."""
    if e.where != "`result`" or not e.comparable:
        return None
    tokens, weight, _ = e.inputs[0]
    rows = len(weight)
    wrong = sorted({int(tokens.flatten()[i // D]) for r in e.wrong for i in e.wrong_elements(r).tolist()})
    for edge, place in ((0, "first"), (rows - 1, "last")):
        if all(token % rows == edge for token in wrong) and len(wrong) < len(set(tokens.flatten().tolist())):
            return (
                f"wrong for {'tokens' if len(wrong) > 1 else 'token'} {show.listing(wrong)} alone, the {place} of a "
                f"rank's rows: rank r has r V/n and all that follow, up to (r + 1) V/n and without it"
            )
    return None


UNMASKED = (
    "for a token that is another rank's, a rank reads {row}, and it is added to the right one. Make it zeros before "
    "the sum."
)

VOCAB_PARALLEL_EMBEDDING = Exercise(
    name="vocab_parallel_embedding",
    lab="lab2a",
    title="The embedding, cut by tokens",
    minutes=15,
    difficulty=2,
    reference=simple.vocab_parallel_embedding,
    cases=[
        lookup(lambda n: torch.arange(V).view(4, 6).flip(0), "each token once"),
        lookup(lambda n: torch.arange(3) + V - V // n, "tokens of the last rank only"),
        lookup(lambda n: torch.tensor([[5, 5, 0], [V - 1, 5, 0]]), "tokens that come more than once"),
    ],
    expected=one_process,
    call=run,
    may_use=COLLECTIVES,
    may_call=GIVEN,
    takes_group=True,
    least_bytes=lambda n, rank, args: args[2].nbytes,
    signatures=[
        looks_like(
            read(lambda local, rows: local.where((local >= 0) & (local < rows), 0)),
            "reads_row_0",
            UNMASKED.format(row="row 0 of its own"),
        ),
        looks_like(
            read(lambda local, rows: local.clamp(0, rows - 1)),
            "reads_the_edge",
            UNMASKED.format(row="its first or its last row"),
        ),
        looks_like(
            read(lambda local, rows: local % rows),
            "reads_around",
            UNMASKED.format(row="the row that `%` gives"),
        ),
        looks_like(
            masked_after,
            "masked_after",
            "the mask comes after the sum. It takes away what the other ranks have sent, and leaves in what this one "
            "made up: make it zeros before.",
        ),
        looks_like(
            not_added,
            "not_added",
            "each rank has the rows of its own tokens, and zeros for the others. Add them up over the ranks.",
        ),
        edge_of_a_shard,
        times_n(
            "gradient of weight",
            "backward_reduces",
            "the result is right, but the gradient of weight is {n} times too large: the sum reduces in backward too. "
            "What follows is alike on all ranks: `reduce_from`.",
        ),
        in_part(
            "gradient of weight",
            lambda e, r: not same(e.observed[r][0], e.expected[r][0]) and same(e.observed[r][1:], e.expected[r][1:]),
            "row_0_trained",
            "the result is right, but the gradient of row 0 is not: tokens of other ranks lead there in backward. The "
            "mask must be in the graph.",
        ),
        no_gradient,
    ],
    hints=[
        "Which of the tokens are this rank's, and in which row of `weight` is each? For all others, what may a rank "
        "add to a sum without spoiling it?",
        "Rank 1 of 2 has the rows of tokens 4 to 7:\n"
        "    tokens         2     5     7     0\n"
        "    - 1 * 4       -2     1     3    -4\n"
        "    here?          no    yes   yes   no\n"
        "    gives          0     w[1]  w[3]  0\n"
        "To index with -2 is not what you want, even if Python lets you: put a 0 there, look up, and mask.",
        "`local = tokens - rank * rows`; `here = (local >= 0) & (local < rows)`; `F.embedding(local.where(here, 0), "
        "weight)`; then `.masked_fill(~here.unsqueeze(-1), 0)`; last, `reduce_from(x, group)`.",
    ],
    advice={"too_many_bytes": "The table itself need not travel."},
    wrong=[
        Wrong(embeddings.reading_row_0, "reads row 0 of its own"),
        Wrong(embeddings.clamped, "reads its first or its last row"),
        Wrong(embeddings.wrapped_around, "reads the row that `%` gives"),
        Wrong(embeddings.masked_after_the_sum, "the mask comes after the sum"),
        Wrong(embeddings.never_added, "Add them up over the ranks"),
        Wrong(embeddings.first_one_left_out, "wrong for tokens 6, 12 and 18 alone, the first"),
        Wrong(embeddings.reduced_in_backward_too, "the sum reduces in backward too"),
        Wrong(embeddings.mask_outside_of_the_graph, "the gradient of row 0 is not"),
        Wrong(embeddings.table_gathered, "The table itself need not travel"),
        Wrong(embeddings.detached, "backward never reaches `weight`"),
        Wrong(embeddings.without_offset, "index out of range"),
        Wrong(embeddings.rank_of_the_world, "ight on the whole world, wrong in a group"),
    ],
    closing="One all-reduce in forward, of what comes out, and none in backward: the table stays where it is, whatever "
    "its size.",
)
