"""Lab 2a: the loss from shards of the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Exercise, Timing, Wrong
from course_lib.lab.exercises.lab2a_graded import GIVEN, no_gradient, reductions, times_n
from course_lib.lab.exercises.lab2a_losses_run import (
    TOKENS,
    VOCABULARY,
    T,
    every_target,
    large,
    logits_gathered,
    made_of,
    one_process,
    own_sum,
    own_target,
    right_sum,
    right_target,
    run,
    scored,
    sum_alone,
    sum_by_own_max,
    target_alone,
    target_by_own_max,
)
from course_lib.lab.exercises.wrong import vocab_parallel_losses as losses
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.tensor import simple
from course_lib.training.loss import IGNORE


def losses_are(log_sum: Callable, target: Callable, name: str, sentence: str) -> Callable:
    return looks_like(made_of(log_sum, target), name, sentence, part="result")


@signature
def padding_counts(e: Evidence) -> str | None:
    """Wrong only where there is nothing to predict."""
    if e.where != "`result`" or not e.comparable:
        return None
    labels = e.inputs[0][1]
    if not all(bool((labels[e.wrong_elements(r)] == IGNORE).all()) for r in e.wrong):
        return None
    return (
        f"a position with the label {IGNORE} has a loss. No rank has such a token, so its target is 0, and what is "
        "left is the log of the sum: set those losses to 0"
    )


@signature
def overflow(e: Evidence) -> str | None:
    """exp of something far from 0."""
    if e.where != "`result`" or not e.comparable or all(bool(e.observed[r].isfinite().all()) for r in e.wrong):
        return None
    done = reductions(e, e.wrong[0])
    if "MAX" in done:
        return None
    if done.count("SUM") > 2:
        return (
            "the largest logits of the shards are added up, and the sum is far from all of them: exp gives 0, and its "
            "log is infinite. Not the sum, the largest: `dist.ReduceOp.MAX`"
        )
    return (
        "the losses are not finite: exp of a logit above 88 is infinite in float32, and of one below -104 it is 0. "
        "Subtract the token's largest logit first"
    )


@signature
def largest_has_a_gradient(e: Evidence) -> str | None:
    """The gradient goes through the largest logit, too."""
    if e.where != "`gradient of logits`" or not e.comparable:
        return None
    if any(bool(e.observed[r].isnan().any()) for r in e.wrong):
        return (
            "the losses are right, and the gradient is NaN: backward goes through the largest logit, and what it "
            "needs there was overwritten by the all-reduce. A constant has no gradient: `logits.detach().amax(-1)`"
        )
    for r in e.wrong:
        extra = e.observed[r] - e.expected[r]
        lost = e.expected[r].sum(1)
        place = e.inputs[r][0].argmax(1)
        told = torch.zeros_like(extra).scatter(1, place[:, None], -lost[:, None])
        if not same(e.expected[r] + told, e.observed[r]):
            return None
    return (
        "the losses are right, but the gradient goes through the largest logit too, and on each rank through that of "
        "its own shard. It is a constant that cancels out: take it from `logits.detach()`"
    )


VOCAB_PARALLEL_LOSSES = Exercise(
    name="vocab_parallel_losses",
    lab="lab2a",
    title="The loss, from shards of the logits",
    minutes=25,
    difficulty=3,
    reference=simple.vocab_parallel_losses,
    cases=[
        scored("logits around 0"),
        scored("logits around 900", scale=5.0, offset=900.0),
        scored("logits around -900", offset=-900.0),
        scored("logits far apart", scale=60.0),
        scored("nothing to predict", labels=(IGNORE,) * T),
    ],
    expected=one_process,
    call=run,
    may_use=COLLECTIVES,
    may_call=GIVEN,
    takes_group=True,
    least_bytes=lambda n, rank, args: 3 * args[2].nbytes,
    timing=Timing(
        large,
        f"{TOKENS} tokens of a vocabulary of {VOCABULARY:,}, forward and backward",
        {"with the logits gathered": logits_gathered},
    ),
    signatures=[
        overflow,
        padding_counts,
        losses_are(
            sum_by_own_max,
            target_by_own_max,
            "own_max",
            "each rank subtracts the largest logit of its own shard. Then the terms of one sum are measured from "
            "different zeros: take the largest over all ranks.",
        ),
        losses_are(
            sum_by_own_max,
            right_target,
            "own_max_in_the_sum",
            "in the sum, each rank subtracts the largest logit of its own shard, and its terms are measured from "
            "different zeros: take the largest over all ranks.",
        ),
        losses_are(
            own_sum, right_target, "own_sum", "the sum is over this rank's tokens alone. Add it up over the ranks."
        ),
        losses_are(
            right_sum,
            own_target,
            "own_target",
            "only the rank that has the label's logit subtracts it; the others do not know it. Add it up over the "
            "ranks, of which all but one have 0.",
        ),
        losses_are(
            own_sum,
            own_target,
            "own_everything",
            "each rank has the loss over its own part of the vocabulary: neither the sum nor the label's logit "
            "travels.",
        ),
        losses_are(
            right_sum,
            every_target,
            "target_of_every_rank",
            "every rank counts a logit as the label's, those that do not have it the one of their column 0. Those "
            "count 0.",
        ),
        losses_are(
            right_sum,
            lambda parts, rank, top: 0.0 * top,
            "no_target",
            "the label's logit is in nobody's count: that is the log of the sum alone.",
        ),
        losses_are(
            right_sum,
            lambda parts, rank, top: right_target(parts, rank, top) + top,
            "target_not_shifted",
            "the largest logit is subtracted in the sum, and not from the label's logit. It cancels only if it is in "
            "both.",
        ),
        times_n(
            "gradient of logits",
            "backward_reduces",
            "the losses are right, and their gradient is {n} times too large: the sums reduce in backward too. All "
            "ranks go on alike, so each has the whole gradient already: `reduce_from`.",
        ),
        looks_like(
            target_alone,
            "no_gradient_of_the_sum",
            "the losses are right, but their gradient has the label's part alone: the log of the sum has none. "
            "`reduce_from` carries a gradient, what was detached does not.",
            part="gradient of logits",
        ),
        looks_like(
            sum_alone,
            "no_gradient_of_the_target",
            "the losses are right, but their gradient lacks the label's part: its logit lost its graph on the way.",
            part="gradient of logits",
        ),
        largest_has_a_gradient,
        no_gradient,
    ],
    hints=[
        "Write it for one process first: `logits - largest`, `exp`, sum, `log`, less the label's logit. Which of these "
        "steps need another rank's logits?",
        "Three exchanges, each of one number for a token:\n"
        "    largest   the largest of each shard       all_reduce with MAX, no gradient\n"
        "    total     sum of exp(logit - largest)     reduce_from\n"
        "    target    the label's logit - largest     reduce_from: 0 on the ranks that do not have it\n"
        "    loss      log(total) - target             0 where the label is IGNORE",
        "`largest = logits.detach().amax(-1)`, reduced with `dist.ReduceOp.MAX`; `logits = logits - "
        "largest.unsqueeze(-1)`; `total = reduce_from(logits.exp().sum(-1), group)`; the target by `logits.gather(-1, "
        "local.where(here, 0).unsqueeze(-1)).squeeze(-1)`, with `masked_fill(~here, 0)` before it is reduced.",
    ],
    advice={"too_many_bytes": "Three numbers for each token are enough, whatever the size of the vocabulary."},
    wrong=[
        Wrong(losses.without_max, "Subtract the token's largest logit first"),
        Wrong(losses.max_of_its_own_shard, "measured from different zeros: take"),
        Wrong(losses.max_of_its_own_shard_in_the_sum, "in the sum, each rank subtracts the largest"),
        Wrong(losses.max_added_up, "Not the sum, the largest"),
        Wrong(losses.padding_not_masked, "has a loss. No rank has such a token"),
        Wrong(losses.sum_not_reduced, "the sum is over this rank's tokens alone"),
        Wrong(losses.target_not_reduced, "only the rank that has the label's logit"),
        Wrong(losses.each_its_own, "neither the sum nor the label's logit"),
        Wrong(losses.target_of_every_rank, "the one of their column 0"),
        Wrong(losses.target_of_none, "in nobody's count"),
        Wrong(losses.target_not_shifted, "It cancels only if it is in both"),
        Wrong(losses.reduced_in_backward_too, "the sums reduce in backward too"),
        Wrong(losses.sum_detached, "the log of the sum has none"),
        Wrong(losses.target_detached, "lost its graph on the way"),
        Wrong(losses.max_with_gradient, "was overwritten by the all-reduce"),
        Wrong(losses.max_of_a_copy_with_gradient, "a constant that cancels out"),
        Wrong(losses.gathering_logits, "Three numbers for each token are enough"),
        Wrong(losses.mean_of_them, "it should be (6,)"),
        Wrong(losses.without_group, "ight on the whole world, wrong in a group"),
    ],
    closing="Three numbers for a token travel, and not its logits; backward sends nothing.",
)
