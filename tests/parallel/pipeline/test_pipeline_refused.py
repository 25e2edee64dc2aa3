"""What a pipeline says when it is used wrongly, when a rank fails, or when one does not come."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import spmd
from course_lib.parallel.pipeline.actions import Action
from course_lib.parallel.pipeline.generators import gpipe, one_f_one_b
from course_lib.parallel.pipeline.passes import lower
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.stage import GPTStage, balance

SUM = {"inputs_of": lambda batch: batch, "loss_of": lambda y, _: y.sum()}


def error_of(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def refusals():
    rank, stage = dist.get_rank(), nn.Linear(2, 2)
    said = error_of(ValueError, Pipeline, {rank: stage}, gpipe(3, 2))
    assert said == "the schedule is for 3 ranks, the group has 2: make one for 2"
    said = error_of(ValueError, Pipeline, {1 - rank: stage}, gpipe(2, 2))
    assert said == f"rank {rank} was given stages [{1 - rank}]; the schedule places [{rank}] on it"
    broken = gpipe(2, 2)
    broken = type(broken)((broken.orders[0][1:], broken.orders[1]), broken.placement)
    assert "0F0" in error_of(ScheduleError, Pipeline, {rank: stage}, broken)
    said = error_of(ValueError, Pipeline, {rank: stage}, lower(gpipe(2, 2)))
    assert said.startswith("the schedule has sends and receives in it")
    pipeline = Pipeline({rank: stage}, gpipe(2, 2))
    said = error_of(ValueError, pipeline.step, [torch.ones(1, 2)] * 3, **SUM)
    assert said == "the schedule is for 2 micro-batches, not 3: make one for those"
    said = error_of(TypeError, pipeline.step, [torch.ones(1, 2)] * 2, lambda _: 3.0, SUM["loss_of"])
    assert said == "inputs_of must give a tensor or a tuple of tensors, not float"
    return True


def test_what_cannot_be_is_refused_in_a_sentence():
    assert spmd.run(refusals, ranks=2) == [True, True]


class Growing(nn.Module):
    """Its output's shape follows from how often it was called."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(2, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x).repeat(self.calls, 1)


def test_a_stage_whose_shapes_do_not_follow_from_its_inputs():
    def train():
        stage = Growing() if dist.get_rank() == 0 else nn.Linear(2, 2)
        Pipeline({dist.get_rank(): stage}, gpipe(2, 3)).step([torch.ones(1, 2)] * 3, **SUM)

    with pytest.raises(spmd.RankError) as caught:
        spmd.run(train, ranks=2)
    said = str(caught.value)
    assert said.startswith("Rank 0 raised ValueError: stage 0 made float32 (2, 2) of micro-batch 1, and float32 (1, 2)")


def test_a_stage_that_gives_no_tensor():
    def train():
        stage = nn.Identity() if dist.get_rank() else (lambda x: {"x": x})
        if dist.get_rank() == 0:
            stage = nn.Module()
            stage.forward = lambda x: {"x": x}
        Pipeline({dist.get_rank(): stage}, gpipe(2, 1)).step([torch.ones(1, 2)], **SUM)

    with pytest.raises(spmd.RankError, match="stage 0 must give a tensor or a tuple of tensors, not dict"):
        spmd.run(train, ranks=2)


def test_a_stage_that_raises_is_named():
    def train():
        def fail(*_):
            raise ArithmeticError("no more")

        stage = nn.Linear(2, 2)
        if dist.get_rank() == 1:
            stage.register_forward_hook(fail)
        Pipeline({dist.get_rank(): stage}, one_f_one_b(3, 4)).step([torch.ones(1, 2)] * 4, **SUM)

    with pytest.raises(spmd.RankError, match="^Rank 1 raised ArithmeticError: no more"):
        spmd.run(train, ranks=3, timeout=30)


def test_a_rank_that_leaves_a_step_out():
    def train():
        pipeline = Pipeline({dist.get_rank(): nn.Linear(2, 2)}, one_f_one_b(2, 2))
        for step in range(2):
            if dist.get_rank() != 1 or step < 1:
                pipeline.step([torch.ones(1, 2)] * 2, **SUM)

    with pytest.raises(spmd.HangError) as caught:
        spmd.run(train, ranks=2, timeout=3)
    assert "Rank 0 waits for rank 1" in str(caught.value)


def test_a_step_that_failed_on_all_ranks_leaves_nothing_behind():
    """As when all ranks refuse the same batch: the next step is right."""

    def train():
        pipeline = Pipeline({dist.get_rank(): nn.Linear(2, 2)}, one_f_one_b(2, 2))
        error_of(TypeError, pipeline.step, [torch.ones(1, 2)] * 2, lambda _: None, SUM["loss_of"])
        return pipeline.step([torch.ones(1, 2)] * 2, **SUM).isfinite().item()

    assert spmd.run(train, ranks=2) == [True, True]


def test_layers_that_cannot_be_cut():
    with pytest.raises(ValueError, match="3 layers cannot be cut into 4 stages: 1 to 3 would do"):
        balance([1, 1, 1], 4)


def test_a_stage_needs_values_to_start_from():
    assert all(not p.is_meta for p in GPTStage(tiny(), range(1)).parameters())
    with torch.device("meta"):
        assert all(p.is_meta for p in GPTStage(tiny(), range(1)).parameters())


def tiny():
    from course_lib.models import GPTConfig

    return GPTConfig(vocab_size=5, dim=4, n_layers=2, n_heads=1, n_kv_heads=1, ffn_dim=4, max_seq_len=4)


def test_weight_gradients_left_over_by_a_step_that_failed_are_not_added_to_the_next():
    def train():
        order = tuple(map(Action.parse, ("0F0", "0I0", "0F1", "0I1", "0W0", "0W1")))
        stage, batches = nn.Linear(2, 1, bias=False), [torch.ones(1, 2)] * 2
        pipeline = Pipeline({0: stage}, Schedule((order,), (0,)))
        calls = []

        def fails_once(y, _):
            calls.append(y)
            if len(calls) == 2:
                raise ArithmeticError("an overflow, say")
            return y.sum()

        error_of(ArithmeticError, pipeline.step, batches, SUM["inputs_of"], fails_once)
        stage.weight.grad = None
        pipeline.step(batches, SUM["inputs_of"], fails_once)
        return stage.weight.grad.tolist()

    assert spmd.run(train, ranks=1) == [[[2.0, 2.0]]]
