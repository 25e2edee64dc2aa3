"""The known schedules: right for any sizes, the same as torch's, and holding what theory says they hold."""

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.stage import PipelineStage

from course_lib.parallel.pipeline import simple
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.passes import lower, merge_backward
from course_lib.parallel.pipeline.recognise import known, recognise
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError, from_kinds, loop, v_shape
from course_lib.parallel.pipeline.validate import held, problems

GENERATORS = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "ZB-H1": zb_h1,
    "ZBV": zbv,
    "interleaved 1F1B, 1 stages per rank": lambda p, m: interleaved(p, m, 1),
    "interleaved 1F1B, 2 stages per rank": lambda p, m: interleaved(p, m, 2),
    "interleaved 1F1B, 3 stages per rank": lambda p, m: interleaved(p, m, 3),
}
SIZES = [(p, m) for p in range(1, 7) for m in range(1, 14)]

sizes = st.tuples(st.integers(1, 6), st.integers(1, 13))
made = st.builds(lambda make, size: make(*size), st.sampled_from(list(GENERATORS.values())), sizes)


def words(schedule: Schedule) -> list[list[str]]:
    return [[str(action) for action in order] for order in schedule.orders]


@pytest.fixture(scope="module")
def torchs():
    """torchs(name, ranks, micro-batches, chunks): torch's own table, without its pauses and its REDUCE_GRADs.

    When gradients are reduced is no matter of the order. As torch's _schedule_visualizer.get_schedule_ops makes it, but
    for what takes long there: a stage that stands in is made once, and sends and receives are not put in.
    """
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.submod = 0, None

    def table(name: str, n_ranks: int, n_micro_batches: int, chunks: int = 1) -> list[list[str]]:
        stage.group_size, stage.num_stages = n_ranks, n_ranks * chunks
        kind = torch_schedules.get_schedule_class(name)
        single = issubclass(kind, torch_schedules.PipelineScheduleSingle)
        orders = kind(stage if single else [stage] * chunks, n_micro_batches).pipeline_order
        return [
            [str(a) for a in orders[rank] if a is not None and a.computation_type.value in "FBIW"]
            for rank in range(n_ranks)
        ]

    with mock.patch.object(torch_schedules._PipelineScheduleRuntime, "_prepare_schedule_with_comms"):
        yield table


@pytest.mark.parametrize("name", GENERATORS)
def test_every_known_schedule_is_right_for_any_sizes(name):
    for p, m in SIZES:
        schedule = GENERATORS[name](p, m)
        assert problems(schedule) == [], (p, m)
        assert (schedule.n_ranks, schedule.n_micro_batches) == (p, m)


def test_gpipe_is_torchs(torchs):
    for p, m in SIZES:
        assert words(gpipe(p, m)) == torchs("GPipe", p, m)


def test_1f1b_is_torchs(torchs):
    """Where there are as many micro-batches as ranks; torch's table has micro-batches that do not exist with fewer.

    And its last rank's forwards are counted from 1 there, so that the backward of 0 comes before its forward (a slip of
    the table alone: the runtime of torch's 1F1B does not use it).
    """
    for p, m in SIZES:
        if m >= p:
            theirs = torchs("1F1B", p, m)
            slipped = [f"{p - 1}F{int(word.split('F')[1]) - 1}" if "F" in word else word for word in theirs[-1]]
            assert words(one_f_one_b(p, m)) == [*theirs[:-1], slipped]
            assert theirs[-1][0] == f"{p - 1}F1"  # when this fails torch has mended it: drop `slipped`


def test_interleaved_is_torchs_where_torch_has_it(torchs):
    compared = refused = 0
    for p, m in SIZES:
        for chunks in (2, 3):
            try:
                theirs = torchs("Interleaved1F1B", p, m, chunks)
            except ValueError as error:  # torch wants groups of one size
                assert "multiple of the number of rounds" in str(error)
                refused += 1
                continue
            assert words(interleaved(p, m, chunks)) == theirs
            compared += 1
    assert (compared, refused) == (126, 30)


def test_zbv_is_torchs(torchs):
    for p, m in SIZES:
        assert words(zbv(p, m)) == torchs("ZBVZeroBubble", p, m, 2)


def test_zb_h1_is_torchs_zero_bubble_with_one_stage_per_rank():
    """torch's class wants two stages or more per rank; what it makes its orders with does not."""
    for p, m in SIZES:
        for rank in range(p):
            warm_up = torch_schedules._get_warmup_ops(rank, 1, max(1, p), p, m, multiply_factor=1)
            theirs = torch_schedules._get_1f1b_rank_ops(
                1, p, warm_up, m - warm_up, warm_up, rank, lambda _, r=rank: r, lambda _, r=rank: r, rank, True
            )
            assert words(zb_h1(p, m))[rank] == [str(action) for action in theirs if action is not None]


def test_the_taught_orders_make_the_known_schedules():
    for p, m in SIZES:
        assert from_kinds(simple.gpipe_order(r, p, m) for r in range(p)).orders == gpipe(p, m).orders
        assert from_kinds(simple.one_f_one_b_order(r, p, m) for r in range(p)).orders == one_f_one_b(p, m).orders
        assert interleaved(p, m, 1).orders == one_f_one_b(p, m).orders  # by another way


def test_the_1f1b_of_the_books():
    assert words(one_f_one_b(3, 4)) == [
        ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"],
        ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"],
        ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"],
    ]


def test_groups_of_the_interleaved_schedule_are_as_equal_as_can_be():
    first_visits = [action for action in interleaved(4, 11, 2).orders[3] if action.kind == Kind.F]
    runs = [(first_visits[0].stage, 0)]
    for action in first_visits:
        stage, n = runs[-1]
        runs = [*runs[:-1], (stage, n + 1)] if action.stage == stage else [*runs, (action.stage, 1)]
    assert runs == [(3, 6), (7, 6), (3, 5), (7, 5)]


def peak(schedule: Schedule, rank: int) -> int:
    return max(held(schedule.orders[rank]))


@given(sizes)
def test_activations_held_at_most(size):
    p, m = size
    for rank in range(p):
        assert peak(gpipe(p, m), rank) == m
        assert peak(one_f_one_b(p, m), rank) == min(m, p - rank)
        assert peak(zb_h1(p, m), rank) == min(m, p)
        assert peak(zbv(p, m), rank) <= 2 * min(m, p)  # half stages
        if m >= 2 * p - 1:
            assert peak(zbv(p, m), rank) == 2 * p
        for chunks in (2, 3):
            group = m if m < p else -(-m // (m // p))
            warm_up = min((chunks - 1) * group + 2 * (p - 1 - rank), chunks * m)
            assert peak(interleaved(p, m, chunks), rank) == min(warm_up + 1, chunks * m)


@given(sizes, st.floats(0.001, 2))
def test_the_fewest_micro_batches_for_a_bubble(size, share):
    p, _ = size
    m = simple.micro_batches_for(p, share)
    assert simple.bubble(p, m) <= share
    assert m == 1 or simple.bubble(p, m - 1) > share


def test_the_fewest_micro_batches_by_hand():
    assert simple.micro_batches_for(8, 0.2) == 28  # exactly 7 / 35: no float may make it 29
    assert [simple.bubble(8, m) for m in (1, 28)] == [7 / 8, 0.2]
    for share in (0, -0.5):
        with pytest.raises(ValueError, match="ask for a share above 0"):
            simple.micro_batches_for(4, share)


@given(made)
def test_known_schedules_are_recognised(schedule):
    p, m = schedule.n_ranks, schedule.n_micro_batches
    first = next(s for s in known(schedule.placement, m) if merge_backward(s).orders == merge_backward(schedule).orders)
    assert recognise(schedule.renamed("mine")) == first.name
    if p > 2 and m > p:
        assert GENERATORS[first.name](p, m).orders == schedule.orders  # large enough to tell all of them apart


def test_what_is_recognised_and_what_is_not():
    assert recognise(merge_backward(zbv(3, 6))) == "ZBV"
    assert recognise(Schedule(gpipe(2, 2).orders, (1, 0))) is None
    assert recognise(Schedule(((), ()), (0, 1))) is None
    swapped = from_kinds([[("F", 0), ("F", 1), ("B", 1), ("B", 0)]] * 2)
    assert problems(swapped) == [] and recognise(swapped) is None
    assert recognise(lower(gpipe(2, 2))) is None
    assert list(known((0, 0, 1), 4)) == []


@given(made)
def test_merging_the_halves_of_a_backward_leaves_a_right_schedule(schedule):
    merged = merge_backward(schedule)
    assert problems(merged) == []
    assert merge_backward(merged) == merged
    for order in merged.orders:
        for one, two in zip(order, order[1:], strict=False):
            assert not (one.kind == Kind.I and two == one._replace(kind=Kind.W))


def test_lowering_by_hand():
    assert words(lower(zbv(2, 1))) == [
        ["0F0", "0SEND_F0", "3RECV_F0", "3F0", "3I0", "3SEND_B0", "3W0", "0RECV_B0", "0I0", "0W0"],
        ["1RECV_F0", "1F0", "2F0", "2SEND_F0", "2RECV_B0", "2I0", "2W0", "1I0", "1SEND_B0", "1W0"],
    ]


@settings(max_examples=40)
@given(made)
def test_lowering_adds_what_crosses_ranks_and_nothing_else(schedule):
    lowered = lower(schedule)
    assert problems(lowered) == []
    assert lowered.lowered and schedule.n_ranks > 1 or lowered == schedule
    assert [[str(a) for a in order if a.kind in "FBIW"] for order in lowered.orders] == words(schedule)
    assert lowered.placement == schedule.placement and lowered.name == schedule.name
    hops = sum(a != b for a, b in zip(schedule.placement, schedule.placement[1:], strict=False))
    count = sum(a.kind == kind for kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B") for o in lowered.orders for a in o)
    assert count == 4 * hops * schedule.n_micro_batches


@pytest.mark.parametrize("make", GENERATORS.values())
@pytest.mark.parametrize("size", [(0, 3), (2, 0), (-1, 2)])
def test_no_ranks_or_micro_batches(make, size):
    with pytest.raises(ValueError, match="take 1 or more of each"):
        make(*size)


def test_no_stage_per_rank():
    with pytest.raises(ValueError, match="0 stages per rank are too few"):
        interleaved(2, 2, 0)


def test_a_schedule_says_what_it_is():
    schedule = Schedule([[(0, "F", 0), Action(3, Kind.F, 2)], []], list(v_shape(2)))
    assert schedule.orders == ((Action(0, Kind.F, 0), Action(3, Kind.F, 2)), ())
    assert (schedule.n_ranks, schedule.n_stages, schedule.n_micro_batches, schedule.lowered) == (2, 4, 3, False)
    assert schedule.stages_of(0) == (0, 3)
    assert loop(2, 2) == (0, 1, 0, 1)
    assert hash(schedule) == hash(schedule.renamed(""))


@pytest.mark.parametrize(
    ("orders", "placement", "message"),
    [
        (((), ()), (0, 2), "stage 1 is placed on rank 2, but the orders are for ranks 0 to 1"),
        (((),), (-1,), "stage 0 is placed on rank -1"),
        ((), (0,), "0 ranks and 1 stages are no pipeline"),
        (((),), (), "1 ranks and 0 stages are no pipeline"),
    ],
)
def test_a_placement_that_cannot_be(orders, placement, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(orders, placement)
