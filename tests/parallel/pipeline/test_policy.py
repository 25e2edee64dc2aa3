"""Policies finish a board; the schedules known for it are the par to beat."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.generators import one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.policy import finish
from course_lib.parallel.pipeline.recognise import known, recognise
from course_lib.parallel.pipeline.schedule import ScheduleError, loop, v_shape
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.parallel.pipeline.validate import problems


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 6), st.sampled_from(["BF", "FB", "IFW", "IWF", "BFW"]), st.data())
def test_a_policy_finishes_any_board(p, m, prefer, data):
    board = Board(data.draw(st.sampled_from([loop(p), loop(p, 2), v_shape(p)])), m)
    for _ in range(data.draw(st.integers(0, 4))):
        moves = [(rank, action) for rank in range(p) for action in board.possible(rank)]
        if moves:
            board.play(*data.draw(st.sampled_from(moves)))
    played = list(board.moves)
    finish(board, Costs(send=0.5), [Kind(kind) for kind in prefer])
    assert board.full and problems(board.schedule()) == []
    assert board.moves[: len(played)] == played


def test_policies():
    def by(prefer, placement=None, cap=None):
        board = Board(placement or loop(4), 8, cap)
        finish(board, prefer=[Kind(kind) for kind in prefer])
        return board.schedule()

    assert recognise(by("FB")) == "GPipe"
    assert simulate(by("BF", cap=4)).makespan == simulate(one_f_one_b(4, 8)).makespan
    assert simulate(by("IFW")).makespan == simulate(zb_h1(4, 8)).makespan
    assert simulate(by("IWF", v_shape(4), cap=8)).makespan == simulate(zbv(4, 8)).makespan
    assert max(simulate(by("FB", cap=3)).peaks) == 3


def test_a_policy_goes_on_from_what_was_played():
    """A half of a backward by hand leaves its other half over; and time that has passed on a rank has passed."""
    board = Board((0,), 1)
    for kind in "FI":
        board.play(0, Action(0, Kind(kind), 0))
    finish(board)
    assert board.orders == [[(0, "F", 0), (0, "I", 0), (0, "W", 0)]]

    board = Board((0, 1), 4)
    for mb in range(4):
        board.play(0, Action(0, Kind.F, mb))
    board.play(1, Action(1, Kind.F, 0))
    board.play(1, Action(1, Kind.B, 0))
    finish(board, Costs(forward=[5, 1]))
    # rank 0 is busy until 20, so its first backward waits, and rank 1 does all that can start before that
    assert " ".join(str(action) for _, action in board.moves[6:12]) == "1F1 1B1 1F2 1B2 0B0 1F3"


def test_a_policy_that_gets_stuck_says_where():
    board = Board(v_shape(2), 4, cap=1)
    with pytest.raises(ScheduleError, match="no move is left: rank 0 holds as many activations as it may, 1, and can"):
        finish(board)
    assert board.orders == [[(0, "F", 0)], [(1, "F", 0)]]
    with pytest.raises(ScheduleError, match="B, W cannot fill a board: prefer F, and B or I"):
        finish(Board((0,), 1), prefer=[Kind.B, Kind.W])
    with pytest.raises(ScheduleError, match="plans for sends that do not block"):
        finish(Board((0,), 1), Costs(blocking=True))


def test_the_best_known_is_a_par_to_beat():
    pars = {schedule.name: simulate(schedule).makespan for schedule in known(loop(4), 8)}
    assert pars == {"GPipe": 33, "1F1B": 33, "ZB-H1": 27}
