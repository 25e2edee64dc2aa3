"""The levels of the pipeline game, as data: where the stages are, what things cost, how much fits, what to beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course_lib.parallel.pipeline.actions import Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.policy import finish
from course_lib.parallel.pipeline.recognise import known
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError, loop, v_shape
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.parallel.pipeline.validate import problems

# The rules that can finish a board, by the words on their buttons: which kinds they play, and which goes first.
RULES = {
    "backward first": (Kind.B, Kind.F),
    "forward first": (Kind.F, Kind.B),
    "backward in two": (Kind.I, Kind.F, Kind.W),
}
TASK = "Place every forward and every backward, on every stage. How short can the step be?"


class Rival(NamedTuple):
    """A schedule to compare with: what it takes and holds. allowed: whether it stays within the level's cap."""

    name: str
    makespan: float
    peak: int
    allowed: bool


@dataclass(frozen=True)
class Level:
    """placement: the rank of each stage. par: the makespan to beat; par_by: whose it is. cap: the most activations a
    rank may hold, in micro-batches of one stage; None: any number. task: what there is to find out, in a sentence.
    """

    title: str
    placement: tuple[int, ...]
    n_micro_batches: int
    par: float
    par_by: str
    costs: Costs = field(default_factory=Costs)
    cap: int | None = None
    task: str = ""

    @property
    def n_ranks(self) -> int:
        return max(self.placement) + 1

    def board(self) -> Board:
        return Board(self.placement, self.n_micro_batches, self.cap)

    def conditions(self) -> str:
        """Ranks, stages, costs and cap, in one line."""
        stages = len(self.placement)
        parts = [f"{self.n_ranks} ranks", f"{self.n_micro_batches} micro-batches"]
        if stages > self.n_ranks:
            parts.insert(1, f"{stages} stages on ranks {' '.join(map(str, self.placement))}")
        names = {"forward": "F", "input": "I", "weight": "W", "send": "a message"}
        costs = [f"{short} {_amount(getattr(self.costs, name))}" for name, short in names.items()]
        parts.append(", ".join(costs) + ", B = I + W")
        parts.append(f"at most {self.cap} activations on a rank" if self.cap else "any number of activations")
        return "; ".join(parts)


def own_level(
    n_ranks: int,
    n_micro_batches: int,
    placement: str | Sequence[int] = "loop",
    costs: Costs | None = None,
    cap: int | None = None,
) -> Level:
    """A level of one's own. placement: "loop" (one stage per rank), "loop 2" (two, n_ranks apart), "V", or the rank of
    each stage. Par is what the best known schedule within the cap takes, or the best rule where none is known.

    Raises ScheduleError for a placement, costs or a cap that make no sense, or with which no rule finds an end.
    """
    costs = costs or Costs()
    if costs.blocking:
        raise ScheduleError("the game is for sends that do not block: leave blocking out of the costs")
    if not 2 <= n_ranks <= 8 or not 1 <= n_micro_batches <= 16:
        raise ScheduleError(
            f"{n_ranks} ranks and {n_micro_batches} micro-batches do not fit on a screen: take 2 to 8 ranks, 1 to 16 "
            "micro-batches"
        )
    ranks = _placement(n_ranks, placement)
    costs.per_stage(len(ranks))  # refuses what does not fit
    draft = Level("Your own", ranks, n_micro_batches, 0.0, "", costs, cap)
    best = min((r for r in rivals(draft) if r.allowed), key=lambda rival: rival.makespan, default=None)
    best = best or min(_by_rules(draft), key=lambda rival: rival.makespan, default=None)
    if best is None:
        raise ScheduleError(
            f"with at most {cap} activations on a rank no rule comes to an end on this placement: raise the cap"
        )
    return Level("Your own", ranks, n_micro_batches, best.makespan, best.name, costs, cap, TASK)


def rivals(level: Level) -> list[Rival]:
    """The known schedules of the level's placement, under its costs."""
    return [_rival(level, schedule) for schedule in known(level.placement, level.n_micro_batches)]


def to_beat(level: Level) -> Schedule:
    """A schedule that comes to par, within the cap: the one that par_by names."""
    for schedule in known(level.placement, level.n_micro_batches):
        if schedule.name == level.par_by:
            return schedule
    for rule, prefer in RULES.items():
        if _by(rule) == level.par_by:
            board = level.board()
            finish(board, level.costs, prefer)
            return board.schedule(level.par_by)
    raise ScheduleError(f"nothing here is called {level.par_by!r}: name a known schedule, or {_by('...')!r}")


def floor(level: Level) -> float:
    """A time that no schedule can be under. (Whether one comes down to it is another matter.)

    Two reasons, for each rank. It starts when the first micro-batch gets there, and then has its work to do. And its
    forwards and input gradients must all be done before the last gradient sets out for stage 0, where W follows.
    """
    placement, m = level.placement, level.n_micro_batches
    costs = level.costs.per_stage(len(placement))
    there, back = [0.0], [costs.weight[0]]  # when a stage can first start; what must follow its last I
    for stage, (rank, next_rank) in enumerate(zip(placement, placement[1:], strict=False)):
        message = costs.send[stage] if rank != next_rank else 0.0
        there.append(there[-1] + costs.forward[stage] + message)
        back.append(back[-1] + costs.input[stage] + message)
    bounds = []
    for rank in range(level.n_ranks):
        stages = [stage for stage, owner in enumerate(placement) if owner == rank]
        awaited = m * sum(costs.forward[s] + costs.input[s] for s in stages)
        start = min(there[s] for s in stages)
        bounds.append(start + awaited + m * sum(costs.weight[s] for s in stages))
        bounds.append(start + awaited + min(back[s] for s in stages))
    return max(bounds)


def _by_rules(level: Level) -> Iterator[Rival]:
    for rule, prefer in RULES.items():
        board = level.board()
        try:
            finish(board, level.costs, prefer)
        except ScheduleError:  # the cap leaves it no move
            continue
        yield _rival(level, board.schedule(_by(rule)))


def _by(rule: str) -> str:
    return f"the rule '{rule}'"


def _rival(level: Level, schedule: Schedule) -> Rival:
    found = simulate(schedule, level.costs)
    counted = simulate(schedule)  # in micro-batches, whatever each of them holds
    allowed = not problems(schedule, level.cap)
    return Rival(schedule.name, found.makespan, int(max(counted.peaks)), allowed)


def _placement(n_ranks: int, placement: str | Sequence[int]) -> tuple[int, ...]:
    if not isinstance(placement, str):
        if set(placement) != set(range(n_ranks)):
            raise ScheduleError(f"placement {list(placement)} for {n_ranks} ranks: name each of 0 to {n_ranks - 1}")
        return tuple(placement)
    if placement == "V":
        return v_shape(n_ranks)
    word, _, chunks = placement.partition(" ")
    if word != "loop" or not (chunks or "1").isdecimal() or not 1 <= int(chunks or 1) <= 4:
        raise ScheduleError(f"no placement is called {placement!r}: take 'loop', 'loop 2' (to 4), 'V', or a list")
    return loop(n_ranks, int(chunks or 1))


def _amount(amount: float | Sequence[float]) -> str:
    return "/".join(f"{x:g}" for x in amount) if isinstance(amount, Sequence) else f"{amount:g}"


LEVELS = (
    Level(
        "1 Two ranks", loop(2), 3, 12, "1F1B",
        task="Place all forwards and backwards. Where does each rank have to wait?",
    ),
    Level(
        "2 Little memory", loop(3), 4, 18, "1F1B", cap=3,
        task="GPipe holds 4 activations, 3 fit. Come to par first. Then beat it: what can a rank do in a gap?",
    ),
    Level(
        "3 Less memory still", loop(3), 4, 21, "the rule 'backward first'", cap=2,
        task="1F1B does not fit any more. What does the missing activation cost?",
    ),
    Level(
        "4 Slow messages", loop(3), 6, 34, "1F1B", Costs(send=1.0), cap=5,
        task="A message takes as long as a forward. Does 1F1B have enough micro-batches under way to cover that?",
    ),
    Level(
        "5 A heavy last stage", loop(3), 4, 30, "1F1B", Costs((1.0, 1.0, 2.0), (1.0, 1.0, 2.0), (1.0, 1.0, 2.0)), cap=3,
        task="The last stage has the head. Which rank decides? Is there anything to gain on the others?",
    ),
    Level(
        "6 Two stages each", loop(2, 2), 4, 13.5, "interleaved 1F1B, 2 stages per rank", Costs(0.5, 0.5, 0.5), cap=5,
        task="Smaller stages, so less to wait for. Which stage of a rank goes first?",
    ),
    Level(
        "7 V", v_shape(2), 4, 12.5, "ZBV", Costs(0.5, 0.5, 0.5), cap=4,
        task="Rank 0 has the first stage and the last. How soon can the first backward start?",
    ),
)  # fmt: skip
