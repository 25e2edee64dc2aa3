"""The pipeline game: build a schedule move by move. No picture, no widget: only the board, and sentences about it.

A move that the rules forbid is answered with the reason; a move that opens a gap, with what the rank waits for there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from course_lib.lab.widgets.pipeline_levels import RULES, Level, floor, rivals
from course_lib.parallel.pipeline import text
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.needs import needs
from course_lib.parallel.pipeline.policy import finish
from course_lib.parallel.pipeline.recognise import recognise
from course_lib.parallel.pipeline.schedule import ScheduleError
from course_lib.parallel.pipeline.simulate import Simulation, simulate

NEAR = 1e-9  # two times closer than this are the same


@dataclass(frozen=True)
class Answer:
    """What the game says to a move. kind: "no" (nothing has changed), "gap", "good" or "" (nothing to remark)."""

    text: str = ""
    kind: str = ""


class Game:
    """One level, being played. Every method that makes a move returns an Answer; none raises for an illegal one."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.floor = floor(level)
        self.board = level.board()
        self._past: list[list[tuple[int, Action]]] = []  # the moves on the board before each command

    def play(self, rank: int, name: str) -> Answer:
        """Put an action, by its name ("1F0"), at the end of the rank's order."""
        try:
            action = Action.parse(name)
            before = list(self.board.moves)
            self.board.play(rank, action)
        except ValueError as error:
            return Answer(sentence(error), "no")
        self._past.append(before)
        return self._remark(rank, action)

    def undo(self) -> Answer:
        """Take the last command back: a move, or all the moves of a rule, or a text that was loaded."""
        if not self._past:
            return Answer("There is nothing to take back.", "no")
        self._put(self._past.pop())
        return Answer()

    def take_back(self, name: str) -> Answer:
        """Take an action back, with all that comes after it on its rank, and all on other ranks that needs these."""
        before, gone = list(self.board.moves), set()
        stop: set[int] = set()  # ranks whose order ends here
        board = self.level.board()
        for rank, move in before:
            if str(move) == name:
                stop.add(rank)
            if rank in stop or board.may(rank, move):
                stop.add(rank)  # an order keeps its sequence: what follows a missing move goes, too
                gone.add(move)
            else:
                board.play(rank, move)
        if not gone:
            return Answer(f"{name} is not on the board.", "no")
        self.board = board
        self._past.append(before)
        others = len(gone) - 1
        more = f", and {others} more that came after it or needed it" if others else ""
        return Answer(f"Took back {name}{more}.")

    def restart(self) -> Answer:
        """Empty the board. (It can be undone.)"""
        if self.board.moves:
            self._past.append(list(self.board.moves))
        self.board = self.level.board()
        return Answer()

    def finish(self, rule: str) -> Answer:
        """Let one of pipeline_levels.RULES play on until the end, or until no move is left."""
        before = list(self.board.moves)
        try:
            finish(self.board, self.level.costs, RULES[rule])
        except ScheduleError as error:
            answer = Answer(sentence(error), "no")
        else:
            answer = Answer(self.verdict(), "good")
        if self.board.moves != before:
            self._past.append(before)
        return answer

    def save(self) -> str:
        """The board as text, with the level's conditions as a comment."""
        return f"# {self.level.conditions()}\n{text.dumps(self.board.schedule())}"

    def load(self, written: str) -> Answer:
        """Put what a text says on the board, finished or not. If it cannot be, the board stays as it is."""
        level = self.level
        try:
            schedule = text.loads(written)
            if schedule.placement != level.placement:
                raise ScheduleError(
                    f"this text places its stages on ranks {_numbers(schedule.placement)}, this level on ranks "
                    f"{_numbers(level.placement)}: choose a level that fits, or start one of your own"
                )
            board = Board.of(schedule, level.n_micro_batches, level.cap)
        except ScheduleError as error:
            return Answer(sentence(error), "no")
        self._past.append(list(self.board.moves))
        self.board = board
        return Answer(self.verdict(), "good" if board.full else "")

    def simulation(self) -> Simulation:
        """What is on the board, simulated under the level's costs."""
        return _simulate(self.board.schedule(), self.level.costs)

    def start_of(self, rank: int, action: Action) -> float:
        """When an action that the rank may run next would start."""
        found, placement = self.simulation(), self.level.placement
        order = self.board.orders[rank]
        at = found.end[order[-1]] if order else 0.0
        for choices in needs(action, placement):
            made = next(choice for choice in choices if choice in found.end)
            away = placement[made.stage] != rank
            at = max(at, found.end[made] + (found.costs.between(made.stage, action.stage) if away else 0.0))
        return at

    def progress(self) -> tuple[int, int]:
        """(placed, all), in forwards and backwards; I and W are a half each, and count when both are there."""
        wanted = 2 * len(self.level.placement) * self.level.n_micro_batches
        done = sum({Kind.F: 2, Kind.B: 2}.get(action.kind, 1) for _, action in self.board.moves)
        return done // 2, wanted

    def dead_end(self) -> str | None:
        """Why the game cannot be won from here; None if some rank has a move, or the board is full."""
        board = self.board
        if board.full or any(board.possible(rank) for rank in range(board.n_ranks)):
            return None
        stuck = [rank for rank in range(board.n_ranks) if board.held(rank) == board.cap]
        return (
            f"Dead end: rank{'s' * (len(stuck) > 1)} {_numbers(stuck, ' and ')} "
            f"hold{'s' * (len(stuck) == 1)} {board.cap} activations, as many as may be, and nobody can run a backward. "
            "Take moves back."
        )

    def verdict(self) -> str:
        """How far it is, or how good it is: one to three sentences."""
        level = self.level
        if not self.board.full:
            placed, wanted = self.progress()
            stands = f"{placed} of {wanted} forwards and backwards placed. Par: {level.par:g}, by {level.par_by}."
            return f"{self.dead_end() or ''} {stands}".strip()
        found = self.simulation()
        over = found.makespan - level.par
        if over > NEAR:
            score = f"{over:g} over par ({level.par:g}, by {level.par_by})"
        elif over < -NEAR:
            score = f"{-over:g} under par ({level.par:g}, by {level.par_by})"
        else:
            score = f"par, as {level.par_by}"
        best = found.makespan <= self.floor + NEAR
        bound = ". Nothing can be faster" if best else f". Nothing can be faster than {self.floor:g}"
        name = recognise(self.board.schedule())
        known = f"This is {name}" if name else "It is none of the known schedules"
        return f"{found.makespan:g} time units: {score}{bound}. {known}."

    def compared(self) -> str:
        """What the known schedules take here: for a full board."""
        words = [
            f"{rival.name} {rival.makespan:g}" + ("" if rival.allowed else f" (holds {rival.peak}: too many)")
            for rival in rivals(self.level)
        ]
        return "; ".join(words)

    def _remark(self, rank: int, action: Action) -> Answer:
        if self.board.full:
            return Answer(self.verdict(), "good")
        if dead := self.dead_end():
            return Answer(dead, "no")
        gap = next((gap for gap in self.simulation().gaps if gap.before == action), None)
        return Answer(sentence(gap.reason), "gap") if gap else Answer()

    def _put(self, moves: list[tuple[int, Action]]) -> None:
        self.board = self.level.board()
        for rank, action in moves:
            self.board.play(rank, action)


@lru_cache(maxsize=16)
def _simulate(schedule, costs):
    return simulate(schedule, costs)


def sentence(words: object) -> str:
    """With a capital and a full stop."""
    said = str(words)
    return said[:1].upper() + said[1:] + ("" if said.endswith(".") else ".")


def _numbers(numbers, between: str = " ") -> str:
    return between.join(map(str, numbers))
