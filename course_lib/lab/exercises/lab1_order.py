"""Lab 1: who sees which sample, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.wrong import epoch_share as orders
from course_lib.lab.signatures.words import signature
from course_lib.training.data import order


def epoch(samples: int, number: int, seed: int, n: int) -> Case:
    label = f"{samples} sample{'s' * (samples != 1)} on {n} ranks, seed {seed}, epoch {number}"
    return Case(lambda rank, _, rng: (samples, number, seed, n), label=label)


def shares(answer: Callable, samples: int, number: int, seed: int, n: int) -> Any:
    """The share of each rank, in whatever kind of sequence, and whether torch's own generator stayed as it was."""
    before = torch.get_rng_state()
    found = [answer(samples, number, seed, rank, n) for rank in range(n)]
    kept = bool(torch.get_rng_state().equal(before))
    try:
        return {"shares": [tuple(int(i) for i in share) for share in found], "kept": kept}
    except TypeError:
        return found[0]


def shares_in(e: Evidence) -> list[tuple[int, ...]] | None:
    value = (e.returned or e.observed)[0]
    return value["shares"] if isinstance(value, dict) else None


@signature
def seeds_torch(e: Evidence) -> str | None:
    """Right shares, from torch's own generator."""
    if e.where != "`kept`":
        return None
    return (
        "the samples are right, and they are drawn from torch's own generator: dropout and all else that is random on "
        "a rank then goes on from there, on all ranks alike. Draw from a `torch.Generator()` of your own: "
        "`torch.randperm(samples, generator=...)`"
    )


def is_that_of(mistaken: Callable, name: str, sentence: str) -> Callable[[Evidence], str | None]:
    """A signature: the shares are exactly those of a mistaken version."""

    @signature
    def find(e: Evidence) -> str | None:
        found = shares_in(e)
        return sentence if found is not None and found == shares(mistaken, *e.inputs[0])["shares"] else None

    find.__name__ = name
    return find


@signature
def all_ranks_alike(e: Evidence) -> str | None:
    found = shares_in(e)
    if found is None or len(found) < 2 or len(found[0]) == 0 or any(share != found[0] for share in found):
        return None
    if e.inputs[0][0] < 2:
        return None
    return (
        f"all ranks get the same samples, {_some(found[0])}: {len(found)} ranks do the work of one. The share "
        "begins at place `rank` of the order"
    )


@signature
def unequal_numbers(e: Evidence) -> str | None:
    found = shares_in(e)
    if found is None or len({len(share) for share in found}) < 2:
        return None
    most = max(range(len(found)), key=lambda r: len(found[r]))
    least = min(range(len(found)), key=lambda r: len(found[r]))
    return (
        f"rank {most} gets {len(found[most])} samples and rank {least} gets {len(found[least])}: in the last step one "
        "of them waits for an all-reduce that never comes. Let the order go on from its beginning until n divides it"
    )


@signature
def overlap_and_gaps(e: Evidence) -> str | None:
    """Samples that nobody sees, though there is room for all, or that two ranks see."""
    found, samples = shares_in(e), e.inputs[0][0]
    if found is None:
        return None
    seen = [i for share in found for i in share]
    if outside := [i for i in seen if not 0 <= i < samples]:
        return f"there is no sample {outside[0]}: they are numbered 0 to {samples - 1}"
    lost = [i for i in range(samples) if i not in seen]
    if not lost:
        return None
    which = f"sample{'s' * (len(lost) > 1)} {show.listing(lost[:4])}" + (" and more" if len(lost) > 4 else "")
    twice = [i for i in seen if seen.count(i) > 1]
    if not twice:
        return f"nobody sees {which}"
    who = [r for r, share in enumerate(found) if twice[0] in share]
    again = f"{show.ranks(who)} {'both see' if len(who) == 2 else 'all see' if len(who) > 1 else 'twice sees'}"
    return (
        f"nobody sees {which}, and {again} sample {twice[0]}. All ranks must cut their shares from one order: the "
        "generator's seed is the same on every rank"
    )


@signature
def another_number(e: Evidence) -> str | None:
    found = shares_in(e)
    want = e.expected[0]["shares"] if isinstance(e.expected[0], dict) else e.expected[0]
    if found is None or isinstance(want, int) or len(found[0]) == len(want[0]):
        return None
    return f"each rank gets {len(found[0])} samples, it should be {len(want[0])}"


@signature
def other_shares(e: Evidence) -> str | None:
    want = shares(order.epoch_share, *e.inputs[0])["shares"]
    found = shares_in(e)
    if found is None:
        returned = (e.returned or e.observed)[0]
        missing = ". Is a `return` missing?" if returned is None else ""
        return f"the answer returned {str(returned)[:80]}, not a list of numbers{missing}"
    rank = next(r for r, share in enumerate(found) if share != want[r])
    return f"rank {rank} gets {_some(found[rank])}, it should be {_some(want[rank])}"


def _some(share: tuple[int, ...]) -> str:
    return f"{list(share[:6])}" if len(share) <= 6 else f"{list(share[:6])[:-1]}..."


EPOCH_SHARE = Exercise(
    name="epoch_share",
    lab="lab1",
    title="Deal out the samples of an epoch",
    minutes=15,
    difficulty=1,
    reference=order.epoch_share,
    worlds=(1,),
    cases=[
        epoch(12, 2, 7, 2),
        epoch(12, 0, 3, 4),
        epoch(13, 2, 7, 4),
        epoch(10, 3, 0, 3),
        epoch(3, 1, 5, 8),
        epoch(1, 4, 2, 3),
    ],
    call=shares,
    signatures=[
        seeds_torch,
        is_that_of(
            orders.same_in_each_epoch,
            "same_in_each_epoch",
            "this is the order of epoch 0: every epoch has the same order. The seed is `seed + epoch`.",
        ),
        is_that_of(
            orders.without_seed, "without_seed", "the seed has no part in this order. The seed is `seed + epoch`."
        ),
        is_that_of(
            orders.seed_times_epoch,
            "seed_times_epoch",
            "this order comes from the seed `seed * epoch`: all seeds share their epoch 0. It is `seed + epoch`.",
        ),
        is_that_of(
            orders.contiguous,
            "contiguous",
            "each rank takes a stretch of the order. They take from it in turn, as cards are dealt: then the first "
            "step of all ranks is the first part of the order, whatever n is.",
        ),
        is_that_of(
            orders.tail_dropped,
            "tail_dropped",
            "the last samples, of which there are not enough for all, are dropped: the order goes on from its "
            "beginning.",
        ),
        is_that_of(
            orders.padded_once,
            "padded_once",
            "the order is repeated once, and with so few samples that is not enough: some ranks still get none. Repeat "
            "it as often as it takes.",
        ),
        is_that_of(
            orders.padded_with_the_last,
            "padded_with_the_last",
            "the places left over repeat the last sample. The order goes on from its beginning.",
        ),
        is_that_of(
            orders.one_round_too_many,
            "one_round_too_many",
            "where n divides the number of samples, nothing is to be added: round up, do not add one.",
        ),
        is_that_of(orders.unshuffled, "unshuffled", "nothing is shuffled: this is 0, 1, 2, ... dealt out."),
        is_that_of(
            orders.share_shuffled,
            "share_shuffled",
            "each rank shuffles a share that never changes, so a sample stays on one rank for good. Shuffle all of "
            "them, then deal.",
        ),
        is_that_of(
            orders.padded_before_the_shuffle,
            "padded_before_the_shuffle",
            "the order is made longer before it is shuffled. Shuffle `samples` numbers, then let that order go on from "
            "its beginning.",
        ),
        is_that_of(
            orders.everything,
            "everything",
            "each rank goes through all samples, so n ranks do the work of one n times. Take every n-th place.",
        ),
        all_ranks_alike,
        unequal_numbers,
        overlap_and_gaps,
        another_number,
        other_shares,
    ],
    hints=[
        "One order for all ranks: so its seed must not depend on the rank. Another order in each epoch: so it must "
        "depend on the epoch.",
        "7 samples, 3 ranks, and an order that begins with 4 0 6:\n"
        "    the order        4  0  6  2  5  1  3  |  4  0      9 places: the next multiple of 3\n"
        "    dealt to rank    0  1  2  0  1  2  0  |  1  2",
        "`generator = torch.Generator().manual_seed(seed + epoch)`; the order is `torch.randperm(samples, "
        "generator=generator).tolist()`. Repeat it until it is long enough for `math.ceil(samples / n) * n` places, "
        "cut it there, and take `[rank::n]`.",
    ],
    wrong=[
        Wrong(orders.same_on_all, "all ranks get the same samples"),
        Wrong(orders.everything, "each rank goes through all samples"),
        Wrong(orders.same_in_each_epoch, "every epoch has the same order"),
        Wrong(orders.without_seed, "the seed has no part in this order"),
        Wrong(orders.seed_by_rank, "the generator's seed is the same on every rank"),
        Wrong(orders.unseeded, "nobody sees sample"),
        Wrong(orders.contiguous, "each rank takes a stretch of the order"),
        Wrong(orders.without_padding, "in the last step one of them waits"),
        Wrong(orders.tail_dropped, "of which there are not enough for all, are dropped"),
        Wrong(orders.padded_once, "Repeat it as often as it takes"),
        Wrong(orders.padded_with_the_last, "repeat the last sample"),
        Wrong(orders.one_round_too_many, "round up, do not add one"),
        Wrong(orders.unshuffled, "nothing is shuffled"),
        Wrong(orders.share_shuffled, "Shuffle all of them, then deal"),
        Wrong(orders.by_pythons_random, "it should be ["),
        Wrong(orders.seed_times_epoch, "all seeds share their epoch 0"),
        Wrong(orders.padded_before_the_shuffle, "is made longer before it is shuffled"),
        Wrong(orders.from_torchs_own_generator, "they are drawn from torch's own generator"),
    ],
)
