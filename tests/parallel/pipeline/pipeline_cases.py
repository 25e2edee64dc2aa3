"""A small GPT cut into stages, trained by a pipeline and by one process on the same micro-batches."""

import functools

import torch
import torch.distributed as dist

from course_lib.models import GPT, GPTConfig
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.stage import GPTStage, balance
from course_lib.parallel.pipeline.tied import TiedWeight
from course_lib.training.loss import IGNORE, token_losses

EXACT = 1e-10  # float64: only the order of additions differs
VOCAB = 23


def config(tied=False):
    """One layer more than two stages on each rank need: a number that they do not divide."""
    layers = 2 * dist.get_world_size() + 1
    return GPTConfig(
        vocab_size=VOCAB, dim=8, n_layers=layers, n_heads=2, n_kv_heads=1, ffn_dim=12, max_seq_len=16, tied=tied
    )


def micro_batches(m, seed=0):
    """m of them: tokens, labels and documents, (2, 7) each; the last one is smaller. Valid labels differ in number."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(m):
        shape = (2, 7) if i < m - 1 else (1, 5)
        tokens, labels = torch.randint(VOCAB, (2, *shape), generator=generator).unbind()
        labels[:, 2 + i % 3 :: 3] = IGNORE
        documents = (torch.arange(shape[1]) // 3).expand(shape)
        found.append((tokens, labels, documents))
    return found


def total_of(batches):
    return sum(int((labels != IGNORE).sum()) for _, labels, _ in batches)


def tokens_of(batch):
    return batch[0]


def tokens_and_documents(batch):
    return batch[0], batch[2]


def share_of(total):
    """The loss a pipeline wants: a micro-batch's share of the mean over all valid tokens of the step."""

    def share(logits, batch):
        losses, valid = token_losses(logits, batch[1])
        return losses.masked_fill(~valid, 0).sum() / total

    return share


def frozen(name):
    """What is frozen in tests of frozen parameters: one matrix in the middle, and the embedding."""
    return name in ("layers.1.ffn.up.weight", "embedding.weight")


@functools.cache
def train_alone(config, m, steps, inputs_of, freeze=False):
    """[(loss, gradients by name)] of each step, and the parameters afterwards, of one process."""
    model = GPT(config, seed=3).double()
    for name, p in model.named_parameters():
        p.requires_grad_(not (freeze and frozen(name)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    batches, seen = micro_batches(m), []
    share = share_of(total_of(batches))
    for _ in range(steps):
        loss = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            inputs = inputs_of(batch)
            part = share(model(*inputs) if isinstance(inputs, tuple) else model(inputs), batch)
            part.backward()
            loss += part.detach()
        seen.append((loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}))
        optimizer.step()
        optimizer.zero_grad()
    return seen, {name: p.detach().clone() for name, p in model.named_parameters()}, model


def stages_of(config, schedule, rank, freeze=False):
    """This rank's stages of the model that train_alone trains."""
    parts = balance([1] * config.n_layers, schedule.n_stages)
    stages = {s: GPTStage(config, parts[s], seed=3).double() for s in schedule.stages_of(rank)}
    for stage in stages.values():
        for name, p in stage.named_parameters():
            p.requires_grad_(not (freeze and frozen(name)))
    return stages


def assert_equal(ours, expected, what):
    assert ours.shape == expected.shape and ours.dtype == expected.dtype, what
    error = (ours - expected).abs().max().item() if ours.numel() else 0
    assert error <= EXACT, f"{what}: off by {error}"


def assert_same_training(config, schedule, steps=3, inputs_of=tokens_of, freeze=False, prepare=None):
    """On every rank: this schedule trains as one process does. prepare(stage): done to each stage first."""
    rank = dist.get_rank()
    batches = micro_batches(schedule.n_micro_batches)
    seen, parameters, model = train_alone(config, schedule.n_micro_batches, steps, inputs_of, freeze)
    stages = stages_of(config, schedule, rank, freeze)
    for stage in stages.values():
        if prepare:
            prepare(stage)
    tied = TiedWeight(stages, schedule) if config.tied else None
    pipeline, share = Pipeline(stages, schedule), share_of(total_of(batches))
    optimizer = torch.optim.AdamW([p for _, p in pipeline.named_parameters()], lr=1e-2, weight_decay=0.1)
    where = f"{schedule.name}, {schedule.n_ranks} ranks, {schedule.n_micro_batches} micro-batches, rank {rank}"
    for loss, gradients in seen:
        ours = pipeline.step(batches, inputs_of, share).double()
        assert not ours.requires_grad
        dist.all_reduce(ours)
        assert_equal(ours, loss, f"{where}: loss")
        if tied:
            tied.add_gradients()
        for name, p in pipeline.named_parameters():
            expected = gradients.get("embedding.weight" if tied and name == "head.weight" else name)
            assert (p.grad is None) == (expected is None), f"{where}: {name}"
            if p.grad is not None:
                assert_equal(p.grad, expected, f"{where}: gradient of {name}")
        optimizer.step()
        optimizer.zero_grad()
    for name, p in pipeline.named_parameters():
        expected = parameters["embedding.weight" if tied and name == "head.weight" else name]
        assert_equal(p.detach(), expected, f"{where}: {name}")
    evaluated = pipeline.evaluate(batches, inputs_of, share).double()
    dist.all_reduce(evaluated)
    with torch.no_grad():
        outputs = [(inputs_of(batch), batch) for batch in batches]
        expected = sum(share(model(*x) if isinstance(x, tuple) else model(x), batch) for x, batch in outputs)
    assert_equal(evaluated, expected, f"{where}: evaluation")
    assert all(p.grad is None for _, p in pipeline.named_parameters())


def out_of_order(n):
    """A valid schedule of a kind of its own: each rank runs its forwards, and its backwards, in another order."""
    orders = []
    for rank in range(n):
        forwards, backwards = [0, 1, 2], [2, 0, 1]
        if rank % 2:
            forwards, backwards = [1, 0, 2], [0, 2, 1]
        orders.append(
            tuple(Action(rank, Kind.F, i) for i in forwards) + tuple(Action(rank, Kind.B, i) for i in backwards)
        )
    return Schedule(tuple(orders), tuple(range(n)), "out of order")


def all_of(cases):
    """What a rank runs: all cases, one after the other."""
    for case in cases:
        case()
