"""A schedule while it is made, move by move: what may run now, and if not, why not. The engine of the game."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind
from course_lib.parallel.pipeline.needs import needs
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.validate import FREES, clash, wrong_place


class Board:
    """Orders that grow at their ends. A move may need what another rank runs: that must have been played before.

    So what is on the board can always run, and a full board is a valid schedule. placement: the rank of each stage.
    cap: the most activations (micro-batches of one stage) that a rank may hold, see validate.held; None: any number.
    """

    def __init__(self, placement: Sequence[int], n_micro_batches: int, cap: int | None = None) -> None:
        if n_micro_batches < 1:
            raise ScheduleError(f"{n_micro_batches} micro-batches are nothing to run: take 1 or more")
        if cap is not None and cap < 1:
            raise ScheduleError(f"with a cap of {cap} no forward can ever run: take 1 or more")
        self.placement, self.n_micro_batches, self.cap = tuple(placement), n_micro_batches, cap
        self.n_ranks = max(self.placement) + 1
        self.orders: list[list[Action]] = [[] for _ in range(self.n_ranks)]
        self.moves: list[tuple[int, Action]] = []
        self._done: set[Action] = set()
        self._held = [0] * self.n_ranks

    @classmethod
    def of(cls, schedule: Schedule, n_micro_batches: int | None = None, cap: int | None = None) -> Board:
        """A board on which the schedule, finished or not, has been played. Raises ScheduleError if it cannot be.

        n_micro_batches: how many there are to be, if the schedule does not name the last one yet.
        """
        board = cls(schedule.placement, n_micro_batches or max(1, schedule.n_micro_batches), cap)
        if board.n_ranks != schedule.n_ranks:
            raise ScheduleError(
                f"{schedule.n_ranks} ranks, but stages on {board.n_ranks} only: give every rank a stage"
            )
        left = [list(order) for order in schedule.orders]
        moved = True
        while moved:
            moved = False
            for rank, order in enumerate(left):
                while order and board.may(rank, order[0]) is None:
                    board.play(rank, order.pop(0))
                    moved = True
        for rank, order in enumerate(left):
            if order:
                raise ScheduleError(board.may(rank, order[0]))
        return board

    def may(self, rank: int, action: Action) -> str | None:
        """Why the rank cannot run the action next, in one sentence; None if it can."""
        reason = self._why_not(rank, action)
        return None if reason is None else f"rank {rank} cannot run {action}: {reason}"

    def possible(self, rank: int) -> list[Action]:
        """What the rank can run next, the lowest micro-batch first, and forward before backward."""
        stages = [stage for stage, owner in enumerate(self.placement) if owner == rank]
        kinds = [kind for kind in Kind if kind in COMPUTE]
        every = (Action(s, kind, mb) for mb in range(self.n_micro_batches) for s in stages for kind in kinds)
        return [action for action in every if self._why_not(rank, action) is None]

    def play(self, rank: int, action: Action) -> None:
        """Put the action at the end of the rank's order. Raises ScheduleError with the reason of `may`."""
        reason = self.may(rank, action)
        if reason is not None:
            raise ScheduleError(reason)
        self.orders[rank].append(action)
        self.moves.append((rank, action))
        self._done.add(action)
        self._held[rank] += (action.kind == Kind.F) - (action.kind in FREES)

    def undo(self) -> tuple[int, Action]:
        """Take back the last move, and return it. Raises ScheduleError if there is none."""
        if not self.moves:
            raise ScheduleError("there is no move to take back")
        rank, action = self.moves.pop()
        self.orders[rank].pop()
        self._done.remove(action)
        self._held[rank] -= (action.kind == Kind.F) - (action.kind in FREES)
        return rank, action

    def held(self, rank: int) -> int:
        """The activations that the rank holds now, in micro-batches of one stage."""
        return self._held[rank]

    @property
    def full(self) -> bool:
        """Whether every stage has run every micro-batch forward and backward: the schedule is valid."""
        halves = sum({Kind.F: 1, Kind.B: 1}.get(action.kind, 0.5) for action in self._done)
        return halves == 2 * len(self.placement) * self.n_micro_batches

    def schedule(self, name: str = "") -> Schedule:
        """What is on the board; valid if the board is full."""
        return Schedule(tuple(map(tuple, self.orders)), self.placement, name)

    def _why_not(self, rank: int, action: Action) -> str | None:
        if not 0 <= rank < self.n_ranks:
            return f"there is no such rank, only 0 to {self.n_ranks - 1}"
        if action.kind not in COMPUTE:
            return "messages go by themselves, place only F, B, I and W"
        reason = wrong_place(rank, action, self.placement, self.n_micro_batches) or clash(action, self._done)
        if reason is not None:
            return reason
        for choices in needs(action, self.placement):
            if self._done.isdisjoint(choices):
                owner = self.placement[choices[0].stage]
                names = " or ".join(map(str, choices))
                return f"it needs {names}, which {'it' if owner == rank else f'rank {owner}'} has not run yet"
        if action.kind == Kind.F and self.cap is not None and self._held[rank] >= self.cap:
            return f"it holds as many activations as it may, {self.cap}: finish a backward first"
        return None
