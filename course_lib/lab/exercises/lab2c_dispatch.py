"""Lab 2c: tokens to their experts on other ranks, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import COLLECTIVES, Exercise, Wrong
from course_lib.lab.exercises.lab2a_graded import gradient, no_gradient
from course_lib.lab.exercises.lab2c_dispatch_run import (
    DIM,
    EXPERTS,
    dispatched,
    never_sent_back,
    one_process,
    tokens,
    walked,
)
from course_lib.lab.exercises.lab2c_wanted import returns
from course_lib.lab.exercises.wrong import dispatch_and_combine as walks
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.expert import simple

EVERYBODY = (
    "A rank that has no tokens, or whose experts got none, takes part in every exchange all the same: the others wait "
    "for it."
)


def way(name: str, sentence: str, **step: Callable) -> Signature:
    """A signature: y is what comes of the whole way with one step replaced, see `walked`."""
    return looks_like(walked(**step), name, sentence, part="y")


def weighed_first(x: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    return x[order // weights.shape[1]] * weights.flatten()[order].unsqueeze(-1)


def plainly_added(rows: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    return rows.sum(1)


@signature
def experts_not_called(e: Evidence) -> str | None:
    """An expert that got no row, and was left out."""
    if e.where != f"`{gradient('experts')}`":
        return None
    idle = [r for r in e.wrong if e.observed[r] is None and not e.aside(r).get("calls")]
    if not idle or len(idle) < len(e.wrong):
        return None
    return (
        f"all values are right, but on {show.ranks(idle)} no row came in and the experts were not called. What they "
        "return is what leads backward to their weights: without it they have no gradient where they should have "
        "zeros, and where x needs none, either, this rank leaves out an exchange in backward and all others wait"
    )


@signature
def stops_at_an_exchange(e: Evidence) -> str | None:
    """All of y is right, and nothing of it leads back to x."""
    if e.where != f"`{gradient('x')}`" or any(e.observed[r] is not None for r in e.wrong):
        return None
    if len(e.wrong) < e.n:
        return None
    return (
        "y is right, but backward stops at an exchange and x has no gradient. `dist.all_to_all_single` knows nothing "
        "of gradients (nor does a `.detach()`); `all_to_all` sends them back the way the rows came"
    )


def least_bytes(n: int, rank: int, args: tuple) -> int:
    """Out and back, in forward and in backward, where x has a gradient; and the counts."""
    _, chosen, *_, incoming, moves = args
    rows = 2 * chosen.numel() + (2 if moves else 1) * incoming
    return rows * DIM * 4 + EXPERTS * 8


DISPATCH_AND_COMBINE = Exercise(
    name="dispatch_and_combine",
    lab="lab2c",
    title="Dispatch and combine",
    minutes=30,
    difficulty=3,
    reference=simple.dispatch_and_combine,
    cases=[
        tokens("6 tokens on each rank, each expert as many", lambda rank, n: 6, 2),
        tokens("3 tokens on rank 0, 5 on rank 1, and so on", lambda rank, n: 3 + 2 * rank, 2, lambda n: (0, 11)),
        tokens("k = 1", lambda rank, n: 5 - rank, 1, lambda n: (0, 11)),
        tokens(
            "no tokens on the last rank, and none for rank 0's experts",
            lambda rank, n: 0 if rank == n - 1 else 4 + rank,
            3,
            lambda n: (EXPERTS // n, 11),
        ),
        tokens(
            "the same, and x needs no gradient",
            lambda rank, n: 0 if rank == n - 1 else 4 + rank,
            2,
            lambda n: (EXPERTS // n, 11),
            moves=False,
        ),
        tokens("no tokens on any rank", lambda rank, n: 0, 2, lambda n: (0, 11)),
    ],
    expected=one_process,
    call=dispatched,
    may_use=COLLECTIVES,
    may_call=frozenset({"all_to_all", "forward", "backward"}),
    takes_group=True,
    least_bytes=least_bytes,
    signatures=[
        returns("y, a tensor (T, D)"),
        way(
            "expert_order",
            "the rows that come back stand in the order in which they went out, by expert, and were taken for those "
            "of the tokens. Put each in its own place again: `order.argsort()` says where it is.",
            back=lambda rows, order: rows,
        ),
        way(
            "sorted_twice",
            "the rows that come back are sorted once more by `order`. Putting them back takes its inverse: "
            "`order.argsort()`.",
            back=lambda rows, order: rows[order],
        ),
        looks_like(
            never_sent_back,
            "never_sent_back",
            "each rank keeps what its own experts made, of other ranks' tokens. Send it back to where it came from.",
            part="y",
        ),
        way(
            "wrong_token",
            "the wrong tokens go out. Choice i of the T k is made by token i // k, for each token's choices stand side "
            "by side.",
            pick=lambda x, order, weights: x[order % max(len(x), 1)],
        ),
        way(
            "unsorted",
            "the rows go out in the order of the tokens. They must stand in the order of the ranks they go to, and "
            "there by expert: else each expert gets rows meant for others.",
            order_of=lambda chosen, n: torch.arange(chosen.numel()),
        ),
        way(
            "by_rank_alone",
            "the rows are sorted by rank, and not by expert within it. `which` says whose they are, and it counts on "
            "that.",
            order_of=lambda chosen, n: (chosen.flatten() // (EXPERTS // n)).argsort(stable=True),
        ),
        way("without_weights", "what comes back is added without its weights.", combine=plainly_added),
        way(
            "mean",
            "the mean of what comes back, without its weights.",
            combine=lambda rows, weights, order: rows.mean(1),
        ),
        way(
            "weighed_before",
            "the tokens are weighed before they go to the experts. An expert is not linear: weigh what it returns.",
            pick=weighed_first,
            combine=plainly_added,
        ),
        way(
            "weighed_before_and_after",
            "the weights are applied twice: to what goes to the experts, and to what comes back. The second is right.",
            pick=weighed_first,
        ),
        way(
            "weighed_twice",
            "the weights are applied twice to what comes back.",
            combine=lambda rows, weights, order: (rows * (weights**2).unsqueeze(-1)).sum(1),
        ),
        way(
            "weights_by_expert",
            "each row is weighed by another's weight: the rows are in the order of the tokens again, the weights in "
            "that of the experts.",
            combine=lambda rows, weights, order: (rows * weights.flatten()[order].view(weights.shape + (1,))).sum(1),
        ),
        way(
            "first_choice",
            "only each token's first choice counts.",
            combine=lambda rows, weights, order: rows[:, 0] * weights[:, :1],
        ),
        way(
            "k_by_T",
            "the rows are taken as k times T, they are T times k: a token's choices stand side by side.",
            combine=lambda rows, weights, order: (rows.view(*weights.T.shape, DIM) * weights.T.unsqueeze(-1)).sum(0),
        ),
        way(
            "experts_left_out",
            "the tokens came back as they went out: no expert has worked on them.",
            compute=lambda rows, which, matrices: rows,
        ),
        stops_at_an_exchange,
        experts_not_called,
        no_gradient,
    ],
    hints=[
        "Six steps, and the last three undo the first: sort, send, compute, send back, sort back, add up. Which "
        "order do the rows need to have when they go out? Where do you keep what you need to put them back?",
        "Two ranks with experts A, B and C, D; three tokens, k = 2:\n"
        "    chosen    0: C A    1: A D    2: B C\n"
        "    choices   0   1     2   3     4   5\n"
        "    order     1 2 | 4 | 0 5 | 3            A A B | C C D: to rank 0, to rank 1\n"
        "    tokens    0 1   2   0 2   1            order // 2\n"
        "What comes back stands in this order, too. `order.argsort()` is where each choice's row is.",
        "`order = chosen.flatten().argsort(stable=True)`; `rows = x[order // k]`; `all_to_all(rows, send_counts, "
        "receive_counts, group)`; `experts(rows, which)`; `all_to_all` with the counts swapped; "
        "`rows[order.argsort()]`. Then `rows.unflatten(0, (T, k))` times the weights, and the sum over the k.",
    ],
    advice={
        "calls_left_out": EVERYBODY,
        "calls_differ": EVERYBODY,
        "out_of_step": EVERYBODY,
        "too_many_bytes": "A row need go to its own expert alone.",
    },
    wrong=[
        Wrong(walks.in_expert_order, "in the order in which they went out, by expert"),
        Wrong(walks.sorted_twice, "takes its inverse"),
        Wrong(walks.kept_where_computed, "of other ranks' tokens. Send it back"),
        Wrong(walks.modulo_tokens, "made by token i // k"),
        Wrong(walks.unsorted, "go out in the order of the tokens"),
        Wrong(walks.by_rank_alone, "sorted by rank, and not by expert"),
        Wrong(walks.without_weights, "added without its weights"),
        Wrong(walks.mean_of_results, "the mean of what comes back"),
        Wrong(walks.weighed_before, "An expert is not linear"),
        Wrong(walks.weighed_before_and_after, "to what goes to the experts, and to what comes back"),
        Wrong(walks.weighed_twice, "twice to what comes back"),
        Wrong(walks.weights_in_expert_order, "weighed by another's weight"),
        Wrong(walks.first_choice_alone, "only each token's first choice"),
        Wrong(walks.k_by_T, "taken as k times T"),
        Wrong(walks.experts_left_out, "no expert has worked on them"),
        Wrong(walks.a_row_for_each_token, "that is a row for each token"),
        Wrong(walks.counts_swapped_on_the_way_out, "on the way out, send_counts come first"),
        Wrong(walks.counts_not_swapped_on_the_way_back, "on the way back the counts swap"),
        Wrong(walks.leaving_without_tokens, "A rank that has no tokens, or whose"),
        Wrong(walks.leaving_where_no_row_came, "Where rank 0 has returned and calls nothing"),
        Wrong(walks.experts_called_for_rows_alone, "no row came in and the experts were not called"),
        Wrong(walks.by_torchs_exchange, "knows nothing of gradients"),
        Wrong(walks.sent_without_a_graph, "nor does a `.detach()`"),
        Wrong(walks.weights_cut_off, "backward never reaches `weights`"),
        Wrong(walks.everything_to_everybody, "A row need go to its own expert alone"),
        Wrong(walks.without_return, "Wanted: y, a tensor (T, D)"),
        Wrong(walks.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="A token's row leaves k times and comes back k times, those for the rank's own experts apart; backward "
    "sends as much again.",
)
