"""Moves on the board: refused with a reason, possible, undone; any game ends with a valid schedule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import reasons, table, valid

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError, loop, v_shape
from course_lib.parallel.pipeline.simulate import simulate
from course_lib.parallel.pipeline.validate import held, problems


def board_after(text: str, placement=(0, 1), n_micro_batches: int = 2, cap: int | None = None) -> Board:
    board = Board(placement, n_micro_batches, cap)
    for word in text.split():
        action = Action.parse(word)
        board.play(placement[action.stage], action)
    return board


@pytest.mark.parametrize(
    ("played", "rank", "move", "reason"),
    [
        ("", 1, "1F0", "rank 1 cannot run 1F0: it needs 0F0, which rank 0 has not run yet"),
        ("", 0, "0B0", "rank 0 cannot run 0B0: it needs 0F0, which it has not run yet"),
        ("0F0 1F0", 0, "0B0", "rank 0 cannot run 0B0: it needs 1B0 or 1I0, which rank 1 has not run yet"),
        ("0F0", 0, "0F0", "rank 0 cannot run 0F0: it has run it already"),
        ("0F0", 0, "1F0", "rank 0 cannot run 1F0: stage 1 is on rank 1"),
        ("", 0, "0F2", "rank 0 cannot run 0F2: there is no micro-batch 2, only 0 to 1"),
        ("", 0, "2F0", "rank 0 cannot run 2F0: there is no stage 2, only 0 to 1"),
        ("", 2, "1F0", "rank 2 cannot run 1F0: there is no such rank, only 0 to 1"),
        ("0F0", 0, "0SEND_F0", "rank 0 cannot run 0SEND_F0: messages go by themselves, place only F, B, I and W"),
        ("0F0 1F0 1B0", 1, "1W0", "rank 1 cannot run 1W0: 1B0 was the whole backward, of input and weights"),
        ("0F0 1F0", 1, "1W0", "rank 1 cannot run 1W0: it needs 1I0, which it has not run yet"),
        ("0F0 1F0 1I0", 0, "0I0", None),
        ("0F0 1F0 1I0", 1, "1B0", "rank 1 cannot run 1B0: 1I0 was a part of this backward: what is left of it is 1W0"),
    ],
)  # fmt: skip
def test_reasons_on_the_board(played, rank, move, reason):
    board = board_after(played)
    assert board.may(rank, Action.parse(move)) == reason
    before = board.schedule()
    if reason is not None:
        with pytest.raises(ScheduleError) as error:
            board.play(rank, Action.parse(move))
        assert str(error.value) == reason and board.schedule() == before


def test_a_negative_micro_batch():
    assert "no micro-batch -1" in Board((0,), 1).may(0, Action(0, Kind.F, -1))
    assert "no micro-batch -1" in reasons(Schedule((((0, "F", -1), (0, "F", 0), (0, "B", 0)),), (0,)))[0]


def test_the_boards_cap():
    board = board_after("0F0 0F1", n_micro_batches=3, cap=2)
    assert board.may(0, Action(0, Kind.F, 2)) == (
        "rank 0 cannot run 0F2: it holds as many activations as it may, 2: finish a backward first"
    )
    assert board.possible(0) == []
    for word in ("1F0", "1I0", "0I0"):
        board.play(int(word[0]), Action.parse(word))
    assert board.may(0, Action(0, Kind.F, 2)) is not None  # after I they are still held
    board.play(0, Action(0, Kind.W, 0))
    assert board.possible(0) == [Action(0, Kind.F, 2)]
    assert [board.held(rank) for rank in (0, 1)] == [1, 1]


def test_what_is_possible_comes_in_order():
    board = board_after("0F0 1F0 2F0 3F0", v_shape(2))
    assert [str(action) for action in board.possible(0)] == ["3B0", "3I0", "0F1"]
    assert board.possible(1) == []


@settings(max_examples=30)
@given(st.data())
def test_any_game_ends_with_a_valid_schedule(data):
    p, chunks, m = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    placement = data.draw(st.sampled_from([loop(p, chunks), v_shape(p)]))
    board = Board(placement, m)
    while True:
        moves = [(rank, action) for rank in range(p) for action in board.possible(rank)]
        assert board.full == (not moves)
        if not moves:
            break
        board.play(*data.draw(st.sampled_from(moves)))
        before = board.schedule()
        simulate(before)  # what is there can always run
        assert Board.of(before, m).schedule() == before
        if data.draw(st.booleans()) and len(board.moves) > 1:
            last = board.undo()
            assert board.may(*last) is None
            board.play(*last)
            assert board.schedule() == before
    assert problems(board.schedule("mine")) == []
    assert board.schedule("mine").name == "mine"


@given(valid)
def test_undo_to_the_start(schedule):
    board = Board.of(schedule)
    assert board.full and board.schedule(schedule.name) == schedule
    order = list(board.moves)
    for rank, action in reversed(order):
        assert board.undo() == (rank, action)
        assert board.may(rank, action) is None
        assert board.held(rank) == (held(tuple(board.orders[rank])) or [0])[-1]
    assert not board.full and board.orders == [[]] * schedule.n_ranks
    assert [board.held(rank) for rank in range(schedule.n_ranks)] == [0] * schedule.n_ranks
    with pytest.raises(ScheduleError, match="no move to take back"):
        board.undo()


def test_a_board_from_a_schedule():
    half = table("0F0 0F1\n1F0", "0 1")
    board = Board.of(half, n_micro_batches=3)
    assert board.n_micro_batches == 3 and not board.full
    assert Board.of(Schedule(((), ()), (0, 1))).n_micro_batches == 1
    with pytest.raises(ScheduleError, match="^rank 1 cannot run 1F1: it needs 0F1, which rank 0 has not run yet$"):
        Board.of(table("0F0\n1F0 1F1", "0 1"))
    with pytest.raises(ScheduleError, match="no micro-batch 1"):
        Board.of(half, n_micro_batches=1)
    with pytest.raises(ScheduleError, match="holds as many activations"):
        Board.of(half, cap=1)
    with pytest.raises(ScheduleError, match="3 ranks, but stages on 2 only"):
        Board.of(Schedule(((), (), ()), (0, 1)))


@pytest.mark.parametrize(("m", "cap", "message"), [(0, None, "0 micro-batches"), (2, 0, "cap of 0")])
def test_a_board_that_cannot_be(m, cap, message):
    with pytest.raises(ScheduleError, match=message):
        Board((0, 1), m, cap)
