"""Lab 2b: what each rank does, in which order: GPipe and 1F1B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.exercise import Case, Exercise, Wrong
from course_lib.lab.exercises.lab2b_orders_seen import Orders, all_ranks, simulated, told, told_of_rank
from course_lib.lab.exercises.wrong import gpipe_order as turns
from course_lib.lab.exercises.wrong import one_f_one_b_order as pairs
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.pipeline import simple
from course_lib.parallel.pipeline.needs import Deadlock


def size(n_ranks: int, n_micro_batches: int) -> Case:
    label = f"{n_micro_batches} micro-batch{'es' * (n_micro_batches > 1)} on {n_ranks} rank{'s' * (n_ranks > 1)}"
    return Case(lambda rank, n, rng: (n_ranks, n_micro_batches), label=label)


# The first is the plainest to speak of. Then fewer than ranks, as many as ranks, and one of each.
SIZES = [size(4, 8), size(2, 3), size(4, 2), size(3, 3), size(1, 3), size(3, 1)]


def of_orders(find: Callable[[Orders, Orders, int, int], str | None]) -> Signature:
    """A signature of a function of (orders, right ones, number of ranks, number of micro-batches)."""

    @signature
    def asked(e: Evidence) -> str | None:
        have = e.observed[0]
        return find(have, e.expected[0], *e.inputs[0]) if isinstance(have, Orders) else None

    asked.__name__ = find.__name__
    return asked


# Of both


@of_orders
def unlike_pairs(have: Orders, want: Orders, p: int, m: int) -> str | None:
    """Entries that are no pairs of a letter and a micro-batch of the step."""
    for rank, order in enumerate(have.ranks):
        for entry in order:
            if not (isinstance(entry, tuple) and len(entry) == 2):
                return f'rank {rank} has {entry!r} in its order. An entry is a pair, such as ("F", 0).'
            if entry[0] not in ("F", "B"):
                return f'rank {rank} has {entry!r} in its order. The first of a pair is "F" or "B".'
            if entry[1] not in range(m):
                fewer = "" if m >= p else f" There are fewer micro-batches ({m}) than ranks ({p}) here: `min`."
                numbers = f"0 to {m - 1}" if m > 1 else "0 alone"
                return f"rank {rank} has {entry!r} in its order. Micro-batches are numbered {numbers}.{fewer}"
    return None


@of_orders
def newest_first(have: Orders, want: Orders, p: int, m: int) -> str | None:
    """F and B stand where they should, but the backwards take other micro-batches."""
    for rank, (mine, right) in enumerate(zip(have.ranks, want.ranks, strict=True)):
        if mine == right:
            continue
        if [kind for kind, _ in mine] != [kind for kind, _ in right]:
            return None
        if [mb for kind, mb in mine if kind == "F"] != list(range(m)):
            return None
        backwards = [mb for kind, mb in mine if kind == "B"]
        if sorted(backwards) != list(range(m)):
            return None
        first, oldest = next((a, b) for a, b in zip(backwards, range(m), strict=True) if a != b)
        try:
            takes = simulated(have, p).makespan
        except Deadlock:
            takes = 0
        equal = takes == simulated(want, p).makespan
        as_good = "It would take as long, and the GPipe paper draws it so. But " if equal else ""
        return (
            f"{told_of_rank(have, want, rank)} F and B are in the right places, but backward takes micro-batch {first} "
            f"where {oldest} is due. {as_good}{'b' if as_good else 'B'}ackward goes in forward's order here, the "
            "oldest first: that is the one whose gradient the next rank sends first."
        )
    return None


@of_orders
def another_order(have: Orders, want: Orders, p: int, m: int) -> str | None:
    """Whatever else: what the validator says of it, or what it costs."""
    return told(have, want, p, m)


# GPipe


@of_orders
def forwards_alone(have: Orders, want: Orders, p: int, m: int) -> str | None:
    if any(kind == "B" for order in have.ranks for kind, _ in order):
        return None
    if any(have.ranks):
        return f"{told_of_rank(have, want, 0)} No backward is in it. After all forwards, all backwards."
    return 'the order is empty. Append pairs: `order.append(("F", 0))`.'


@of_orders
def one_at_a_time(have: Orders, want: Orders, p: int, m: int) -> str | None:
    if any(order != [(kind, mb) for mb in range(m) for kind in "FB"] for order in have.ranks) or p == 1:
        return None
    takes, right = (simulated(orders, p).makespan for orders in (have, want))
    return (
        f"{told_of_rank(have, want, 0)} Each micro-batch is forward and backward before the next one starts, so one "
        f"rank works at a time: {show.number(takes)} units of time in place of {show.number(right)} (forward takes 1, "
        "backward 2)."
    )


@of_orders
def it_is_one_f_one_b(have: Orders, want: Orders, p: int, m: int) -> str | None:
    if have.ranks != [simple.one_f_one_b_order(rank, p, m) for rank in range(p)]:
        return None
    return "that is 1F1B, of exercise 3. GPipe is simpler: all forwards, then all backwards."


# 1F1B


def in_turns(warm_up: int, m: int) -> list[tuple[str, int]]:
    """The order of a rank with this many forwards before the turns begin."""
    order = [("F", mb) for mb in range(warm_up)]
    for mb in range(warm_up, m):
        order += [("F", mb), ("B", mb - warm_up)]
    return order + [("B", mb) for mb in range(max(0, m - warm_up), m)]


@of_orders
def another_warm_up(have: Orders, want: Orders, p: int, m: int) -> str | None:
    """Turns on every rank, but after another number of forwards."""
    leading = [next((i for i, (kind, _) in enumerate(order) if kind != "F"), len(order)) for order in have.ranks]
    mine = [min(count - 1, m - 1) for count in leading]  # the last of them belongs to the first turn
    if min(mine) < 0 or any(order != in_turns(w, m) for order, w in zip(have.ranks, mine, strict=True)):
        return None
    right = [min(p - 1 - rank, m - 1) for rank in range(p)]
    off = [a - b for a, b in zip(mine, right, strict=True)]
    rank = next(rank for rank, d in enumerate(off) if d)
    head = (
        f"rank {rank} runs {mine[rank]} forward{'s' * (mine[rank] != 1)} before its turns begin, it should run "
        f"{right[rank]}."
    )
    try:
        have_seen, want_seen = simulated(have, p), simulated(want, p)
    except Deadlock as error:
        return f"{head} The ranks before the last need more of them, not fewer: {error}."
    if all(w == m - 1 for w in mine) and m > p:
        return (
            "all forwards come first on every rank: that is GPipe. It takes as long, but each rank holds all "
            f"{m} micro-batches at once; 1F1B turns round early, and rank {p - 1} holds 1."
        )
    if len(set(mine)) == 1 and p > 1 and m >= p and mine[0] == p - 1:
        return (
            f"the warm-up is the same on all ranks, {mine[0]} forwards. So rank {p - 1} holds {mine[0] + 1} "
            "micro-batches where 1 is enough: it needs none, its own loss starts the first backward. Each rank before "
            "it needs one more."
        )
    if all(d <= 0 for d in off):
        return (
            f"{head} The order is possible, but the pipeline stalls: too few micro-batches are under way, so ranks "
            f"wait for gradients that are not back yet. The step takes {show.number(have_seen.makespan)} units of time "
            f"in place of {show.number(want_seen.makespan)} (forward takes 1, backward 2)."
        )
    if all(d >= 0 for d in off):
        return (
            f"{head} The step takes {show.number(have_seen.makespan)} units of time, as it should, but rank {rank} "
            f"holds {show.number(have_seen.peaks[rank])} micro-batches where {show.number(want_seen.peaks[rank])} "
            "are enough."
        )
    return f"{head} Other ranks are off the other way: count the ranks after this one."


@of_orders
def no_cool_down(have: Orders, want: Orders, p: int, m: int) -> str | None:
    for rank, (mine, right) in enumerate(zip(have.ranks, want.ranks, strict=True)):
        if mine == right:
            continue
        lost = right[len(mine) :]
        if mine != right[: len(mine)] or any(kind == "F" for kind, _ in lost):
            return None
        many = f"the backward{'s' * (len(lost) > 1)} of micro-batch{'es' * (len(lost) > 1)}"
        return (
            f"rank {rank} never runs {many} {show.listing(mb for _, mb in lost)}: the cool-down is missing. As many "
            "forwards as came before the turns, so many backwards are left after them."
        )
    return None


def closing(reference: Callable, p: int, m: int, more: str) -> str:
    seen = simulated(all_ranks(reference, p, m), p)
    held = show.listing(show.number(peak) for peak in seen.peaks)
    return (
        f"{m} micro-batches on {p} ranks: by simulation the bubble is {100 * seen.bubble:.0f}% of the step, and the "
        f"ranks hold {held} micro-batches at most. {more}"
    )


def shared(**of: Any) -> dict[str, Any]:
    return {"lab": "lab2b", "worlds": (1,), "cases": SIZES, "call": all_ranks, **of}


GPIPE_ORDER = Exercise(
    **shared(
        name="gpipe_order",
        title="The order of GPipe",
        minutes=5,
        difficulty=1,
        reference=simple.gpipe_order,
    ),
    signatures=[unlike_pairs, forwards_alone, newest_first, one_at_a_time, it_is_one_f_one_b, another_order],
    hints=[
        "Two loops, one after the other. The number of the rank plays no part: who has nothing to do yet waits.",
        '3 micro-batches: ("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 1), ("B", 2)',
        'For each micro-batch of `range(n_micro_batches)`, `order.append(("F", micro_batch))`. Then the same again '
        'with "B".',
    ],
    wrong=[
        Wrong(turns.newest_first, "It would take as long, and the GPipe paper draws it so"),
        Wrong(turns.one_at_a_time, "so one rank works at a time"),
        Wrong(turns.one_f_one_b, "that is 1F1B, of exercise 3"),
        Wrong(turns.forwards_alone, "No backward is in it"),
        Wrong(turns.never_appended, "the order is empty"),
        Wrong(turns.last_one_lost, "never runs"),
        Wrong(turns.counted_from_one, "Micro-batches are numbered 0 to 7"),
        Wrong(turns.as_many_as_ranks, "rank 0 never runs F4"),
        Wrong(turns.backward_first, "it needs F0, which it runs only later"),
        Wrong(turns.waits_for_its_rank, "The order is the same on every rank"),
        Wrong(turns.in_two_lists, "An entry is a pair"),
        Wrong(turns.in_small_letters, 'The first of a pair is "F" or "B"'),
        Wrong(turns.returns_nothing, "returned None"),
    ],
    advice={"nothing_returned": "`return order` is below the blank: leave it there."},
    closing=closing(
        simple.gpipe_order, 4, 8, "No order of whole backwards has less bubble. One holds less: exercise 3."
    ),
)

ONE_F_ONE_B_ORDER = Exercise(
    **shared(
        name="one_f_one_b_order",
        title="One forward, one backward",
        minutes=20,
        difficulty=2,
        reference=simple.one_f_one_b_order,
    ),
    signatures=[unlike_pairs, another_warm_up, no_cool_down, newest_first, another_order],
    hints=[
        "Three parts. How many forwards can rank r start before the first gradient comes back to it? Count the ranks "
        "after it. The last rank has none to wait for.",
        "5 micro-batches on 3 ranks:\n"
        "    rank 0   F0 F1   F2 B0  F3 B1  F4 B2   B3 B4\n"
        "    rank 1   F0      F1 B0  F2 B1  F3 B2  F4 B3   B4\n"
        "    rank 2           F0 B0  F1 B1  F2 B2  F3 B3  F4 B4",
        "`warm_up = min(n_ranks - 1 - rank, n_micro_batches)` forwards. Then, for each micro-batch from `warm_up` on, "
        'its forward and ("B", micro_batch - warm_up). Then the backwards from `n_micro_batches - warm_up` on.',
    ],
    wrong=[
        Wrong(pairs.one_too_few, "the pipeline stalls"),
        Wrong(pairs.without_warm_up, "runs 0 forwards before its turns begin, it should run 3. The order is possible"),
        Wrong(pairs.one_too_many, "as it should, but rank 0 holds 5 micro-batches where 4 are enough"),
        Wrong(pairs.gpipe, "all forwards come first on every rank: that is GPipe"),
        Wrong(pairs.the_same_on_all, "the warm-up is the same on all ranks"),
        Wrong(pairs.growing_with_the_rank, "The ranks before the last need more of them, not fewer: deadlock"),
        Wrong(pairs.without_cool_down, "the cool-down is missing"),
        Wrong(pairs.newest_first, "backward takes micro-batch 3 where 0 is due"),
        Wrong(pairs.fewer_than_ranks_forgotten, "fewer micro-batches (2) than ranks (4)"),
        Wrong(pairs.turns_from_zero, "it has run it already"),
        Wrong(pairs.backward_of_the_same, "which it runs only later"),
        Wrong(pairs.backward_before_forward, "Rank 3 cannot run B0 there"),
        Wrong(pairs.cool_down_one_short, "never runs the backward of micro-batch 7"),
        Wrong(pairs.last_forward_lost, "never runs F7"),
        Wrong(pairs.twice_the_ranks, "as it should, but rank 0 holds 7"),
    ],
    advice={"nothing_returned": "`return order` is below the blank: leave it there."},
    closing=closing(
        simple.one_f_one_b_order,
        4,
        8,
        "GPipe has the same bubble and holds 8 on each rank. With more micro-batches "
        "this stays as it is, and the bubble shrinks.",
    ),
)
