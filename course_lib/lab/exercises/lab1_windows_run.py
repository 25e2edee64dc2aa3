"""What the check of `train_in_windows` runs: a model that notes what is done with it, trained by an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.lab.evidence import Aside
from course_lib.lab.exercise import Case, random_tensor

SIZE, ROWS, LR = 5, 3, 0.1  # of the model, of a micro-batch; the learning rate
LARGE = 500_000  # parameters of the timed model


class DistributedDataParallel(nn.Module):
    """A linear model that is data parallel as torch's is, and bears its name, which errors tell the reader: forward
    decides whether the next backward exchanges gradients.

    events: what happened to it, a letter each. f and b are a forward and a backward that exchange nothing, F and B in
    sync; B exchanges. s is a step, z a zero_grad. most_held: rows whose activations waited for a backward at once.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.events = ""
        self.most_held = self._held = 0
        self._sync = self._exchange = True
        self.weight.register_post_accumulate_grad_hook(self._gradient_is_there)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def forward(self, x: Tensor) -> Tensor:
        self._exchange = self._sync
        self.events += "F" if self._exchange else "f"
        if torch.is_grad_enabled():
            self._held += x.numel() // self.weight.numel()
            self.most_held = max(self.most_held, self._held)
        return x * self.weight

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.events += "z"
        super().zero_grad(set_to_none)

    def _gradient_is_there(self, weight: Tensor) -> None:
        self.events += ("B" if self._sync else "n") if self._exchange else "b"
        self._held = 0
        if self._exchange:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


class SGD(torch.optim.SGD):
    """Gradient descent that tells the model of its steps, and keeps the gradient of each."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model.parameters(), lr=LR)
        self.model, self.gradients = model, []

    def step(self, closure: Any = None) -> None:
        self.model.events += "s"
        grad = self.model.weight.grad
        self.gradients.append(None if grad is None else grad.clone())
        super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.events += "z"
        super().zero_grad(set_to_none)


def squares(model: Any, micro_batch: Tensor) -> Tensor:
    """A loss whose gradient depends on the weights, so that a step too few or too many is seen in all that follow."""
    return (model(micro_batch) - 1).square().mean()


def trained(answer: Callable, weight: Tensor, micro_batches: list[Tensor], window: int) -> dict[str, Any]:
    """One pass over the micro-batches: the weights after it, how often gradients were exchanged, and of how many rows
    activations were held at once.
    """
    model = DistributedDataParallel(weight)
    optimizer = SGD(model)
    answer(model, optimizer, micro_batches, window, squares)
    return {
        "weights": model.weight.detach(),
        "exchanges": model.events.count("B") + model.events.count("n"),
        "held": model.most_held,
        "seen": Aside({"events": model.events, "gradients": optimizer.gradients, "held": model.most_held}),
    }


def gradient(weight: Tensor, micro_batches: list[Tensor]) -> Tensor:
    """Of the mean loss over some micro-batches, computed in one process."""
    weight = weight.clone().requires_grad_()
    loss = sum(squares(lambda x: x * weight, x) for x in micro_batches) / len(micro_batches)
    return torch.autograd.grad(loss, weight)[0]


def trained_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    weight, window = inputs[0][0], inputs[0][2]
    count = len(inputs[0][1])
    for start in range(0, count, window):
        taken = [x for _, micro_batches, _ in inputs for x in micro_batches[start : start + window]]
        weight = weight - LR * gradient(weight, taken)
    rows = max(x.numel() // weight.numel() for x in inputs[0][1])
    return [{"weights": weight, "exchanges": -(-count // window), "held": rows}] * n


def epoch(count: int, window: int) -> Case:
    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, list[Tensor], int]:
        weight = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
        return weight, [random_tensor((ROWS, SIZE), rng, torch.float64) for _ in range(count)], window

    return Case(make, label=f"{count} micro-batches, window {window}")


def large_epoch(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, list[Tensor], int]:
    return torch.ones(LARGE), [random_tensor((1, LARGE), rng) for _ in range(8)], 4


def exchanged_bytes(n: int, rank: int, args: tuple) -> int:
    weight, micro_batches, window = args
    return -(-len(micro_batches) // window) * weight.numel() * weight.element_size()
