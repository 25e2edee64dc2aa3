"""Whatever the schedule: a pipeline trains as one process does. Ranks are started once for each world size."""

import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from pipeline_cases import (
    all_of,
    assert_equal,
    assert_same_training,
    config,
    micro_batches,
    out_of_order,
    share_of,
    stages_of,
    tokens_and_documents,
    tokens_of,
    total_of,
    train_alone,
)
from torch import nn

from course_lib import spmd
from course_lib.parallel.data.simple import average_gradients
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import Schedule, v_shape
from course_lib.parallel.pipeline.tied import TiedWeight
from course_lib.training.recompute import recompute


def schedules(n, m):
    return [gpipe(n, m), one_f_one_b(n, m), interleaved(n, m, 2), zb_h1(n, m), zbv(n, m)]


def every_schedule():
    n = dist.get_world_size()
    for m in sorted({1, n, n + 2}):
        for schedule in schedules(n, m):
            assert_same_training(config(), schedule, steps=1)
    for schedule in schedules(n, n + 1):
        assert_same_training(config(tied=True), schedule, steps=2)


def ten_steps():
    assert_same_training(config(tied=True), zbv(dist.get_world_size(), 3), steps=10)


def documents_travel_too():
    """A tensor without a gradient between the stages."""
    n = dist.get_world_size()
    for schedule in (one_f_one_b(n, 3), zbv(n, 3)):
        assert_same_training(config(tied=True), schedule, steps=2, inputs_of=tokens_and_documents)


def frozen_parameters():
    n = dist.get_world_size()
    for schedule in (one_f_one_b(n, 3), zbv(n, 3)):
        assert_same_training(config(), schedule, steps=2, freeze=True)


def frozen_stages():
    """The first stage has nothing to learn: what it sends wants no gradient, and none comes back."""
    n = dist.get_world_size()
    for schedule in (one_f_one_b(n, 3), zb_h1(n, 3)):
        stages = stages_of(config(), schedule, dist.get_rank())
        if 0 in stages:
            stages[0].requires_grad_(n == 1)
        batches = micro_batches(3)
        Pipeline(stages, schedule).step(batches, tokens_of, share_of(total_of(batches)))
        _, _, model = train_alone(config(), 3, 0, tokens_of)
        share = share_of(total_of(batches))
        model.zero_grad()  # it is kept from the schedule before
        sum(share(model(batch[0]), batch) for batch in batches).backward()
        expected = dict(model.named_parameters())
        for stage in stages.values():
            for name, p in stage.named_parameters():
                assert (p.grad is None) == (not p.requires_grad)
                if p.grad is not None:
                    assert_equal(p.grad, expected[name].grad, name)


def recomputed_layers():
    n = dist.get_world_size()
    assert_same_training(config(), one_f_one_b(n, 3), steps=2, prepare=partial(_recompute, every=2))
    assert_same_training(config(), zbv(n, 3), steps=2, prepare=partial(_recompute, every=1))


def _recompute(stage, every):
    recompute(list(stage.layers.values()), every=every)


def orders_that_differ_by_rank():
    assert_same_training(config(tied=True), out_of_order(dist.get_world_size()), steps=3)


class Forked(nn.Module):
    """Gives three tensors of shapes of their own: used, for indices, and one that the next stage leaves alone."""

    def __init__(self, first, width):
        super().__init__()
        self.first, self.a, self.b = first, nn.Linear(3, width), nn.Linear(3, 3)

    def forward(self, x, where=None, idle=None):
        if not self.first:
            x = x[:, where][:, :3]
        return torch.tanh(self.a(x)), torch.tensor([2, 0, 1]), self.b(x)[:, :, None]


def several_tensors_of_any_shape():
    n, rank, m = dist.get_world_size(), dist.get_rank(), 3
    torch.manual_seed(5)
    whole = nn.ModuleList(Forked(stage == 0, 3 + stage) for stage in range(n)).double()
    batches = [torch.randn(rows, 3, dtype=torch.float64) for rows in (2, 4, 1)]

    def loss_of(outputs, batch):
        return outputs[0].pow(2).sum() + outputs[2].sum() / 3

    pipeline = Pipeline({rank: whole[rank]}, one_f_one_b(n, m))
    for _ in range(2):  # the second time, shapes are known
        loss = pipeline.step(batches, lambda batch: batch, loss_of)
        ours = [p.grad.clone() for p in whole[rank].parameters()]
        whole.zero_grad()
        expected = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            outputs = (batch,)
            for stage in whole:
                outputs = stage(*outputs)
            expected = expected + loss_of(outputs, batch)
        expected.backward()
        if rank == n - 1:
            assert_equal(loss, expected.detach(), "loss")
        for mine, p in zip(ours, whole[rank].parameters(), strict=True):
            assert_equal(mine, torch.zeros_like(p) if p.grad is None else p.grad, "gradient")
        whole.zero_grad()


class Watching(nn.Module):
    """Counts how many of its outputs are still in memory, at each forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.outputs, self.alive = nn.Linear(4, 4), [], []

    def forward(self, x):
        out = self.linear(x)
        self.alive.append(sum(each() is not None for each in self.outputs))
        self.outputs.append(weakref.ref(out))
        return out


def an_output_is_freed_when_it_has_been_used():
    n, rank, m = dist.get_world_size(), dist.get_rank(), 12
    stage = Watching()
    pipeline = Pipeline({rank: stage}, one_f_one_b(n, m))
    pipeline.step([torch.ones(2, 4)] * m, lambda batch: batch, lambda y, _: y.sum())
    assert max(stage.alive) == 0  # the Tensor; its memory is the message's until the receiver has it
    assert pipeline.peak_held == min(m, n - rank)
    assert not any(pipeline.messages.sent.values())


def messages_are_let_go():
    """1F1B: what a rank has sent is forgotten as answers come back, not at the end of the step."""
    n, rank, m = dist.get_world_size(), dist.get_rank(), 12
    pipeline, kept = Pipeline({rank: nn.Linear(4, 4)}, one_f_one_b(n, m)), []

    def count(*_):
        kept.append(sum(map(len, pipeline.messages.sent.values())))

    pipeline.stages[rank].register_forward_hook(count)
    pipeline.step([torch.ones(2, 4)] * m, lambda batch: batch, lambda y, _: y.sum())
    assert max(kept) <= 2 * n


def loss_scale():
    n = dist.get_world_size()
    schedule = one_f_one_b(n, 3)
    stages, batches = stages_of(config(), schedule, dist.get_rank()), micro_batches(3)
    pipeline, share = Pipeline(stages, schedule), share_of(total_of(batches))
    plain = pipeline.step(batches, tokens_of, share)
    once = [p.grad.clone() for _, p in pipeline.named_parameters()]
    for _, p in pipeline.named_parameters():
        p.grad = None
    assert torch.equal(pipeline.step(batches, tokens_of, share, scale=1024.0), plain)
    assert all(torch.equal(p.grad, 1024 * g) for g, (_, p) in zip(once, pipeline.named_parameters(), strict=True))


def with_data_parallel_replicas():
    """4 ranks: two pipelines of two. Each takes half of the micro-batches; gradients are averaged once, at the end."""
    rank = dist.get_rank()
    lines = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    replicas = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    line, replica = lines[rank // 2], replicas[rank % 2]
    batches = micro_batches(6)
    schedule = zb_h1(2, 3)
    stages = stages_of(config(), schedule, rank % 2)
    pipeline = Pipeline(stages, schedule, line)
    mine, half = batches[rank // 2 :: 2], total_of(batches) / 2
    pipeline.step(mine, tokens_of, share_of(half))
    average_gradients([p for _, p in pipeline.named_parameters()], replica)
    seen, _, _ = train_alone(config(), 6, 1, tokens_of)
    for name, p in pipeline.named_parameters():
        assert_equal(p.grad, seen[0][1][name], name)


def a_tied_weight_without_a_gradient_or_frozen():
    n, rank = dist.get_world_size(), dist.get_rank()
    schedule = one_f_one_b(n, 1)
    stages = stages_of(config(tied=True), schedule, rank)
    tied = TiedWeight(stages, schedule)
    assert (tied.copy is not None) == (rank == n - 1)
    if rank == 0:
        tied.weight.grad = torch.ones_like(tied.weight)
    tied.add_gradients()
    if tied.weight is not None:
        assert torch.equal(tied.weight.grad, torch.ones_like(tied.weight))
        tied.weight.grad = None
        tied.weight.requires_grad_(False)
    tied.add_gradients()
    assert tied.weight is None or tied.weight.grad is None


def no_graph_in_evaluation():
    rank, n = dist.get_rank(), dist.get_world_size()
    stages, batches = stages_of(config(), gpipe(n, 2), rank), micro_batches(2)

    def share(logits, batch):
        assert not logits.requires_grad
        return logits.sum()

    Pipeline(stages, gpipe(n, 2)).evaluate(batches, tokens_of, share)


def a_hand_over_in_the_middle():
    """V placement by hand, one micro-batch: the middle stages meet on one rank, and so do the first and the last."""
    n = dist.get_world_size()
    orders = tuple(
        tuple(
            Action(s, kind, 0)
            for kind, s in ((Kind.F, r), (Kind.F, 2 * n - 1 - r), (Kind.B, 2 * n - 1 - r), (Kind.B, r))
        )
        for r in range(n)
    )
    assert_same_training(config(tied=True), Schedule(orders, v_shape(n), "V by hand"), steps=2)


ALL = [
    every_schedule,
    ten_steps,
    documents_travel_too,
    frozen_parameters,
    frozen_stages,
    recomputed_layers,
    orders_that_differ_by_rank,
    several_tensors_of_any_shape,
    an_output_is_freed_when_it_has_been_used,
    messages_are_let_go,
    loss_scale,
    a_tied_weight_without_a_gradient_or_frozen,
    no_graph_in_evaluation,
    a_hand_over_in_the_middle,
]


@pytest.mark.parametrize("n", [2, 3])
def test_a_pipeline_trains_as_one_process(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)


def test_a_pipeline_of_1():
    spmd.run(all_of, [every_schedule, several_tensors_of_any_shape, a_hand_over_in_the_middle], ranks=1, timeout=300)


def test_a_pipeline_of_4_and_two_of_2_side_by_side():
    spmd.run(all_of, [*ALL, with_data_parallel_replicas], ranks=4, timeout=300)
