"""Let a rule finish a schedule: each rank that is free takes what it can start first."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.needs import needs
from course_lib.parallel.pipeline.schedule import ScheduleError
from course_lib.parallel.pipeline.simulate import Costs, simulate


def finish(board: Board, costs: Costs | None = None, prefer: Sequence[Kind] = (Kind.B, Kind.F)) -> None:
    """Play moves until the board is full, always the one that can start soonest; then it is a valid schedule.

    prefer: the kinds to play, and which goes first where a rank could start several at once. (B, F) runs backward as
    soon as it can; (F, B) is GPipe's way; (I, F, W) puts the weight's backward into gaps, as zero-bubble schedules do.
    Then a stage that comes later in the model goes first, then the lower micro-batch. Nobody looks ahead: this is a
    good player, not a perfect one. costs: without blocking sends.

    Raises ScheduleError where no move is left, as under a cap too low for the placement; the moves made stay.
    """
    costs = costs or Costs()
    if Kind.F not in prefer or not {Kind.B, Kind.I} & set(prefer):
        raise ScheduleError(f"{', '.join(prefer) or 'nothing'} cannot fill a board: prefer F, and B or I, at least")
    if costs.blocking:
        raise ScheduleError("the policy plans for sends that do not block: simulate its schedule with blocking ones")
    past = simulate(board.schedule(), costs)
    costs, end = past.costs, dict(past.end)
    free = [max((end[action] for action in order), default=0.0) for order in board.orders]
    rank_of = board.placement

    def start(rank: int, action: Action) -> float:
        at = free[rank]
        for choices in needs(action, rank_of):
            made = next(choice for choice in choices if choice in end)
            away = rank_of[made.stage] != rank
            at = max(at, end[made] + (costs.between(made.stage, action.stage) if away else 0.0))
        return at

    kinds = [*prefer, Kind.W]  # a W is left over where somebody played an I before
    while not board.full:
        moves = [
            (start(rank, action), kinds.index(action.kind), -action.stage, action.micro_batch, rank)
            for rank in range(board.n_ranks)
            for action in board.possible(rank)
            if action.kind in kinds
        ]
        if not moves:
            full = next(rank for rank in range(board.n_ranks) if board.held(rank) == board.cap)
            raise ScheduleError(
                f"no move is left: rank {full} holds as many activations as it may, {board.cap}, and can finish none: "
                "raise the cap, or take moves back"
            )
        at, kind, stage, micro_batch, rank = min(moves)
        action = Action(-stage, kinds[kind], micro_batch)
        board.play(rank, action)
        end[action] = free[rank] = at + costs.of(action)
