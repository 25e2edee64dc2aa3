"""Accumulation against one process that takes each step on the whole window at once, in float64."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import spmd
from course_lib.training.accumulate import backward_window, train_in_windows
from course_lib.training.loss import IGNORE, token_losses, valid_tokens

WORLDS = [2, 3, 4]
MICRO_BATCHES = 7  # of each rank
WINDOWS = [1, 3, 7, 10]  # 3 leaves a last window of one


class Tied(nn.Module):
    """A frozen layer, and a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 5)
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.last(self.frozen(self.first(x).tanh()))


def new_model():
    torch.manual_seed(3)
    model = Tied().double()
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3, momentum=0.5)


def micro_batches(rank, equal):
    """Of one rank: (inputs (T, 4), labels (T,)). Unequal ones have padding, some nothing else, rank 1 none but that."""
    generator = torch.Generator().manual_seed(10 + rank)
    made = []
    for i in range(MICRO_BATCHES):
        tokens = 6 if equal else 1 + (i * (rank + 2)) % 6
        labels = torch.randint(5, (tokens,), generator=generator)
        if not equal:
            labels[(rank + i) % 3 :: 2] = IGNORE
            if rank == 1 or i == 4:
                labels[:] = IGNORE
        made.append((torch.randn(tokens, 4, generator=generator, dtype=torch.float64), labels))
    return made


def losses_of(model, micro_batch):
    inputs, labels = micro_batch
    return token_losses(model(inputs), labels)


def windows_of(items, window):
    return [items[start : start + window] for start in range(0, len(items), window)]


def by_windows(model, optimizer, micro, window):
    """A pass with `backward_window`. Returns each step's loss."""
    losses = []
    for taken in windows_of(micro, window):
        total = valid_tokens(labels for _, labels in taken)
        dist.all_reduce(total)
        loss = backward_window(model, taken, losses_of, total)
        dist.all_reduce(loss)
        losses.append(loss / dist.get_world_size())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def run_all_cases():
    rank, seen = dist.get_rank(), {}
    for window in WINDOWS:
        for equal in (True, False):
            model, optimizer = new_model()
            losses = by_windows(DistributedDataParallel(model), optimizer, micro_batches(rank, equal), window)
            seen[window, equal] = [p.detach() for p in model.parameters()], losses
        model, optimizer = new_model()
        mean = lambda model, micro_batch: F.cross_entropy(model(micro_batch[0]), micro_batch[1])  # noqa: E731
        train_in_windows(DistributedDataParallel(model), optimizer, micro_batches(rank, True), window, mean)
        seen[window, "taught"] = [p.detach() for p in model.parameters()], None
    return seen


@functools.cache
def results(world):
    return spmd.run(run_all_cases, ranks=world, show=False)


@functools.cache
def alone(world, window, equal):
    """Parameters and losses of one process."""
    model, optimizer = new_model()
    losses = []
    for steps in zip(*(windows_of(micro_batches(rank, equal), window) for rank in range(world)), strict=True):
        pairs = [pair for taken in steps for pair in taken]
        inputs, labels = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
        loss = F.cross_entropy(model(inputs), labels, ignore_index=IGNORE, reduction="sum")
        loss = loss / max(int((labels != IGNORE).sum()), 1)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()], losses


@pytest.mark.parametrize("kind", [True, False, "taught"], ids=["equal", "unequal", "taught"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("world", WORLDS)
def test_parameters_after_all_steps_are_those_of_one_process(world, window, kind):
    parameters, losses = alone(world, window, bool(kind))
    for seen, seen_losses in (result[window, kind] for result in results(world)):
        torch.testing.assert_close(seen, parameters, rtol=1e-10, atol=1e-10)
        if seen_losses is not None:
            torch.testing.assert_close(seen_losses, losses, rtol=1e-10, atol=1e-10)


class Listening(nn.Module):
    """Stands for a DistributedDataParallel: notes what runs inside no_sync."""

    def __init__(self):
        super().__init__()
        self.weight, self.inside, self.seen = nn.Parameter(torch.ones(2, 3)), False, []
        self.weight.register_hook(lambda _: self.seen.append(("backward", self.inside)))

    def no_sync(self):
        return self

    def __enter__(self):
        self.inside = True

    def __exit__(self, *_):
        self.inside = False

    def forward(self, x):
        self.seen.append(("forward", self.inside))
        return x @ self.weight


def listened():
    model = Listening()
    window = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(3)]
    plain = backward_window(model, window, losses_of, 12)
    gradient = model.weight.grad.clone()
    model.weight.grad = None
    scaled = backward_window(model, window, losses_of, 12, scale=8.0)
    return model.seen[:6], (plain, scaled), (gradient * 8, model.weight.grad), plain.requires_grad


def test_all_but_the_last_run_inside_no_sync_forward_included():
    [(seen, _, _, _)] = spmd.run(listened, ranks=1, show=False)
    both = lambda inside: [("forward", inside), ("backward", inside)]  # noqa: E731
    assert seen == [*both(True), *both(True), *both(False)]


def test_a_scale_multiplies_the_gradients_and_not_the_loss_that_is_told():
    [(_, (plain, scaled), (expected, gradient), attached)] = spmd.run(listened, ranks=1, show=False)
    assert plain == scaled and not attached
    torch.testing.assert_close(gradient, expected)


def test_an_empty_window_is_refused_before_others_wait():
    with pytest.raises(ValueError, match="no micro-batch on this rank; it needs at least one"):
        backward_window(Listening(), [], losses_of, 1)
