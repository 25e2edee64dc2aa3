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
        case Kind.RECV_F:
            return [(Action(stage - 1, Kind.SEND_F, mb),)]
        case Kind.RECV_B:
            return [(Action(stage + 1, Kind.SEND_B, mb),)]
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


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """(rank, action), one at a time, each after all that it needs. Raises Deadlock when no rank can go on."""
    lowered = schedule.lowered
    at = [0] * schedule.n_ranks
    done: set[Action] = set()

    def missing(rank: int) -> tuple[Action, ...] | None:
        """What the rank's next action still needs; None if it can run, or if there is none."""
        if at[rank] == len(schedule.orders[rank]):
            return None
        wanted = needs(schedule.orders[rank][at[rank]], schedule.placement, lowered)
        return next((choices for choices in wanted if done.isdisjoint(choices)), None)

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while at[rank] < len(order) and missing(rank) is None:
                action = order[at[rank]]
                done.add(action)
                at[rank] += 1
                moved = True
                yield rank, action
    stuck = [rank for rank, order in enumerate(schedule.orders) if at[rank] < len(order)]
    if stuck:
        raise Deadlock(_circle(schedule, at, {rank: missing(rank) for rank in stuck}))


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
