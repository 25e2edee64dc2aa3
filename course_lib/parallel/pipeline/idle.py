"""Why a rank idles: what it waits for, and what has to happen before that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.schedule import Schedule

SHOWN = 6  # actions of a chain that a sentence names


@dataclass(frozen=True)
class Gap:
    """A stretch in which a rank does nothing.

    before: the action that ends it; None if the rank has nothing left to do. waits_for: what that action lacks. chain:
    the actions that run meanwhile, one because of the other, the last of them `waits_for`; empty if that has run and
    its message is on the way. phase: "warm-up" (until the rank's first backward), "steady", "cool-down" (its forwards
    are all done). reason: all of this in a sentence.
    """

    rank: int
    start: float
    end: float
    before: Action | None
    waits_for: Action | None
    chain: tuple[Action, ...]
    phase: str
    reason: str

    def __str__(self) -> str:
        return self.reason


def gaps(
    schedule: Schedule,
    start: Mapping[Action, float],
    end: Mapping[Action, float],
    cause: Mapping[Action, Action | None],
) -> tuple[Gap, ...]:
    """Every gap of every rank, from 0 to the end of the step. start, end, cause: as in simulate.Simulation."""
    found = []
    last = max(end, key=end.__getitem__, default=None)
    for rank, order in enumerate(schedule.orders):
        phase = _Phases(order)
        free = 0.0
        for action in order:
            if start[action] > free:
                made = cause[action]
                chain = _chain(made, free, end, cause)
                head = f"rank {rank} idles from {free:g} to {start[action]:g}: {action} waits for {made}"
                reason = head + _because(made, chain, end, schedule)
                if end[made] < start[action]:
                    reason += f", and the message takes until {start[action]:g}"
                found.append(Gap(rank, free, start[action], action, made, chain, phase.of(action), reason + "."))
            free = end[action]
        if last is not None and end[last] > free:
            where = schedule.placement[last.stage]
            reason = f"rank {rank} idles from {free:g} to {end[last]:g}: it has nothing left to do"
            reason += f", and the step ends with {last} on rank {where}."
            found.append(Gap(rank, free, end[last], None, None, (), "cool-down", reason))
    return tuple(found)


class _Phases:
    """Which phase of a rank's order an action falls into."""

    def __init__(self, order: tuple[Action, ...]) -> None:
        self.order = order
        self.first_backward = next((i for i, a in enumerate(order) if a.kind in (Kind.B, Kind.I)), len(order))
        self.last_forward = max((i for i, a in enumerate(order) if a.kind == Kind.F), default=-1)

    def of(self, action: Action) -> str:
        index = self.order.index(action)
        if index <= self.first_backward:
            return "warm-up"
        return "steady" if index <= self.last_forward else "cool-down"


def _chain(
    made: Action, since: float, end: Mapping[Action, float], cause: Mapping[Action, Action | None]
) -> tuple[Action, ...]:
    """What runs after `since`, each because of the one before, up to `made`."""
    chain: list[Action] = []
    action: Action | None = made
    while action is not None and end[action] > since:
        chain.append(action)
        action = cause[action]
    return tuple(reversed(chain))


def _because(made: Action, chain: tuple[Action, ...], end: Mapping[Action, float], schedule: Schedule) -> str:
    """The middle of the sentence: of whom, and what comes before."""
    text = f" of rank {schedule.placement[made.stage]}"
    if not chain:
        return text + ", which has run"
    if len(chain) == 1:
        return f"{text}, which runs until {end[made]:g}"
    names = ", ".join(map(str, chain[-SHOWN:]))
    names = f"..., {names}" if len(chain) > SHOWN else names
    if len({action.micro_batch for action in chain}) > 1:
        return f"{text}; until then run, one because of the other, {names}"
    mb, stages = made.micro_batch, f"{len({action.stage for action in chain})} stages"
    kinds = {action.kind for action in chain}
    if kinds <= {Kind.F, Kind.SEND_F, Kind.RECV_F}:
        return f"{text}; micro-batch {mb} must first cross {stages}: {names}"
    if Kind.F in kinds:
        return f"{text}; micro-batch {mb} must first reach the last stage and come back: {names}"
    return f"{text}; the gradient of micro-batch {mb} must first come back through {stages}: {names}"
