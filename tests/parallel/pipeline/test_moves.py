"""Every illegal move is refused, with its exact reason, in a finished table."""

import graphlib
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from schedule_cases import reasons, table, valid

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.board import Board
from course_lib.parallel.pipeline.generators import one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.needs import Deadlock, in_order
from course_lib.parallel.pipeline.passes import lower
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.simulate import simulate
from course_lib.parallel.pipeline.validate import check, problems


def with_order(schedule: Schedule, rank: int, order) -> Schedule:
    orders = list(schedule.orders)
    orders[rank] = tuple(order)
    return replace(schedule, orders=tuple(orders))


def can_run(schedule: Schedule) -> bool:
    """The same question, asked of the whole graph at once: all there, once, where it belongs, and no circle."""
    last, graph = schedule.n_stages - 1, graphlib.TopologicalSorter()
    everything = [(rank, action) for rank, order in enumerate(schedule.orders) for action in order]
    if any(schedule.placement[action.stage] != rank for rank, action in everything):
        return False
    actions = {action for _, action in everything}
    whole = {(a.stage, a.micro_batch) for a in actions if a.kind == "B"}
    expected = set()
    for stage in range(schedule.n_stages):
        for mb in range(schedule.n_micro_batches):
            kinds = "FB" if (stage, mb) in whole else "FIW"
            expected |= {Action(stage, Kind(kind), mb) for kind in kinds}
    if actions != expected or len(everything) != len(actions):
        return False
    backward = {(a.stage, a.micro_batch): a for a in actions if a.kind in "BI"}
    for order in schedule.orders:
        for one, two in zip(order, order[1:], strict=False):
            graph.add(two, one)
    for action in actions:
        stage, kind, mb = action
        if kind == "F" and stage > 0:
            graph.add(action, Action(stage - 1, Kind.F, mb))
        elif kind in "BI":
            graph.add(action, Action(stage, Kind.F, mb))
            if stage < last:
                graph.add(action, backward[stage + 1, mb])
        elif kind == "W":
            graph.add(action, Action(stage, Kind.I, mb))
    try:
        graph.prepare()
    except graphlib.CycleError:
        return False
    return True


@st.composite
def a_place(draw):
    """A valid schedule, a rank and a place in its order."""
    schedule = draw(valid)
    rank = draw(st.integers(0, schedule.n_ranks - 1))
    return schedule, rank, draw(st.integers(0, len(schedule.orders[rank]) - 1))


@given(a_place(), st.data())
def test_two_actions_swapped(place, data):
    schedule, rank, i = place
    order = list(schedule.orders[rank])
    j = data.draw(st.integers(0, len(order) - 1))
    order[i], order[j] = order[j], order[i]
    swapped = with_order(schedule, rank, order)
    found = problems(swapped)
    assert (found == []) == can_run(swapped)
    if found:
        with pytest.raises(ScheduleError):
            check(swapped)
        with pytest.raises(ScheduleError):
            Board.of(swapped)
        for problem in found:
            assert swapped.orders[problem.rank][problem.index] == problem.action
            assert problem.reason.startswith(f"rank {problem.rank} cannot run {problem.action}")
    else:
        assert Board.of(swapped).full


@given(st.data())
def test_a_rank_in_any_order_at_all(data):
    schedule = data.draw(valid)
    rank = data.draw(st.integers(0, schedule.n_ranks - 1))
    shuffled = with_order(schedule, rank, data.draw(st.permutations(schedule.orders[rank])))
    assert (problems(shuffled) == []) == can_run(shuffled)


@given(a_place())
def test_an_action_left_out(place):
    schedule, rank, i = place
    order = schedule.orders[rank]
    less = with_order(schedule, rank, order[:i] + order[i + 1 :])
    assume(less.n_micro_batches == schedule.n_micro_batches)  # else it is the schedule of one micro-batch less
    assert f"rank {rank} never runs {order[i]}" in reasons(less)
    for problem in problems(less):  # and what needs it on that rank, nothing else
        assert problem.action == order[i] or re.search(
            rf"it needs .*\b{order[i]}\b.*, which it never runs", problem.reason
        )
        assert problem.rank == rank


@given(a_place(), st.data())
def test_an_action_run_twice(place, data):
    schedule, rank, i = place
    order = list(schedule.orders[rank])
    at = data.draw(st.integers(i + 1, len(order)))
    order.insert(at, order[i])
    assert reasons(with_order(schedule, rank, order)) == [
        f"rank {rank} cannot run {order[i]} at place {at}: it has run it already"
    ]


@given(a_place())
def test_an_action_on_the_wrong_rank(place):
    schedule, rank, i = place
    assume(schedule.n_ranks > 1)
    order = schedule.orders[rank]
    other = (rank + 1) % schedule.n_ranks
    moved = with_order(schedule, rank, order[:i] + order[i + 1 :])
    moved = with_order(moved, other, moved.orders[other] + (order[i],))
    end = len(schedule.orders[other])
    assert f"rank {other} cannot run {order[i]} at place {end}: stage {order[i].stage} is on rank {rank}" in reasons(
        moved
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0 0F0 0B0", "rank 0 cannot run 0F0 at place 1: it has run it already"),
        ("0B0 0F0", "rank 0 cannot run 0B0 at place 0: it needs 0F0, which it runs only later, at place 1"),
        ("0F0 0W0 0I0", "rank 0 cannot run 0W0 at place 1: it needs 0I0, which it runs only later, at place 2"),
        ("0F0 0B0 0I0 0W0", "rank 0 cannot run 0I0 at place 2: 0B0 was the whole backward, of input and weights"),
        ("0F0 0B0 0W0", "rank 0 cannot run 0W0 at place 2: 0B0 was the whole backward, of input and weights"),
        ("0F0 0I0 0B0", "rank 0 cannot run 0B0 at place 2: 0I0 was a part of this backward: what is left of it is 0W0"),
        ("0F0 0I0", "rank 0 never runs 0W0"),
        ("0F0 0F1 0B1", "rank 0 never runs 0B0"),
        ("0F0 0B0 1F0", "rank 0 cannot run 1F0 at place 2: there is no stage 1, only 0 to 0"),
        ("0SEND_F0 0F0 0B0", "rank 0 cannot run 0SEND_F0 at place 0: no stage is at the other end"),
    ],
)
def test_reasons_on_one_rank(text, reason):
    assert reason in reasons(table(text, "0"))


def test_one_cause_is_one_problem():
    assert len(problems(table("0F0 0B0 0W0", "0"))) == len(problems(table("0F0 0B0 0I0", "0"))) == 1


def test_an_order_that_nobody_has_written():
    assert reasons(Schedule(((), ()), (0, 1))) == [
        f"rank {rank} never runs {rank}{kind}0" for rank in (0, 1) for kind in "FB"
    ]


def test_stages_that_share_a_rank():
    assert reasons(table("1F0 0F0 0B0 1B0", "0 0")) == [
        "rank 0 cannot run 1F0 at place 0: it needs 0F0, which it runs only later, at place 1",
        "rank 0 cannot run 0B0 at place 2: it needs 1B0, which it runs only later, at place 3",
    ]


def test_a_circle_of_ranks_that_wait_for_each_other():
    """Each rank's order is right by itself: rank 0 wants a backward before it gives the forward that makes it."""
    schedule = table("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1")
    circle = (
        "deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 runs only after 1F1; "
        "rank 1 waits at 1F1 for 0F1, which rank 0 runs only after 0B0"
    )
    assert reasons(schedule) == [f"rank 0 cannot run 0B0: {circle}", f"rank 1 cannot run 1F1: {circle}"]
    assert [problem.index for problem in problems(schedule)] == [1, 1]
    with pytest.raises(Deadlock) as error:
        simulate(schedule)
    assert str(error.value) == circle
    assert [(wait.rank, str(wait.missing), wait.of) for wait in error.value.waits] == [(0, "1B0", 1), (1, "0F1", 0)]


def test_a_rank_outside_the_circle_is_not_blamed():
    schedule = table("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F0 2F1 2B0 2B1")
    assert {problem.rank for problem in problems(schedule)} == {1, 2}


def test_waiting_for_what_nobody_runs():
    schedule = table("0F0 0B0\n1F0", "0 1")
    with pytest.raises(Deadlock, match="^deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 never runs$"):
        list(in_order(schedule))
    chain = table("0F0 0B0\n1F0 1B0\n2F0", "0 1 2")  # whoever waits for rank 1 is not to blame
    with pytest.raises(Deadlock, match="^deadlock: rank 1 waits at 1B0 for 2B0, which rank 2 never runs$"):
        simulate(chain)


def test_check_names_the_first_and_how_many_more():
    with pytest.raises(ScheduleError, match=r"^rank 0 cannot run 0B0 at place 0: .*, at place 1 \(and 1 more\)$"):
        check(table("0B0 0F0 0F0", "0"))
    check(zbv(3, 4))


def test_problems_of_a_lowered_table():
    lowered = lower(one_f_one_b(2, 1))
    assert [str(action) for action in lowered.orders[0]] == ["0F0", "0SEND_F0", "0RECV_B0", "0B0"]
    late = table("0F0 0SEND_F0 0B0 0RECV_B0\n1RECV_F0 1F0 1B0 1SEND_B0")
    assert reasons(late) == [
        "rank 0 cannot run 0B0 at place 2: it needs 0RECV_B0, which it runs only later, at place 3"
    ]
    assert reasons(table("0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0")) == ["rank 0 never runs 0SEND_F0"]
    circle = reasons(table("0RECV_B0 0F0 0SEND_F0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"))
    assert circle[0].endswith(
        "deadlock: rank 0 waits at 0RECV_B0 for 1SEND_B0, which rank 1 runs only after 1RECV_F0; "
        "rank 1 waits at 1RECV_F0 for 0SEND_F0, which rank 0 runs only after 0RECV_B0"
    )
    local = "rank 0 cannot run 0SEND_F0 at place 1: the other end is on the same rank, so there is nothing to send"
    assert local in reasons(table("0F0 0SEND_F0 1F0 1B0 0B0", "0 0"))


def test_a_cap_on_what_a_rank_holds():
    assert problems(one_f_one_b(4, 6), cap=4) == []
    assert reasons(one_f_one_b(4, 6), cap=3) == [
        f"rank 0 cannot run 0F{mb} at place {3 + 2 * i}: it would hold 4 activations, and may hold 3"
        for i, mb in enumerate([3, 4, 5])
    ]
    assert [problem.rank for problem in problems(zb_h1(3, 4), cap=2)] == [0, 0, 1, 1, 2, 2]
