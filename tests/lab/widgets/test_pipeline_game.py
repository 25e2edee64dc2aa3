"""The pipeline game without any view: moves and reasons, what undo restores, par, texts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.lab.widgets.pipeline_game import Answer, Game
from course_lib.lab.widgets.pipeline_levels import LEVELS, RULES, floor, own_level, rivals, to_beat
from course_lib.lab.widgets.pipeline_status import status
from course_lib.parallel.pipeline import text
from course_lib.parallel.pipeline.generators import one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.needs import needs
from course_lib.parallel.pipeline.schedule import ScheduleError
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.parallel.pipeline.validate import problems

EACH = pytest.mark.parametrize("level", LEVELS, ids=[level.title for level in LEVELS])
# With a cap added afterwards: a level of one's own must have an end, and here dead ends are wanted.
small = st.builds(
    lambda m, placement, send, cap: replace(own_level(2, m, placement, Costs(send=send)), cap=cap),
    st.integers(1, 3),
    st.sampled_from(["loop", "loop 2", "V", [0, 1, 0]]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([None, 1, 2, 3]),
)


def moves(game):
    return [(rank, str(action)) for rank in range(game.level.n_ranks) for action in game.board.possible(rank)]


def second():
    return Game(LEVELS[1])


@given(level=small, data=st.data())
@settings(max_examples=40)
def test_legal_play_ends_in_a_valid_schedule_or_an_honest_dead_end(level, data):
    game = Game(level)
    while possible := moves(game):
        assert game.dead_end() is None
        rank, name = data.draw(st.sampled_from(possible))
        before = list(game.board.moves)
        answer = game.play(rank, name)
        assert [str(action) for _, action in game.board.moves] == [str(action) for _, action in before] + [name]
        assert answer.kind != "no" or answer.text == game.dead_end()
    if game.board.full:
        assert problems(game.board.schedule(), level.cap) == []
        assert game.floor <= game.simulation().makespan + 1e-9
        assert game.progress()[0] == game.progress()[1]
    else:
        assert level.cap and game.dead_end() and game.verdict().startswith("Dead end: rank")
        held = [game.board.held(rank) for rank in range(level.n_ranks)]
        assert level.cap in held


@given(level=small, data=st.data())
@settings(max_examples=30)
def test_undo_restores_what_was_before_any_command(level, data):
    game = Game(level)
    saved = []
    for _ in range(data.draw(st.integers(1, 8))):
        before = game.save()
        placed = [str(action) for _, action in game.board.moves]
        match data.draw(st.sampled_from(["play", "play", "play", "finish", "take_back", "restart"])):
            case "play" if moves(game):
                game.play(*data.draw(st.sampled_from(moves(game))))
            case "take_back" if placed:
                game.take_back(data.draw(st.sampled_from(placed)))
            case "finish":
                game.finish(data.draw(st.sampled_from(sorted(RULES))))
            case "restart":
                game.restart()
        if game.save() != before:
            saved.append(before)
    for before in reversed(saved):
        assert game.undo() == Answer()
        assert game.save() == before
    assert game.undo().kind == "no"


@given(level=small, data=st.data())
@settings(max_examples=30)
def test_what_is_taken_back_takes_along_what_needs_it_and_nothing_else(level, data):
    game = Game(replace(level, cap=None))
    game.finish(data.draw(st.sampled_from(sorted(RULES))))
    before = [list(order) for order in game.board.orders]
    gone = data.draw(st.sampled_from([action for order in before for action in order]))
    game.take_back(str(gone))
    left = {action for order in game.board.orders for action in order}
    assert gone not in left
    for order, now in zip(before, game.board.orders, strict=True):
        assert order[: len(now)] == now
        if len(now) < len(order) and order[len(now)] != gone:  # the first that went was needed somewhere
            lacks = needs(order[len(now)], level.placement)
            assert any(left.isdisjoint(choices) for choices in lacks)


@EACH
def test_par_is_reached_by_the_schedule_that_it_names(level):
    best = to_beat(level)
    assert best.name == level.par_by and problems(best, level.cap) == []
    assert simulate(best, level.costs).makespan == pytest.approx(level.par)
    game = Game(level)
    assert game.load(text.dumps(best)).kind == "good"
    assert game.verdict().startswith(f"{level.par:g} time units: par, as {level.par_by}")
    assert level.task and level.title


@EACH
def test_no_known_schedule_and_no_rule_is_under_the_floor(level):
    assert all(floor(level) <= rival.makespan + 1e-9 for rival in rivals(level))
    for rule in RULES:
        game = Game(level)
        assert game.finish(rule).kind == "good"
        assert game.floor <= game.simulation().makespan + 1e-9


def test_the_floor_is_reached_where_a_known_schedule_has_no_wait_to_lose():
    assert floor(own_level(4, 8)) == simulate(zb_h1(4, 8)).makespan
    assert floor(own_level(2, 4, "V")) == simulate(zbv(2, 4)).makespan
    assert floor(own_level(3, 1, costs=Costs(1, 2, 3, send=5))) == 1 * 3 + 2 * 3 + 3 + 4 * 5  # there, back, and W
    # The last to leave rank 1 leaves stage 1, not stage 2: F before, 4 (F + I) of two stages, I on rank 0 after it.
    assert floor(own_level(2, 4, "V", Costs(weight=0.0))) == 1 + 4 * 4 + 1


def test_par_can_be_beaten_where_the_task_says_so():
    game = second()
    game.load(text.dumps(zb_h1(3, 4)))
    assert game.verdict() == "14 time units: 4 under par (18, by 1F1B). Nothing can be faster. This is ZB-H1."
    assert game.compared() == "GPipe 18 (holds 4: too many); 1F1B 18; ZB-H1 14"


def test_illegal_moves_are_answered_with_the_reason_and_change_nothing():
    game = second()
    for rank, name, reason in [
        (0, "1F0", "Rank 0 cannot run 1F0: stage 1 is on rank 1."),
        (1, "1F0", "Rank 1 cannot run 1F0: it needs 0F0, which rank 0 has not run yet."),
        (0, "0F9", "Rank 0 cannot run 0F9: there is no micro-batch 9, only 0 to 3."),
        (0, "hello", "'hello' is no action"),
        (7, "0F0", "Rank 7 cannot run 0F0: there is no such rank, only 0 to 2."),
    ]:
        answer = game.play(rank, name)
        assert answer.kind == "no" and answer.text.startswith(reason)
    assert game.board.moves == [] and game.undo() == Answer("There is nothing to take back.", "no")
    for mb in range(3):
        assert game.play(0, f"0F{mb}") == Answer()
    assert "it holds as many activations as it may, 3" in game.play(0, "0F3").text


def test_a_gap_is_explained_when_it_opens():
    game = second()
    game.play(0, "0F0")
    game.play(1, "1F0")
    answer = game.play(2, "2F0")
    assert answer.kind == "gap" and "micro-batch 0 must first cross 2 stages: 0F0, 1F0" in answer.text


def test_texts_come_back_and_bad_ones_are_refused_where_they_are():
    game = second()
    game.finish("backward first")
    saved = game.save()
    other = second()
    assert other.load(saved).kind == "good" and other.save() == saved
    for written, reason in [
        ("nonsense", "Line 1: 'nonsense' is none of"),
        ("placement: 0 1\nrank 0: 0F0\nrank 1:", "This text places its stages on ranks 0 1, this level on"),
        ("placement: 0 1 2\nrank 0: 0F0 0B0\nrank 1:\nrank 2:", "Rank 0 cannot run 0B0: it needs 1B0 or 1I0"),
        (text.dumps(one_f_one_b(3, 5)), "Rank 0 cannot run 0F4: there is no micro-batch 4"),
        ("", "No line begins with 'rank 0:'"),
    ]:
        answer = other.load(written)
        assert answer.kind == "no" and answer.text.startswith(reason), answer
        assert other.save() == saved
    assert other.load(text.dumps(zb_h1(3, 4))).kind == "good" and other.save() != saved
    assert other.undo() == Answer() and other.save() == saved
    begun = "placement: 0 1 2\nrank 0: 0F0 0F1\nrank 1: 1F0\nrank 2:"
    assert other.load(begun) == Answer("3 of 24 forwards and backwards placed. Par: 18, by 1F1B.")


def test_a_level_of_ones_own():
    level = own_level(2, 3, "V", Costs((1, 1, 2, 2)), cap=4)
    assert level.placement == (0, 1, 1, 0) and level.par_by == "ZBV"
    assert own_level(2, 2, [0, 1, 0]).par_by.startswith("the rule '")  # nobody knows a schedule for this
    assert "4 stages on ranks 0 1 0 1" in own_level(2, 2, "loop 2").conditions()
    for arguments, reason in [
        ((1, 3), "take 2 to 8 ranks"),
        ((2, 17), "1 to 16 micro-batches"),
        ((2, 3, "W"), "no placement is called 'W'"),
        ((2, 3, [0, 0]), "name each of 0 to 1"),
        ((2, 3, "loop", Costs((1, 2, 3))), "3 costs of forward for 2 stages"),
        ((2, 3, "loop", Costs(blocking=True)), "leave blocking out"),
        ((2, 3, "V", None, 1), "no rule comes to an end"),
    ]:
        with pytest.raises(ScheduleError, match=reason):
            own_level(*arguments)


def test_what_a_view_is_told():
    game = second()
    game.play(0, "0F0")
    game.play(0, "0F1")
    game.play(1, "1F0")
    told = status(game, Answer("so", "gap"))
    first, middle, last = told["rows"]
    assert [block["name"] for block in first["blocks"]] == ["0F0", "0F1"]
    assert (first["held"], first["peak"], middle["held"], last["held"]) == (2, 2, 1, 0)
    assert [(chip["name"], chip["start"], chip["end"]) for chip in first["next"]] == [("0F2", 2, 3)]
    assert first["may"] == ["0F2", "0F3"]
    assert [(chip["name"], chip["start"]) for chip in last["next"]] == [("2F0", 2)]
    assert [(gap["start"], gap["end"]) for gap in middle["gaps"]] == [(0, 1)]
    assert told["end"] == 18 and not told["full"] and told["message"] == {"text": "so", "kind": "gap"}
    assert [fact["value"] for fact in told["facts"]] == ["3 of 24", "2", "50%", "2 actions"]
    assert first["gaps"] == last["gaps"] == []  # what comes at the end of an unfinished row is open
    game.finish("backward first")
    told = status(game, Answer())
    assert told["full"] and told["compared"] and told["path"]
    assert [fact["value"] for fact in told["facts"][:3]] == ["24 of 24", "18", "33%"]


def test_the_stages_of_a_rank_are_told_apart():
    game = Game(own_level(2, 1, "V"))
    game.finish("backward first")
    for row, stages in zip(status(game, Answer())["rows"], ([0, 3], [1, 2]), strict=True):
        assert row["stages"] == stages
        assert all(block["further"] == (block["stage"] == stages[1]) for block in row["blocks"])


def test_a_message_is_waited_for_before_a_move_starts():
    game = Game(own_level(2, 1, costs=Costs(send=3.0)))
    game.play(0, "0F0")
    (chip,) = status(game, Answer())["rows"][1]["next"]
    assert (chip["start"], chip["end"]) == (4, 5)
    game.play(1, "1F0")
    assert game.simulation().start[game.board.orders[1][0]] == 4
