"""Lab 2c: the choice of experts, up to their capacity."""

from __future__ import annotations

import torch

from course_lib.lab.evidence import Evidence, close, same
from course_lib.lab.exercise import Exercise, Wrong, generator
from course_lib.lab.exercises.lab2a_graded import gradient, no_gradient
from course_lib.lab.exercises.lab2c_route_run import mistaken, queued, routed, sent_elsewhere, tokens, weighed
from course_lib.lab.exercises.lab2c_wanted import returns
from course_lib.lab.exercises.wrong import route_with_capacity as routes
from course_lib.lab.signatures.words import signature
from course_lib.parallel.expert import simple

CHOICES, ROOM = 2, 3  # k and capacity of the first case


@signature
def sorted_by_number(e: Evidence) -> str | None:
    if e.where != "`chosen`" or not e.comparable or not torch.equal(e.observed[0], e.expected[0].sort(-1).values):
        return None
    return "the experts are the right ones, in the order of their numbers. Each token's best comes first"


@signature
def in_16_bits(e: Evidence) -> str | None:
    """Chosen, or weighed, by scores that were rounded."""
    if e.where not in ("`chosen`", "`weights`") or not e.comparable:
        return None
    value, (scores, k, _) = (e.returned or e.observed)[0], e.inputs[0]
    for dtype in (torch.bfloat16, torch.float16):
        rounded = scores.to(dtype)
        best = rounded.topk(k, dim=-1).values
        chosen, weights = value["chosen"], value["weights"]
        if not torch.equal(rounded.gather(1, chosen.clamp(0, scores.shape[1] - 1)), best):
            continue
        if e.where == "`weights`" and not bool(close(weights.to(dtype), (best / best.sum(-1, keepdim=True))).all()):
            continue
        return (
            "the scores were rounded to 16 bits. Experts tie then that do not, and others are chosen; a router works "
            "in float32, even where all else does not"
        )
    return None


@signature
def made_up_for(e: Evidence) -> str | None:
    """Divided by the sum of what is kept: a token's own other weights grow when one expert is full."""
    if e.where != "`weights`" or not e.comparable:
        return None
    _, best, kept = simple.route_with_capacity(*e.inputs[0])
    shared = best * kept / (best * kept).sum(-1, keepdim=True)
    rows = kept.any(-1)
    if not same(e.observed[0][rows], shared[rows]):
        return None
    return (
        "what is dropped is made up for: the weights of a token's other experts were divided by the sum of those kept. "
        "Then what a token gets depends on who stood before it in the queue. Divide by the sum of its k, kept or not"
    )


def dropped_of() -> str:
    """What the first case has to show of it, on passing."""
    scores, k, capacity = FIRST.make(0, 1, generator("route_with_capacity", 0, 0, 1))
    kept = simple.route_with_capacity(scores, k, capacity)[2]
    count = kept.numel()
    return (
        f"In the first case there was room for {capacity * scores.shape[1]} choices and {count} were made; "
        f"{count - int(kept.sum())} of them were dropped, and {int((~kept.any(-1)).sum())} tokens lost both of theirs."
    )


FIRST = tokens(14, 6, CHOICES, ROOM)
ROUTE_WITH_CAPACITY = Exercise(
    name="route_with_capacity",
    lab="lab2c",
    title="Choose, up to a capacity",
    minutes=20,
    difficulty=2,
    reference=simple.route_with_capacity,
    worlds=(1,),
    cases=[
        FIRST,
        tokens(8, 4, 1, 2),
        tokens(9, 3, 3, 4, "every expert is chosen"),
        tokens(5, 4, 2, 5, "room for all"),
        tokens(16, 8, 2, 6, "scores that differ in the fourth digit", spread=2e-3),
        tokens(0, 4, 2, 3, "a rank without tokens"),
    ],
    call=routed,
    signatures=[
        returns("three tensors, chosen, weights and kept"),
        sorted_by_number,
        in_16_bits,
        mistaken(
            "chosen",
            lambda scores, k, capacity: scores.topk(k).indices + 1,
            "from_1",
            "the experts are counted from 1. Expert 0 is the first.",
        ),
        mistaken(
            "chosen",
            lambda scores, k, capacity: scores.topk(k, largest=False).indices,
            "the_worst",
            "those are the experts with the smallest scores.",
        ),
        mistaken(
            "chosen",
            sent_elsewhere,
            "sent_elsewhere",
            "where an expert is full, its tokens were sent on to their next best. Here they are dropped: `chosen` is "
            "what a token wants, whether there is room or not, and `kept` says which.",
        ),
        mistaken(
            "weights",
            weighed(lambda scores, chosen, kept: scores.gather(1, chosen)),
            "as_they_are",
            "the weights are the scores as they are. Divide each token's by the sum of its k.",
        ),
        made_up_for,
        mistaken(
            "weights",
            weighed(lambda s, chosen, kept: kept * s.gather(1, chosen) / s.gather(1, chosen).sum(-1, keepdim=True)),
            "zeroed",
            "the weights of what is dropped are zero. That is what `kept` is for: the weights stay as they are.",
        ),
        mistaken(
            "weights",
            weighed(lambda scores, chosen, kept: scores.gather(1, chosen).softmax(-1)),
            "softmax_of_chosen",
            "softmax of the chosen scores, or of all and then divided, which is the same. They are probabilities "
            "already, which softmax flattens: divide them by their sum.",
        ),
        mistaken(
            "weights",
            weighed(lambda scores, chosen, kept: scores.softmax(-1).gather(1, chosen)),
            "softmax_again",
            "softmax of the scores, which are probabilities already: it flattens them. Divide the chosen by their sum.",
        ),
        mistaken(
            "weights",
            weighed(lambda s, chosen, kept: s.gather(1, chosen) / s.gather(1, chosen).sum()),
            "by_the_sum_of_all",
            "all weights are divided by one number, the sum over all tokens. Each token has its own: `sum(-1, "
            "keepdim=True)`.",
        ),
        mistaken(
            "weights",
            weighed(lambda s, chosen, kept: s.gather(1, chosen) / chosen.shape[1]),
            "by_k",
            "the weights are divided by k. Divide each token's by the sum of its own, so that they add up to 1.",
        ),
        *(
            mistaken("kept", queued(keep), keep.__name__, sentence)
            for keep, sentence in (
                (
                    routes.a_queue_for_each_choice,
                    "first choices have a queue and second choices another, each of the "
                    "whole capacity. An expert has one queue, in which both stand.",
                ),
                (
                    routes.first_choices_first,
                    "all first choices come before any second choice. GShard does so; here "
                    "tokens come in their order, each with all its choices.",
                ),
                (
                    routes.one_too_many,
                    "each expert takes one token more than its capacity: places are counted from 0, "
                    "and the first that is too much is `capacity`.",
                ),
                (
                    routes.one_too_few,
                    "each expert takes one token less than its capacity. Places that are counted from "
                    "1 may reach `capacity`.",
                ),
                (
                    routes.by_score,
                    "each expert keeps the tokens that like it best. It takes those who come first: a "
                    "later token must not put out an earlier one.",
                ),
                (routes.last_come, "each expert keeps the tokens that come last. It takes those who come first."),
                (
                    routes.overwriting,
                    "a token that comes when the expert is full takes the last place from the one who "
                    "had it. It is the newcomer that is dropped.",
                ),
                (routes.the_dropped, "True and False are swapped: those are the choices that are dropped."),
                (
                    routes.one_room_for_all,
                    "the room is shared by all experts: `capacity` places times E. Each expert has its own.",
                ),
                (
                    routes.first_tokens,
                    "the first `capacity` tokens are kept, whomever they chose. Each expert counts "
                    "those that chose it.",
                ),
                (
                    routes.everybody,
                    "nobody is dropped, and some experts have more than `capacity` tokens. Count "
                    "along the tokens, for each expert by itself: `cumsum(0)`.",
                ),
                (
                    routes.whole_tokens,
                    "a token is dropped as a whole where one of its experts is full. It goes on with the others.",
                ),
            )
        ),
        mistaken(
            gradient("scores"),
            lambda *args: routed(routes.weights_by_a_constant_sum, *args)[gradient("scores")],
            "sum_cut_off",
            "the values are right, but the sum that the weights are divided by has no gradient. It moves with the "
            "scores, too.",
        ),
        no_gradient,
    ],  # fmt: skip
    hints=[
        "Two questions, and they do not meet: what a token wants (its k best, and how they compare), and whether there "
        "is room. For the second, each expert has a queue. At which place does each token stand in it?",
        "Experts A and B, k = 1, capacity 2:\n"
        "    token   chose   A's queue   B's queue   place   kept\n"
        "    0       A       1           0           0       yes\n"
        "    1       A       2           0           1       yes\n"
        "    2       B       2           1           0       yes\n"
        "    3       A       3           1           2       no\n"
        "The columns in the middle count along the tokens; the place is the number at the chosen expert, less one.",
        "`best, chosen = scores.topk(k, dim=-1)`; the weights are `best` over its sum. `F.one_hot(chosen, n_experts)"
        ".sum(1)` is (T, E), 1 where a token stands in a queue; its `cumsum(0) - 1` holds the places, and "
        "`.gather(1, chosen)` picks those of the chosen.",
    ],
    advice={"wrong_shape": "A rank may have no tokens: then all three are (0, k)."},
    wrong=[
        Wrong(routes.made_up_for, "what is dropped is made up for"),
        Wrong(routes.made_up_for_with_care, "who stood before it in the queue"),
        Wrong(routes.not_divided, "the weights are the scores as they are"),
        Wrong(routes.dropped_weigh_nothing, "That is what `kept` is for"),
        Wrong(routes.softmax_of_chosen, "softmax of the chosen scores"),
        Wrong(routes.softmax_again, "softmax of the scores, which are probabilities already"),
        Wrong(routes.softmax_again_and_divided, "which softmax flattens: divide them by their sum"),
        Wrong(routes.divided_by_the_sum_of_all, "one number, the sum over all tokens"),
        Wrong(routes.divided_by_k, "the weights are divided by k"),
        Wrong(routes.in_bfloat16, "the scores were rounded to 16 bits"),
        Wrong(routes.worst_experts, "the smallest scores"),
        Wrong(routes.counted_from_expert_1, "counted from 1. Expert 0"),
        Wrong(routes.in_order_of_numbers, "in the order of their numbers"),
        Wrong(routes.sent_on, "sent on to their next best"),
        Wrong(routes.queue_for_each_choice, "first choices have a queue and second choices another"),
        Wrong(routes.first_choices_before_second, "all first choices come before any second"),
        Wrong(routes.off_by_one, "one token more than its capacity"),
        Wrong(routes.counted_from_one, "one token less than its capacity"),
        Wrong(routes.dropped_by_score, "that like it best"),
        Wrong(routes.last_are_kept, "the tokens that come last"),
        Wrong(routes.last_place_overwritten, "takes the last place from the one"),
        Wrong(routes.dropped_for_kept, "True and False are swapped"),
        Wrong(routes.common_room, "the room is shared by all experts"),
        Wrong(routes.first_tokens_kept, "whomever they chose"),
        Wrong(routes.all_kept, "nobody is dropped"),
        Wrong(routes.token_dropped_whole, "dropped as a whole"),
        Wrong(routes.counted_along_experts, "Count along the tokens"),
        Wrong(routes.weights_cut_off, "backward never reaches `scores`"),
        Wrong(routes.weights_by_a_constant_sum, "has no gradient. It moves with the"),
        Wrong(routes.kept_as_numbers, "it should stay bool"),
        Wrong(routes.two_of_three, "returned 2 values. Wanted: three tensors"),
        Wrong(routes.row_by_row, "A rank may have no tokens"),
    ],
    closing=dropped_of(),
)
