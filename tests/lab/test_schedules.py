"""Pictures of schedules: each action where it belongs, planned and measured on one axis."""

import pytest

from course_lib.lab import schedules
from course_lib.parallel.pipeline.generators import gpipe, one_f_one_b, zbv
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.timeline import Span, Timeline


def run_as_planned(simulation, slower=2, begin=7):
    """A timeline in which everything took `slower` times as long, after an earlier step and other spans."""
    measured = simulation.timeline(seconds=slower).spans_by_rank
    late = int(begin * 1e9)
    earlier = [[Span(s.name, s.start_ns, s.end_ns) for s in spans] for spans in measured]
    last = [[Span(s.name, s.start_ns + late, s.end_ns + late) for s in spans] for spans in measured]
    return Timeline([[*a, Span("all_reduce", 0, 1, "comm"), *b] for a, b in zip(earlier, last, strict=True)])


def test_measured_blocks_are_those_of_the_last_step_from_its_first_action_on():
    simulation = simulate(one_f_one_b(3, 4), Costs(0.5, 0.25, 0.25, send=0.1))
    blocks = schedules.measured_blocks(simulation, run_as_planned(simulation))
    for order, found in zip(simulation.schedule.orders, blocks, strict=True):
        assert [block.action for block in found] == list(order)
        for action, start, end in found:
            assert start == pytest.approx(2 * simulation.start[action])
            assert end == pytest.approx(2 * simulation.end[action])


def test_another_schedules_timeline_is_refused():
    measured = Timeline([[Span("forward", 0, 1)], []])
    with pytest.raises(ValueError, match="the timeline has no action of this schedule"):
        schedules.measured_blocks(simulate(gpipe(2, 2)), measured)


def texts(figure):
    (ax,) = figure.axes
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("schedule", [gpipe(2, 3), zbv(2, 3)], ids=lambda schedule: schedule.name)
def test_every_block_bears_its_micro_batch_in_the_plan(schedule):
    figure = schedules.plan(simulate(schedule), "A plan")
    actions = [action for order in schedule.orders for action in order]
    assert texts(figure) == [str(action.micro_batch) for action in actions]
    assert figure.axes[0].get_title(loc="left") == "A plan"
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert ("lighter: further stage" in legend) == (schedule.n_stages > schedule.n_ranks)
    assert "backward, weights" in legend or schedule.name == "GPipe"


def test_plan_and_measured_share_an_axis_in_milliseconds():
    simulation = simulate(gpipe(2, 2), Costs(0.010, 0.005, 0.005))
    figure = schedules.plan_and_measured(simulation, run_as_planned(simulation), "Both")
    (ax,) = figure.axes
    assert ax.get_xlim() == (0, pytest.approx(2e3 * simulation.makespan))
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "rank 0, planned", "measured", "rank 1, planned", "measured"
    ]  # fmt: skip
    assert len(texts(figure)) == 2 * 8
