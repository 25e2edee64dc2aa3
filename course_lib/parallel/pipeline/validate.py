"""Is a schedule right, and if not, which move is wrong, and why?"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind
from course_lib.parallel.pipeline.needs import Deadlock, in_order, needs, other_end
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError

FREES = frozenset({Kind.B, Kind.W})  # after these nobody needs the activations any more


@dataclass(frozen=True)
class Problem:
    """What is wrong with one action. index: its place in the rank's order; the order's length if it is not there."""

    rank: int
    index: int
    action: Action
    reason: str

    def __str__(self) -> str:
        return self.reason


def check(schedule: Schedule) -> None:
    """Raises ScheduleError, with the first of its problems, unless the schedule is right."""
    found = problems(schedule)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ScheduleError(f"{found[0]}{more}")


def problems(schedule: Schedule, cap: int | None = None) -> list[Problem]:
    """Everything that is wrong with a schedule, by rank and place; [] if it is right.

    It is right if every stage runs each micro-batch forward and backward, once (B, or I and then W), on its rank, after
    what that needs on the same rank; and if the ranks do not wait for each other in a circle. With sends and receives
    in it, each of these is there, too, once. There is one micro-batch at least. cap: the most activations that a rank
    may hold, see held.

    Circles are looked for if nothing else is wrong.
    """
    found = wrong_moves(schedule, cap) + _missing(schedule)
    if not found:
        try:
            for _ in in_order(schedule):
                pass
        except Deadlock as error:
            for wait in error.waits:
                index = schedule.orders[wait.rank].index(wait.action)
                found.append(Problem(wait.rank, index, wait.action, f"{_cannot(wait.rank, wait.action)}: {error}"))
    return sorted(found, key=lambda problem: (problem.rank, problem.index))


def wrong_moves(schedule: Schedule, cap: int | None = None) -> list[Problem]:
    """What is wrong with what is there, seen from each rank alone. For unfinished schedules: the rest may come."""
    return [problem for rank in range(schedule.n_ranks) for problem in _on_rank(schedule, rank, cap)]


def held(order: tuple[Action, ...]) -> list[int]:
    """Activations in a rank's memory after each of its actions, counted in micro-batches of one stage.

    A forward adds one, which stays until the whole backward or the weight's backward has used it. (After I alone
    some of it could go: the input of every linear layer must stay for W, and that is most of it.)
    """
    counts, now = [], 0
    for action in order:
        now += (action.kind == Kind.F) - (action.kind in FREES)
        counts.append(now)
    return counts


def wrong_place(rank: int, action: Action, placement: tuple[int, ...], n_micro_batches: int) -> str | None:
    """Why this rank can never run this action, whatever else it runs; None if it can."""
    stage, kind, mb = action
    if not 0 <= stage < len(placement):
        return f"there is no stage {stage}, only 0 to {len(placement) - 1}"
    if placement[stage] != rank:
        return f"stage {stage} is on rank {placement[stage]}"
    if not 0 <= mb < n_micro_batches:
        return f"there is no micro-batch {mb}, only 0 to {n_micro_batches - 1}"
    other = other_end(action)
    if other is not None and not 0 <= other.stage < len(placement):
        return "no stage is at the other end"
    if other is not None and placement[other.stage] == rank:
        return "the other end is on the same rank, so there is nothing to send"
    return None


def clash(action: Action, done: set[Action]) -> str | None:
    """Why what a rank has done already makes this action one too many; None if it does not."""
    stage, kind, mb = action
    if action in done:
        return "it has run it already"
    whole, split, weight = (Action(stage, k, mb) for k in (Kind.B, Kind.I, Kind.W))
    if kind in (Kind.I, Kind.W) and whole in done:
        return f"{whole} was the whole backward, of input and weights"
    if kind == Kind.B and split in done:
        return f"{split} was a part of this backward: what is left of it is {weight}"
    return None


def _cannot(rank: int, action: Action) -> str:
    return f"rank {rank} cannot run {action}"


def _on_rank(schedule: Schedule, rank: int, cap: int | None) -> list[Problem]:
    """What is wrong with the actions of one rank, seen from that rank."""
    order, placement, lowered = schedule.orders[rank], schedule.placement, schedule.lowered
    done: set[Action] = set()
    found = []
    counts = held(order)
    for index, action in enumerate(order):
        reason = wrong_place(rank, action, placement, schedule.n_micro_batches) or clash(action, done)
        if reason is None:
            for choices in needs(action, placement, lowered):
                if placement[choices[0].stage] == rank and not any(choice in done for choice in choices):
                    later = next((choice for choice in order[index:] if choice in choices), None)
                    if later:
                        reason = f"it needs {later}, which it runs only later, at place {order.index(later)}"
                    else:
                        reason = f"it needs {' or '.join(map(str, choices))}, which it never runs"
                    break
        if reason is None and cap is not None and action.kind == Kind.F and counts[index] > cap:
            reason = f"it would hold {counts[index]} activations, and may hold {cap}"
        if reason is not None:
            found.append(Problem(rank, index, action, f"{_cannot(rank, action)} at place {index}: {reason}"))
        done.add(action)
    return found


def _missing(schedule: Schedule) -> list[Problem]:
    """What is not there and must be, for every micro-batch on every stage."""
    there = {action for order in schedule.orders for action in order}
    found = []
    for stage, rank in enumerate(schedule.placement):
        for mb in range(max(1, schedule.n_micro_batches)):
            forward, whole, split, weight = (Action(stage, kind, mb) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
            in_halves = whole not in there and (split in there or weight in there)
            wanted = [forward, split, weight] if in_halves else [forward, whole]
            if schedule.lowered:
                for kind in Kind:
                    action = Action(stage, kind, mb)
                    if kind not in COMPUTE and wrong_place(rank, action, schedule.placement, mb + 1) is None:
                        wanted.append(action)
            end = len(schedule.orders[rank])
            for action in wanted:
                if action not in there:
                    found.append(Problem(rank, end, action, f"rank {rank} never runs {action}"))
    return found
