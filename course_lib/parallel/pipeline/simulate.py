"""What a schedule costs: when each action runs, how long ranks idle and why, what they must hold.

Time goes as on real ranks. A rank runs its order, one action after the other, each as soon as its data is there. What
another rank needs is sent at once and arrives `send` later; the sender computes on meanwhile. Messages do not slow each
other down, nor the computing.

**Bubble**: the share of the step in which a rank does not compute: (makespan - its computing) / makespan. The step goes
from 0 to the end of the last action of any rank. For all ranks together: the mean over them. (Some papers divide by the
computing instead: GPipe's (p - 1) / (m + p - 1) is (p - 1) / m there.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind
from course_lib.parallel.pipeline.idle import Gap, gaps
from course_lib.parallel.pipeline.needs import in_order, needs, other_end
from course_lib.parallel.pipeline.passes import lower
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.validate import FREES, wrong_moves
from course_lib.timeline import Span, Timeline

Amount = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Times, in any unit: one number for all stages, or a sequence with one for each.

    forward, input, weight: of F, I and W; B takes input + weight. send: of a message to another rank; a sequence has
    one number for each pair of neighbours, the first for stages 0 and 1, for both directions. activation: what a
    micro-batch on this stage holds in memory, in any unit (1: micro-batches are counted). blocking: a send returns
    when the message has been received, and both ranks can do nothing else until then.
    """

    forward: Amount = 1.0
    input: Amount = 1.0
    weight: Amount = 1.0
    send: Amount = 0.0
    activation: Amount = 1.0
    blocking: bool = False

    def per_stage(self, n_stages: int) -> Costs:
        """The same with a tuple for every amount. Raises ScheduleError where a length is wrong or a number negative."""
        lengths = {"forward": n_stages, "input": n_stages, "weight": n_stages, "activation": n_stages}
        found = {name: _spread(name, getattr(self, name), n) for name, n in lengths.items()}
        return Costs(**found, send=_spread("send", self.send, n_stages - 1), blocking=self.blocking)

    def of(self, action: Action) -> float:
        """How long the action takes. Call it on costs per stage. A send or receive takes no time of the rank's."""
        match action.kind:
            case Kind.F:
                return self.forward[action.stage]
            case Kind.I:
                return self.input[action.stage]
            case Kind.W:
                return self.weight[action.stage]
            case Kind.B:
                return self.input[action.stage] + self.weight[action.stage]
        return 0.0

    def between(self, stage: int, other: int) -> float:
        """How long a message between two neighbours on different ranks takes. Call it on costs per stage."""
        return self.send[min(stage, other)]


@dataclass(frozen=True)
class Simulation:
    """What simulate found. start, end: of every action. cause: what ended last of all that an action waited for."""

    schedule: Schedule
    costs: Costs
    start: dict[Action, float]
    end: dict[Action, float]
    cause: dict[Action, Action | None]

    @cached_property
    def makespan(self) -> float:
        return max(self.end.values(), default=0.0)

    @cached_property
    def bubbles(self) -> tuple[float, ...]:
        """The bubble of each rank: the share of the makespan in which it does not compute."""
        if self.makespan == 0:
            return (0.0,) * self.schedule.n_ranks
        busy = [sum(map(self.costs.of, order)) for order in self.schedule.orders]
        return tuple((self.makespan - time) / self.makespan for time in busy)

    @property
    def bubble(self) -> float:
        """The bubble of all ranks together."""
        return sum(self.bubbles) / len(self.bubbles)

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """The most that each rank holds at once, in units of costs.activation: from F until B, or until W."""
        peaks = []
        for order in self.schedule.orders:
            now = peak = 0.0
            for action in order:
                share = self.costs.activation[action.stage]
                now += share * ((action.kind == Kind.F) - (action.kind in FREES))
                peak = max(peak, now)
            peaks.append(peak)
        return tuple(peaks)

    @cached_property
    def critical_path(self) -> tuple[Action, ...]:
        """Actions, each the last that the next one waited for, up to the end of the step. Make one faster to gain."""
        path = []
        action = max(self.end, key=self.end.__getitem__, default=None)
        while action is not None:
            path.append(action)
            action = self.cause[action]
        return tuple(reversed(path))

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Every stretch in which a rank does nothing, by rank and time, with its reason."""
        return gaps(self.schedule, self.start, self.end, self.cause)

    def timeline(self, seconds: float = 1.0) -> Timeline:
        """As if measured: to draw, or to save as a Chrome trace. seconds: how long one unit of time is."""
        return Timeline(
            [
                [
                    Span(str(a), *(round(t * seconds * 1e9) for t in (self.start[a], self.end[a])), kind=_span_kind(a))
                    for a in order
                ]
                for order in self.schedule.orders
            ]
        )


def simulate(schedule: Schedule, costs: Costs | None = None) -> Simulation:
    """Run a schedule on paper. costs: by default F, I and W take 1 each and messages take no time.

    The schedule need not be finished: what is there runs. With costs.blocking it is lowered first if it is not yet,
    and the simulation is of that. Raises ScheduleError for a schedule that is wrong, Deadlock (which is one) where
    ranks wait for good.
    """
    costs = (costs or Costs()).per_stage(schedule.n_stages)
    wrong = wrong_moves(schedule)
    if wrong:
        raise ScheduleError(wrong[0].reason)
    if costs.blocking and not schedule.lowered:
        schedule = lower(schedule)
    placement, lowered = schedule.placement, schedule.lowered
    start: dict[Action, float] = {}
    end: dict[Action, float] = {}
    cause: dict[Action, Action | None] = {}
    last: list[Action | None] = [None] * schedule.n_ranks

    for rank, action in in_order(schedule, costs.blocking):
        other = other_end(action)
        if costs.blocking and other in end:  # a receive: its send has begun, and they end together
            start[action], end[action], cause[action] = start[other], end[other], cause[other]
            last[rank] = action
            continue
        before = [(end[last[rank]], last[rank])] if last[rank] else [(0.0, None)]
        if costs.blocking and other is not None:
            peer = last[placement[other.stage]]
            before += [(end[peer], peer)] if peer else []
            takes = costs.between(action.stage, other.stage)
        else:
            for choices in needs(action, placement, lowered):
                made = next(choice for choice in choices if choice in end)
                away = placement[made.stage] != rank
                before.append((end[made] + (costs.between(made.stage, action.stage) if away else 0.0), made))
            takes = costs.of(action)
        ready, cause[action] = max(before, key=lambda pair: pair[0])  # the first of equals: the rank's own
        start[action], end[action] = ready, ready + takes
        last[rank] = action
    return Simulation(schedule, costs, start, end, cause)


def _span_kind(action: Action) -> str:
    return "compute" if action.kind in COMPUTE else "comm"


def _spread(name: str, amount: Amount, n: int) -> tuple[float, ...]:
    amounts = tuple(amount) if isinstance(amount, Sequence) else (amount,) * n
    if len(amounts) != n:
        pairs = "pairs of neighbours" if name == "send" else "stages"
        raise ScheduleError(f"{len(amounts)} costs of {name} for {n} {pairs}: give one for each, or one number for all")
    if any(not x >= 0 for x in amounts):
        raise ScheduleError(f"a cost of {name} is {min(amounts)}: give 0 or more")
    return amounts
