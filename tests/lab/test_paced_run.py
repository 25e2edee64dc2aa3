"""Schedules on real ranks with the costs of a plan. Times are only bounded from below: the machine may be busy."""

import pytest

from course_lib import spmd
from course_lib.lab import paced_run, schedules
from course_lib.parallel.pipeline.generators import gpipe, one_f_one_b, zbv
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.simulate import Costs, simulate

TICK = 0.004  # seconds


@pytest.mark.parametrize(
    ("schedule", "costs"),
    [
        (one_f_one_b(3, 4), Costs(TICK, TICK, TICK, send=2 * TICK)),
        # On rank 0 the gradient of the only micro-batch is awaited while its activation has not set out yet.
        (gpipe(2, 1), Costs(TICK, TICK, TICK, send=3 * TICK)),
        (zbv(2, 3), Costs(TICK, TICK, TICK, send=(TICK, 0.0, 4 * TICK))),
        (zbv(2, 2), Costs((TICK, 0.0, TICK, TICK), TICK, TICK)),
    ],
    ids=["1F1B", "one micro-batch", "V, uneven messages", "V, uneven stages"],
)
def test_every_action_runs_and_none_before_the_plan_lets_it(schedule, costs):
    timeline = paced_run.run(schedule, costs)
    plan = simulate(schedule, costs)
    blocks = [block for row in schedules.measured_blocks(plan, timeline) for block in row]
    assert len(blocks) == sum(map(len, schedule.orders))
    zero = min(plan.start.values())
    for action, start, end in blocks:
        assert start >= plan.start[action] - zero - 0.0005
        assert end - start >= plan.costs.of(action) - 0.0005


def test_a_schedule_that_cannot_run_is_refused():
    with pytest.raises(spmd.RankError, match="rank 1 never runs 1F0"):
        paced_run.run(Schedule((one_f_one_b(2, 1).orders[0], ()), (0, 1)), Costs())
