"""Vocab-parallel cross-entropy equals torch's on the whole logits: losses, gradients, everything torch's options do."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor_cases import alike, all_of, error_of, leaf, random, same

from course_lib import spmd
from course_lib.parallel.tensor import simple, token_losses
from course_lib.training import loss
from course_lib.training.loss import IGNORE

T = 6


def my_columns(logits):
    """This rank's ceil(V/n) columns; what is padding is garbage, larger than all logits."""
    n = dist.get_world_size()
    width = -(-logits.shape[-1] // n)
    padded = F.pad(logits.detach(), (0, width * n - logits.shape[-1]), value=6e4)
    return leaf(padded[..., width * dist.get_rank() : width * (dist.get_rank() + 1)])


def my_gradient(grad):
    """What my_columns cuts, of a gradient: padding has none."""
    n = dist.get_world_size()
    width = -(-grad.shape[-1] // n)
    padded = F.pad(grad, (0, width * n - grad.shape[-1]))
    return padded[..., width * dist.get_rank() : width * (dist.get_rank() + 1)]


def as_torchs():
    """V that n divides, that it does not, and of which the last ranks have nothing; huge logits; nothing to predict."""
    for V in (24, 38, 5):
        labels = torch.tensor([0, V - 1, IGNORE, V // 2, 3, IGNORE])
        for smoothing in (0.0, 0.1, 1.0):
            for scale, offset in ((1, 0.0), (600, 900.0), (1, -5000.0)):
                logits, upstream = leaf(random(V, T, V) * scale + offset), random(5, T)
                expected = F.cross_entropy(
                    logits, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing
                )
                (expected * upstream).sum().backward()
                part = my_columns(logits)
                found, valid = token_losses(part, labels, V, label_smoothing=smoothing)
                same(found, expected, f"V {V}, smoothing {smoothing}", 1e-9 if smoothing else 1e-10)
                alike(found)
                assert torch.equal(valid, labels != IGNORE)
                (found * upstream).sum().backward()
                same(part.grad, my_gradient(logits.grad), f"gradient, V {V}, smoothing {smoothing}")


def as_the_taught_one():
    labels, logits = torch.tensor([0, 23, IGNORE, 12, 3, 5]), random(1, T, 24)
    ours, taught = my_columns(logits), my_columns(logits)
    found, expected = token_losses(ours, labels, 24)[0], simple.vocab_parallel_losses(taught, labels)
    same(found, expected)
    (found * random(5, T)).sum().backward()
    (expected * random(5, T)).sum().backward()
    same(ours.grad, taught.grad)


def all_ignored():
    part = my_columns(random(1, T, 24))
    found, valid = token_losses(part, torch.full((T,), IGNORE), 24, label_smoothing=0.1)
    found.sum().backward()
    assert not found.any() and not valid.any() and not part.grad.any()


def in_16_bits():
    """The arithmetic is float32's: as exact as torch's on logits taken to float32. Gradients come back in 16."""
    labels = torch.tensor([[0, 99, 7], [IGNORE, 50, 3]])
    for dtype in (torch.bfloat16, torch.float16):
        logits = (random(1, 2, 3, 100) * 10).to(dtype)
        part = my_columns(logits)
        found, _ = token_losses(part, labels, 100)
        assert found.dtype == torch.float32
        whole = leaf(logits.float())
        expected, _ = loss.token_losses(whole, labels)
        same(found, expected, dtype, 1e-5)
        found.sum().backward()
        expected.sum().backward()
        assert part.grad.dtype == dtype
        same(part.grad.float(), my_gradient(whole.grad), dtype, 4e-3)


def what_is_sent():
    """Three numbers for each token, in two all-reduces, however large the vocabulary; nothing in backward."""
    part, labels = my_columns(random(1, T, 1000).float()), torch.arange(T)
    with spmd.traffic() as forward:
        found = token_losses(part, labels, 1000)[0]
    with spmd.traffic() as backward:
        found.sum().backward()
    n = dist.get_world_size()
    assert forward.calls == ({"all_reduce": 2} if n > 1 else {}) and not backward.calls
    assert forward.collective_bytes["all_reduce"] == (3 * T * 4 if n > 1 else 0)


def once_backward():
    part = my_columns(random(1, T, 24))
    found = token_losses(part, torch.arange(T), 24)[0].sum()
    found.backward(retain_graph=True)
    kept = part.grad.clone()
    message = error_of(RuntimeError, found.backward)
    assert message == "a second backward through the same losses: forward must be run again before it"
    assert torch.equal(part.grad, kept)


def inputs_are_left_alone():
    """Logits of float32 and float64 are not converted, so that they could be written to."""
    part = my_columns(random(1, T, 24))
    before = part.detach().clone()
    token_losses(part, torch.arange(T), 24, label_smoothing=0.1)[0].sum().backward()
    assert torch.equal(part.detach(), before)


def refused():
    n = dist.get_world_size()
    part, labels = my_columns(random(1, T, 24)), torch.arange(T)
    width = 24 // n
    message = error_of(ValueError, token_losses, part, labels, 24 + n)
    assert message == (
        f"labels of shape (6,) and a vocabulary of {24 + n} on {n} ranks need logits of shape (6, {width + 1}), "
        f"not (6, {width})"
    )
    assert "need logits of shape (5," in error_of(ValueError, token_losses, part, labels[1:], 24)
    message = error_of(ValueError, token_losses, part, labels, 24, label_smoothing=1.5)
    assert message == "label_smoothing is 1.5; it must be from 0 to 1"
    for foreign in (24, -1):
        labels[2] = foreign
        message = error_of(RuntimeError, token_losses, part, labels, 24)
        assert message.startswith("a label is outside the vocabulary of 24: 0 to 23 exist")


ALL = [
    as_torchs,
    as_the_taught_one,
    all_ignored,
    in_16_bits,
    what_is_sent,
    once_backward,
    inputs_are_left_alone,
    refused,
]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equal_to_torchs(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)
