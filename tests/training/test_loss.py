"""The loss rule against one process that holds all tokens, in float64: unequal counts, and none at all."""

import functools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course_lib import spmd
from course_lib.training.loss import IGNORE, share_of_mean, share_of_total, token_losses, valid_tokens

WORLDS = [1, 2, 3, 4]
VOCABULARY, WIDTH = 7, 5

# Of each rank, for each of its micro-batches: how many labels are valid, and how many are not.
WINDOWS = {
    "unequal": [[(3, 2), (1, 0)], [(5, 1), (2, 4)], [(1, 6), (4, 4)], [(2, 2), (6, 1)]],
    "a rank without valid tokens": [[(3, 2), (1, 0)], [(0, 4), (0, 3)], [(1, 6), (4, 4)], [(0, 1), (0, 2)]],
    "only the last rank has any": [[(0, 2)], [(0, 3)], [(0, 4)], [(0, 4)]],
    "a micro-batch without valid tokens": [[(0, 2), (3, 0)], [(5, 1), (0, 4)], [(0, 6), (4, 4)], [(2, 2), (0, 1)]],
    "none anywhere": [[(0, 2), (0, 3)]] * 4,
}


def windows(name, n):
    """The inputs and labels of all ranks: for each a list of (inputs (T, WIDTH), labels (T,))."""
    made = []
    for rank, sizes in enumerate(WINDOWS[name][:n]):
        if name == "only the last rank has any" and rank == n - 1:
            sizes = [(4, 1)]
        generator = torch.Generator().manual_seed(rank)
        window = []
        for valid, ignored in sizes:
            labels = torch.randint(VOCABULARY, (valid + ignored,), generator=generator)
            labels[torch.randperm(valid + ignored, generator=generator)[:ignored]] = IGNORE
            window.append((torch.randn(valid + ignored, WIDTH, generator=generator, dtype=torch.float64), labels))
        made.append(window)
    return made


def weights():
    generator = torch.Generator().manual_seed(9)
    return torch.randn(WIDTH, VOCABULARY, generator=generator, dtype=torch.float64).requires_grad_()


def alone(name, n):
    """Loss and gradient of one process with all tokens."""
    weight = weights()
    pairs = [pair for window in windows(name, n) for pair in window]
    inputs, labels = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    if (labels == IGNORE).all():
        return torch.zeros((), dtype=torch.float64), torch.zeros_like(weight)
    loss = torch.nn.functional.cross_entropy(inputs @ weight, labels, ignore_index=IGNORE)
    loss.backward()
    return loss.detach(), weight.grad


def spread(name):
    """The same on the ranks: (loss, gradient), both averaged over them, by the general form and by the taught one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    window = windows(name, n)[rank]
    total = valid_tokens(labels for _, labels in window)
    dist.all_reduce(total)
    weight, loss = weights(), torch.zeros((), dtype=torch.float64)
    for inputs, labels in window:
        share = share_of_total(*token_losses(inputs @ weight, labels), total)
        share.backward()
        loss += share.detach()

    taught = weights()
    inputs, labels = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
    share = share_of_mean(*token_losses(inputs @ taught, labels))
    share.backward()
    seen = loss, weight.grad, share.detach(), taught.grad
    for value in seen:
        dist.all_reduce(value)
    return [value / n for value in seen]


def spread_all():
    return {name: spread(name) for name in WINDOWS}


@functools.cache
def results(world):
    return spmd.run(spread_all, ranks=world, show=False)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("world", WORLDS)
def test_loss_and_gradient_are_those_of_one_process(world, name):
    expected = alone(name, world)
    for seen in results(world):
        torch.testing.assert_close(list(seen[name]), [*expected, *expected], rtol=1e-10, atol=1e-10)


def test_without_a_valid_token_the_loss_is_zero_and_so_are_gradients():
    loss, gradient, *_ = results(3)[0]["none anywhere"]
    assert loss == 0 and not gradient.any()


def test_losses_are_those_of_cross_entropy_token_by_token():
    logits, labels = torch.randn(2, 3, VOCABULARY), torch.tensor([[1, IGNORE, 3], [IGNORE, 0, 6]])
    losses, valid = token_losses(logits, labels)
    assert valid.tolist() == [True, False, True, False, True, True]
    expected = -logits.log_softmax(-1).flatten(0, 1)[range(6), labels.clamp(min=0).flatten()]
    torch.testing.assert_close(losses, expected.where(valid, torch.zeros(())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_logits_are_summed_in_float32(dtype):
    logits, labels = torch.randn(4, 1000).to(dtype), torch.arange(4)
    losses, _ = token_losses(logits, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, token_losses(logits.float(), labels)[0], rtol=0, atol=0)


def test_losses_stay_in_float64():
    assert token_losses(torch.randn(2, 5, dtype=torch.float64), torch.arange(2))[0].dtype == torch.float64


def with_losses_that_are_not_finite():
    losses = torch.tensor([1.0, float("inf"), 2.0, float("nan")], requires_grad=True)
    loss = share_of_total(losses, torch.tensor([True, False, True, False]), 2)
    loss.backward()
    return loss.item(), losses.grad.tolist(), share_of_total(losses[:2] * 0, torch.tensor([False, False]), 0).item()


def test_an_ignored_token_whose_loss_is_not_finite_spoils_nothing():
    assert spmd.run(with_losses_that_are_not_finite, ranks=1, show=False) == [(1.5, [0.5, 0, 0.5, 0], 0.0)]


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"of shape \(2, 4\) need logits of shape \(2, 4, 'V'\), not \(2, 3, 9\)"):
        token_losses(torch.zeros(2, 3, 9), torch.zeros(2, 4, dtype=torch.int64))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_valid_tokens_are_counted_over_all_micro_batches(rows):
    labels = [torch.tensor([3 if valid else IGNORE for valid in row]) for row in rows]
    assert valid_tokens(labels).item() == sum(map(sum, rows))
