"""What an action waits for: the one rule that the validator, the board and the simulator share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError


def needs(action: Action, placement: tuple[int, ...], lowered: bool = False) -> list[tuple[Action, ...]]:
    """What must have run before `action`: of each tuple, one of the actions in it.

    A gradient comes from the next stage's B or from its I: hence the tuples. lowered: what comes from another rank
    comes by an action of its own, RECV_F or RECV_B, which needs the other's SEND.
    """
    stage, kind, mb = action
    last = len(placement) - 1
    forward, backward = (Action(stage, Kind.F, mb),), (Action(stage, Kind.B, mb), Action(stage, Kind.I, mb))
    match kind:
        case Kind.F if stage > 0:
            apart = lowered and placement[stage - 1] != placement[stage]
            return [(Action(stage, Kind.RECV_F, mb) if apart else Action(stage - 1, Kind.F, mb),)]
        case Kind.B | Kind.I if stage < last:
            if lowered and placement[stage + 1] != placement[stage]:
                return [forward, (Action(stage, Kind.RECV_B, mb),)]
            return [forward, (Action(stage + 1, Kind.B, mb), Action(stage + 1, Kind.I, mb))]
        case Kind.B | Kind.I | Kind.SEND_F:
            return [forward]
        case Kind.W:
            return [(Action(stage, Kind.I, mb),)]
        case Kind.SEND_B:
            return [backward]
        case Kind.RECV_F | Kind.RECV_B:
            return [(other_end(action),)]
    return []


class Wait(NamedTuple):
    """Rank `rank` stands before `action` for good: it needs `missing` (of rank `of`), which does not come.

    `of` stands before `behind` itself: None if it has run its whole order, so that nobody runs `missing`.
    """

    rank: int
    action: Action
    missing: Action
    of: int
    behind: Action | None

    def __str__(self) -> str:
        before = f"rank {self.rank} waits at {self.action} for {self.missing}"
        if self.behind is None:
            return f"{before}, which rank {self.of} never runs"
        if self.behind == self.missing:
            return f"{before} of rank {self.of}"
        return f"{before}, which rank {self.of} runs only after {self.behind}"


class Deadlock(ScheduleError):
    """Ranks that wait for each other in a circle, or for what nobody runs. `waits`: who stands where, in turn."""

    def __init__(self, waits: list[Wait]) -> None:
        self.waits = tuple(waits)
        super().__init__("deadlock: " + "; ".join(map(str, waits)))


def other_end(action: Action) -> Action | None:
    """The receive that takes what this sends, and the other way round; None for an action that computes."""
    stage, kind, mb = action
    match kind:
        case Kind.SEND_F:
            return Action(stage + 1, Kind.RECV_F, mb)
        case Kind.RECV_F:
            return Action(stage - 1, Kind.SEND_F, mb)
        case Kind.SEND_B:
            return Action(stage - 1, Kind.RECV_B, mb)
        case Kind.RECV_B:
            return Action(stage + 1, Kind.SEND_B, mb)
    return None


def in_order(schedule: Schedule, blocking: bool = False) -> Iterator[tuple[int, Action]]:
    """(rank, action), one at a time, each after all that it needs. Raises Deadlock when no rank can go on.

    blocking: a send waits until the other rank has come to the receive, and the two run together, the send first.
    """
    lowered = schedule.lowered
    at = [0] * schedule.n_ranks
    done: set[Action] = set()

    def next_of(rank: int) -> Action | None:
        order = schedule.orders[rank]
        return order[at[rank]] if at[rank] < len(order) else None

    def missing(action: Action) -> tuple[Action, ...] | None:
        """What the action still needs, one of these; None if it can run."""
        other = other_end(action)
        if blocking and other is not None:
            met = next_of(schedule.placement[other.stage]) == other
            return None if met and action.kind in (Kind.SEND_F, Kind.SEND_B) else (other,)
        wanted = needs(action, schedule.placement, lowered)
        return next((choices for choices in wanted if done.isdisjoint(choices)), None)

    moved = True
    while moved:
        moved = False
        for rank in range(schedule.n_ranks):
            while (action := next_of(rank)) is not None and missing(action) is None:
                moved = True
                together = [action]
                if blocking and (other := other_end(action)) is not None:
                    together.append(other)
                for one in together:
                    owner = schedule.placement[one.stage]
                    at[owner] += 1
                    done.add(one)
                    yield owner, one
    stuck = {rank: action for rank in range(schedule.n_ranks) if (action := next_of(rank)) is not None}
    if stuck:
        raise Deadlock(_circle(schedule, at, {rank: missing(action) for rank, action in stuck.items()}))


def _circle(schedule: Schedule, at: list[int], missing: dict[int, tuple[Action, ...]]) -> list[Wait]:
    """From one stuck rank to the one it waits for, until a rank comes again: from there on it is a circle."""
    waits: list[Wait] = []
    rank = min(missing)
    while rank not in [wait.rank for wait in waits]:
        choices = missing[rank]
        of = schedule.placement[choices[0].stage]
        ahead = schedule.orders[of][at[of] :]
        wanted = next((action for action in choices if action in ahead), None)
        waits.append(
            Wait(rank, schedule.orders[rank][at[rank]], wanted or choices[0], of, ahead[0] if wanted else None)
        )
        if wanted is None:  # no circle: the end of a chain
            return waits[-1:]
        rank = of
    return waits[[wait.rank for wait in waits].index(rank) :]
