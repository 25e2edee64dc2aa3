"""The pipeline game in a notebook: a thin view of pipeline_game, and a button that runs the schedule on real ranks.

The view (pipeline_builder.js) is sent by the kernel to the page: nothing is loaded from anywhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

import anywidget
import traitlets

from course_lib.lab import paced_run, schedules
from course_lib.lab.widgets.pipeline_game import Answer, Game
from course_lib.lab.widgets.pipeline_levels import LEVELS, RULES, Level, own_level, to_beat
from course_lib.lab.widgets.pipeline_status import status
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.spmd import SpmdError
from course_lib.timeline.picture import Picture

SECONDS = 0.02  # on real ranks, for a unit of time


def pipeline_builder(
    n_ranks: int | None = None,
    n_micro_batches: int | None = None,
    placement: str | Sequence[int] = "loop",
    costs: Costs | None = None,
    cap: int | None = None,
    level: int = 1,
) -> Builder:
    """The game. With ranks and micro-batches it opens at a level of your own, else at one of LEVELS, counted from 1.

    placement: "loop" (one stage per rank), "loop 2" (two, n_ranks apart), "V", or a list: the rank of each stage.
    cap: the most activations a rank may hold. Raises ScheduleError for what cannot be played: see own_level.
    """
    if not 1 <= level <= len(LEVELS):
        raise ScheduleError(f"there is no level {level}: take 1 to {len(LEVELS)}")
    if (n_ranks is None) != (n_micro_batches is None):
        raise ScheduleError("a level of your own needs ranks and micro-batches, as in pipeline_builder(3, 4)")
    if n_ranks is None:
        if (placement, costs, cap) != ("loop", None, None):
            raise ScheduleError("say for how many ranks and micro-batches, as in pipeline_builder(3, 4, placement='V')")
        return Builder(LEVELS, level - 1)
    return Builder((own_level(n_ranks, n_micro_batches, placement, costs, cap), *LEVELS))


class View(anywidget.AnyWidget):
    """What is synchronised with the page. The page answers with messages, see Builder.command."""

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    state = traitlets.Dict().tag(sync=True)
    levels = traitlets.List().tag(sync=True)
    level = traitlets.Int().tag(sync=True)
    rules = traitlets.List().tag(sync=True)
    busy = traitlets.Unicode().tag(sync=True)
    told = traitlets.Unicode().tag(sync=True)
    picture = traitlets.Bytes().tag(sync=True)


class Builder:
    """Show it as the value of a cell. Without a front end it is a picture of what is on the board, or is to beat.

    schedule: the learner's, once it is finished. run(): that schedule on real ranks, as a picture.
    """

    def __init__(self, levels: Sequence[Level], at: int = 0) -> None:
        self.games = [Game(level) for level in levels]  # each keeps its board while another one is played
        titles = [level.title for level in levels]
        self.view = View(levels=titles, level=at, rules=list(RULES), state=status(self.games[at], Answer()))
        self.view.on_msg(lambda _view, content, _buffers: self.command(content))

    @property
    def game(self) -> Game:
        return self.games[self.view.level]

    @property
    def schedule(self) -> Schedule | None:
        """What is on the board; None as long as it is not finished."""
        return self.game.board.schedule("yours") if self.game.board.full else None

    def command(self, content: Mapping) -> None:
        """What the page asks for, as {"do": ...}: play, take_back, undo, restart, finish, load, level or run."""
        match content:
            case {"do": "play", "rank": rank, "action": action}:
                answer = self.game.play(rank, action)
            case {"do": "take_back", "action": action}:
                answer = self.game.take_back(action)
            case {"do": "undo"}:
                answer = self.game.undo()
            case {"do": "restart"}:
                answer = self.game.restart()
            case {"do": "finish", "rule": rule}:
                answer = self.game.finish(rule)
            case {"do": "load", "text": text}:
                answer = self.game.load(text)
            case {"do": "level", "level": level}:
                self.view.level = level
                answer = Answer()
            case {"do": "run"}:
                answer = self._run_here()
            case _:
                raise ValueError(f"the pipeline game knows no command {content!r}")
        if content["do"] != "run":
            self.view.picture, self.view.told = b"", ""  # it was of another board
        self.view.state = status(self.game, answer)

    def run(self) -> Picture:
        """The schedule on the board on real ranks, under the plan; as long as it is not finished, the one to beat.

        The stages take fixed times and no processor, so any machine has enough cores for them; the messages are real,
        and set out late by what the level says they cost. Raises what spmd.run does.
        """
        return self._measured(self.schedule or to_beat(self.game.level))[0]

    def _run_here(self) -> Answer:
        schedule = self.schedule
        if schedule is None:
            placed, wanted = self.game.progress()
            return Answer(f"First finish the schedule: {placed} of {wanted} forwards and backwards are placed.", "no")
        self.view.busy = f"Running on {schedule.n_ranks} real ranks ..."
        try:
            picture, self.view.told = self._measured(schedule)
            self.view.picture = picture.png()
        except SpmdError as error:
            return Answer(f"The ranks stopped: {error}", "no")
        finally:
            self.view.busy = ""
        return Answer(self.game.verdict(), "good")

    def _measured(self, schedule: Schedule) -> tuple[Picture, str]:
        costs = _in_seconds(self.game.level.costs)
        planned = simulate(schedule, costs)
        timeline = paced_run.run(schedule, costs)
        took = max(block.end for row in schedules.measured_blocks(planned, timeline) for block in row)
        told = (
            f"Planned {1e3 * planned.makespan:.0f} ms, measured {1e3 * took:.0f} ms. On the ranks a unit of time is "
            f"{1e3 * SECONDS:.0f} ms; stages take fixed times, and no processor."
        )
        return schedules.plan_and_measured(planned, timeline, f"{schedule.name}: planned and measured"), told

    def still(self) -> Picture:
        """For a page without a kernel: the board, or, if it is empty, the schedule to beat."""
        level, board = self.game.level, self.game.board
        if board.moves:
            return schedules.plan(self.game.simulation(), f"{level.title}: your schedule")
        best = to_beat(level)
        title = f"{level.title}: to beat is {best.name}, {level.par:g} time units"
        return schedules.plan(simulate(best, level.costs), title)

    def __repr__(self) -> str:
        level = self.game.level
        return f"Pipeline game, {level.title}: {level.conditions()}. {self.game.verdict()}"

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """All at once: a front end with a kernel shows the game, everything else the picture."""
        picture = self.still()
        width, height = picture.size()
        shown = self.view._repr_mimebundle_()
        view = shown[0] if isinstance(shown, tuple) else shown
        bundle = {**view, "text/plain": repr(self), "image/png": base64.b64encode(picture.png()).decode()}
        return bundle, {"image/png": {"width": width, "height": height}}


def _in_seconds(costs: Costs) -> Costs:
    def scaled(amount: float | Sequence[float]) -> float | tuple[float, ...]:
        return tuple(SECONDS * x for x in amount) if isinstance(amount, Sequence) else SECONDS * amount

    return Costs(*(scaled(x) for x in (costs.forward, costs.input, costs.weight, costs.send)))
