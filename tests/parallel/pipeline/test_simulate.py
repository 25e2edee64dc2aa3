"""What a schedule costs: closed forms from the papers, every idle moment explained, sends that block."""

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.parallel.pipeline import simple
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.needs import Deadlock, needs
from course_lib.parallel.pipeline.passes import lower, merge_backward
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.parallel.pipeline.text import loads
from course_lib.parallel.pipeline.validate import held

MAKERS = [gpipe, one_f_one_b, interleaved, zb_h1, zbv]
valid = st.builds(lambda make, p, m: make(p, m), st.sampled_from(MAKERS), st.integers(1, 5), st.integers(1, 8))
sizes = st.tuples(st.integers(1, 6), st.integers(1, 13))
times = st.integers(1, 40).map(lambda n: n / 8)  # sums of these are exact


@st.composite
def valid_and_costs(draw):
    schedule = draw(valid)
    per_stage = st.lists(times, min_size=schedule.n_stages, max_size=schedule.n_stages)
    hops = st.lists(times, min_size=schedule.n_stages - 1, max_size=schedule.n_stages - 1)
    return schedule, Costs(draw(per_stage), draw(per_stage), draw(per_stage), draw(hops), draw(per_stage))


@given(sizes, times, times, times)
def test_gpipe_and_1f1b_take_n_minus_1_micro_batches_longer(size, f, i, w):
    p, m = size
    for make in (gpipe, one_f_one_b):
        result = simulate(make(p, m), Costs(f, i, w))
        assert result.makespan == (m + p - 1) * (f + i + w)
        assert result.bubbles == pytest.approx([simple.bubble(p, m)] * p)
        assert result.bubble == pytest.approx((p - 1) / (m + p - 1))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), times, times)
def test_interleaving_divides_the_bubble_by_the_chunks(p, rounds, chunks, f, b):
    """Of a step with m a multiple of p, as the paper wants; costs are of one of a rank's stages."""
    m = rounds * p
    result = simulate(interleaved(p, m, chunks), Costs(f, b / 2, b / 2))
    assert result.makespan == (m * chunks + p - 1) * (f + b)
    assert result.bubble == pytest.approx(simple.bubble(p, m * chunks))


def test_interleaving_with_other_numbers_of_micro_batches():
    """Idle time in units of a stage's forward and backward: p - 1 for a multiple of p, and never worse than 1F1B."""
    idle = {m: (simulate(interleaved(4, m, 2)).makespan - 6 * m) / 3 for m in range(1, 13)}
    assert {m: idle[m] for m in (4, 8, 12)} == {4: 3, 8: 3, 12: 3}
    assert all(3 <= idle[m] <= 2 * 3 + 1 for m in idle)


@given(sizes, st.sampled_from([(1, 1, 1), (1, 1.5, 0.5), (1, 1, 0.5), (2, 1, 1), (1, 1.25, 1)]))
def test_zb_h1_idles_a_weights_backward_less(size, costs):
    """Qi et al., table 2: (p - 1) (F + I - W), against 1F1B's (p - 1) (F + I + W); with p micro-batches or more."""
    p, m = size
    f, i, w = costs
    result = simulate(zb_h1(p, m), Costs(f, i, w))
    if m >= p:
        assert result.makespan == m * (f + i + w) + (p - 1) * (f + i - w)
        assert max(result.peaks) == max(simulate(one_f_one_b(p, m)).peaks) == p
    assert result.makespan <= simulate(one_f_one_b(p, m), Costs(f, i, w)).makespan
    if costs == (1, 1, 1) and m >= p:
        assert result.bubble == pytest.approx((p - 1) / (3 * m + p - 1))


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(0, 5), times)
def test_zbv_has_no_bubble_but_the_start(p, more, unit):
    """With equal F, I and W: no rank waits between its first action and its last."""
    m = 2 * p - 1 + more
    result = simulate(zbv(p, m), Costs(unit, unit, unit))
    assert result.makespan == (6 * m + p - 1) * unit
    assert all(gap.start == 0 or gap.before is None for gap in result.gaps)
    assert max(result.peaks) == 2 * p  # half stages: 1F1B's p


def test_claim_k_one_micro_batch_on_eight_stages():
    """m = 1 on 8 stages is 8 times slower than a pipeline without a bubble, and 7 times slower than m = 56."""
    one, many = simulate(one_f_one_b(8, 1)), simulate(one_f_one_b(8, 56))
    assert one.bubble == 7 / 8
    assert one.makespan * 56 / many.makespan == pytest.approx(8 * 56 / 63)
    efficiency = {m: 1 - simulate(one_f_one_b(8, m)).bubble for m in (28, 29, 32)}
    assert efficiency[28] < efficiency[29] < efficiency[32]  # 29 is no multiple of anything, and does no harm


@given(valid_and_costs())
def test_every_action_starts_as_soon_as_it_can(case):
    """Against the definition: after the one before on its rank, and after its data has come."""
    schedule, costs = case
    result = simulate(schedule, costs)
    for rank, order in enumerate(schedule.orders):
        for before, action in zip([None, *order], order, strict=False):
            stage, kind, mb = action
            takes = {"F": costs.forward[stage], "I": costs.input[stage], "W": costs.weight[stage]}
            takes["B"] = takes["I"] + takes["W"]
            assert result.end[action] - result.start[action] == takes[kind]
            bounds = [result.end[before] if before else 0.0]
            for choices in needs(action, schedule.placement):
                made = next(choice for choice in choices if choice in result.end)
                away = schedule.placement[made.stage] != rank
                bounds.append(result.end[made] + (costs.send[min(made.stage, stage)] if away else 0))
            assert result.start[action] == max(bounds)
    assert result.makespan == max(result.end.values())


@given(valid_and_costs())
def test_gaps_and_computing_fill_the_step(case):
    schedule, costs = case
    result = simulate(schedule, costs)
    for rank, order in enumerate(schedule.orders):
        mine = [gap for gap in result.gaps if gap.rank == rank]
        idle = sum(gap.end - gap.start for gap in mine)
        assert idle == pytest.approx(result.bubbles[rank] * result.makespan)
        pieces = sorted([(gap.start, gap.end) for gap in mine] + [(result.start[a], result.end[a]) for a in order])
        assert pieces[0][0] == 0 and pieces[-1][1] == result.makespan
        assert all(one[1] == two[0] for one, two in itertools.pairwise(pieces))
        for gap in mine:
            assert gap.start < gap.end
            if gap.before is None:
                assert gap.end == result.makespan and gap.phase == "cool-down"
                continue
            assert gap.before in order and result.start[gap.before] == gap.end
            assert gap.waits_for in result.end and schedule.placement[gap.waits_for.stage] != rank
            assert all(result.end[action] > gap.start for action in gap.chain)
            assert gap.chain[-1:] in ((), (gap.waits_for,))
    assert sum(result.bubbles) / schedule.n_ranks == pytest.approx(result.bubble)


@given(valid_and_costs())
def test_the_critical_path_explains_the_whole_step(case):
    """It starts at 0, ends at the end, and between one action and the next there is a message or nothing."""
    schedule, costs = case
    result = simulate(schedule, costs)
    path, place = result.critical_path, schedule.placement
    assert result.start[path[0]] == 0 and result.end[path[-1]] == result.makespan
    for one, two in itertools.pairwise(path):
        message = result.start[two] - result.end[one]
        away = place[one.stage] != place[two.stage]
        assert message == (costs.send[min(one.stage, two.stage)] if away else 0)


@settings(max_examples=50)
@given(valid_and_costs())
def test_a_shorter_action_on_the_critical_path_never_makes_a_step_longer(case):
    schedule, costs = case
    result = simulate(schedule, costs)
    stage = result.critical_path[len(result.critical_path) // 2].stage
    less = [time / 2 if at == stage else time for at, time in enumerate(costs.forward)]
    assert simulate(schedule, Costs(less, costs.input, costs.weight, costs.send)).makespan <= result.makespan


@settings(max_examples=50)
@given(valid_and_costs())
def test_a_lowered_table_takes_as_long(case):
    """Sends do not hold their rank up, and a receive waits where its user would have waited."""
    schedule, costs = case
    plain, lowered = simulate(schedule, costs), simulate(lower(schedule), costs)
    assert lowered.makespan == plain.makespan and lowered.bubbles == plain.bubbles and lowered.peaks == plain.peaks
    assert {a: t for a, t in lowered.start.items() if a.kind in "FBIW"} == plain.start
    assert lowered.critical_path[-1] == plain.critical_path[-1]


@settings(max_examples=40)
@given(valid, times)
def test_activations_weigh_what_they_weigh(schedule, weight):
    assert simulate(schedule).peaks == tuple(max(held(order)) for order in schedule.orders)
    assert simulate(schedule, Costs(activation=weight)).peaks == pytest.approx(
        [weight * max(held(order)) for order in schedule.orders]
    )


def test_peaks_with_uneven_layers():
    peaks = simulate(one_f_one_b(3, 6), Costs(activation=[1, 2, 4])).peaks
    assert peaks == (3, 4, 4)


@given(valid)
def test_merging_halves_can_only_cost_time(schedule):
    """On paper: the previous stage hears of a whole backward later than of I. The runtime's gain is not in here."""
    assert simulate(merge_backward(schedule)).makespan >= simulate(schedule).makespan


def reasons(schedule: Schedule, costs: Costs | None = None, rank: int | None = None) -> list[str]:
    return [f"{gap.phase}: {gap}" for gap in simulate(schedule, costs).gaps if rank in (None, gap.rank)]


def test_why_ranks_idle():
    assert reasons(one_f_one_b(4, 4), rank=3) == [
        "warm-up: rank 3 idles from 0 to 3: 3F0 waits for 2F0 of rank 2; "
        "micro-batch 0 must first cross 3 stages: 0F0, 1F0, 2F0.",
        "cool-down: rank 3 idles from 15 to 21: it has nothing left to do, and the step ends with 0B3 on rank 0.",
    ]
    assert reasons(one_f_one_b(3, 2), rank=0) == [
        "warm-up: rank 0 idles from 2 to 7: 0B0 waits for 1B0 of rank 1; "
        "micro-batch 0 must first reach the last stage and come back: 2F0, 2B0, 1B0.",
        "cool-down: rank 0 idles from 9 to 10: 0B1 waits for 1B1 of rank 1, which runs until 10.",
    ]
    assert reasons(one_f_one_b(3, 4), rank=0)[0] == (
        "warm-up: rank 0 idles from 3 to 7: 0B0 waits for 1B0 of rank 1; "
        "the gradient of micro-batch 0 must first come back through 2 stages: 2B0, 1B0."
    )
    assert reasons(gpipe(3, 6), rank=0) == [
        "warm-up: rank 0 idles from 6 to 12: 0B0 waits for 1B0 of rank 1; "
        "until then run, one because of the other, 2F4, 2F5, 2B0, 1B0."
    ]
    assert reasons(gpipe(4, 8), Costs(input=0.5, weight=0.5), rank=0)[0].endswith(", 3F6, 3F7, 3B0, 2B0, 1B0.")
    assert "the other, ..., " in reasons(gpipe(8, 8), rank=0)[0]


def test_why_ranks_idle_when_messages_take_time():
    assert reasons(one_f_one_b(2, 1), Costs(send=0.5)) == [
        "warm-up: rank 0 idles from 1 to 5: 0B0 waits for 1B0 of rank 1; micro-batch 0 must first reach the last "
        "stage and come back: 1F0, 1B0, and the message takes until 5.",
        "warm-up: rank 1 idles from 0 to 1.5: 1F0 waits for 0F0 of rank 0, which runs until 1, "
        "and the message takes until 1.5.",
        "cool-down: rank 1 idles from 4.5 to 7: it has nothing left to do, and the step ends with 0B0 on rank 0.",
    ]


def test_a_message_on_its_way():
    """What the rank needs next has run before the gap begins, or within it, but has not come."""
    crossing = loads("placement: 0 1 0\nrank 0: 0F0 0F1 2F0\nrank 1: 1F0 1F1")
    (gap,) = (g for g in simulate(crossing, Costs(send=[0.25, 2])).gaps if g.before == Action(2, Kind.F, 0))
    assert (gap.start, gap.end, gap.chain) == (2, 4.25, (Action(1, Kind.F, 0),))
    crossing = loads("placement: 0 1 0\nrank 0: 0F0 0F1 0F2 2F0\nrank 1: 1F0 1F1 1F2")
    (gap,) = (g for g in simulate(crossing, Costs(send=[0.25, 2])).gaps if g.before == Action(2, Kind.F, 0))
    assert str(gap) == (
        "rank 0 idles from 3 to 4.25: 2F0 waits for 1F0 of rank 1, which has run, and the message takes until 4.25."
    )
    assert gap.chain == ()


def test_phases():
    phases = [gap.phase for gap in simulate(one_f_one_b(3, 6), Costs(send=1)).gaps if gap.rank == 1]
    assert phases[0] == "warm-up" and phases[-1] == "cool-down" and "steady" in phases
    assert phases == sorted(phases, key=["warm-up", "steady", "cool-down"].index)
    last_forward = loads("rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1")
    late = simulate(last_forward, Costs(forward=[9, 1])).gaps
    assert [(gap.before, gap.phase) for gap in late if gap.rank == 1][1] == (Action(1, Kind.F, 1), "steady")


def test_the_critical_path_by_hand():
    assert " ".join(map(str, simulate(one_f_one_b(2, 2)).critical_path)) == "0F0 1F0 1B0 1F1 1B1 0B1"
    slow = simulate(gpipe(2, 2), Costs(forward=[5, 1]))
    assert " ".join(map(str, slow.critical_path)) == "0F0 0F1 1F1 1B0 0B0 0B1"  # a tie: its own rank first


def test_blocking_sends_stop_1f1b_but_not_gpipe():
    """Both neighbours send first: rank 0 its next activation, rank 1 a gradient, and neither is at its receive."""
    with pytest.raises(Deadlock) as error:
        simulate(one_f_one_b(2, 2), Costs(blocking=True))
    assert str(error.value) == (
        "deadlock: rank 0 waits at 0SEND_F1 for 1RECV_F1, which rank 1 runs only after 1SEND_B0; "
        "rank 1 waits at 1SEND_B0 for 0RECV_B0, which rank 0 runs only after 0SEND_F1"
    )
    for p, m in itertools.product(range(1, 5), range(1, 7)):
        blocking = simulate(gpipe(p, m), Costs(blocking=True, send=0.5))
        assert blocking.makespan >= simulate(gpipe(p, m), Costs(send=0.5)).makespan
        assert blocking.schedule == lower(gpipe(p, m))


def test_blocking_sends_by_hand():
    """Rank 0 may not start its second forward before rank 1 has taken the first."""
    result = simulate(gpipe(2, 2), Costs(forward=[1, 3], send=0.5, blocking=True))
    spans = {str(action): (result.start[action], result.end[action]) for action in result.end}
    assert spans == {
        "0F0": (0, 1), "0SEND_F0": (1, 1.5), "1RECV_F0": (1, 1.5), "1F0": (1.5, 4.5),
        "0F1": (1.5, 2.5), "0SEND_F1": (4.5, 5), "1RECV_F1": (4.5, 5), "1F1": (5, 8),
        "1B0": (8, 10), "1SEND_B0": (10, 10.5), "0RECV_B0": (10, 10.5), "0B0": (10.5, 12.5),
        "1B1": (10.5, 12.5), "1SEND_B1": (12.5, 13), "0RECV_B1": (12.5, 13), "0B1": (13, 15),
    }  # fmt: skip
    assert result.bubbles[1] == pytest.approx((15 - 10) / 15)
    assert " ".join(map(str, result.critical_path)) == ("0F0 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 0RECV_B1 0B1")


def test_the_timeline_of_a_plan():
    timeline = simulate(lower(one_f_one_b(2, 1)), Costs(send=0.5)).timeline(seconds=1e-3)
    spans = [(s.name, s.start_ns, s.end_ns, s.kind) for s in timeline.spans_by_rank[0]]
    assert spans == [
        ("0F0", 0, 1_000_000, "compute"),
        ("0SEND_F0", 1_000_000, 1_000_000, "comm"),
        ("0RECV_B0", 5_000_000, 5_000_000, "comm"),
        ("0B0", 5_000_000, 7_000_000, "compute"),
    ]
    assert timeline.to_chrome()["traceEvents"]


def test_an_unfinished_schedule_runs_as_far_as_it_goes():
    result = simulate(loads("rank 0: 0F0 0F1\nrank 1: 1F0\n"))
    assert (result.makespan, result.bubbles, result.peaks) == (2, (0, 0.5), (2, 1))
    nothing = simulate(Schedule(((), ()), (0, 1)))
    assert (nothing.makespan, nothing.bubble, nothing.gaps, nothing.critical_path) == (0, 0, (), ())


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs(forward=[1, 2, 3]), "3 costs of forward for 2 stages: give one for each, or one number for all"),
        (Costs(send=[1, 2]), "2 costs of send for 1 pairs of neighbours"),
        (Costs(weight=-1), "a cost of weight is -1: give 0 or more"),
        (Costs(input=[1, math.nan]), "a cost of input is"),
    ],
)
def test_costs_that_cannot_be(costs, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        simulate(gpipe(2, 2), costs)


def test_a_wrong_schedule_is_not_simulated():
    with pytest.raises(ScheduleError, match="stage 1 is on rank 1"):
        simulate(loads("placement: 0 1\nrank 0: 0F0 1F0\nrank 1:"))
