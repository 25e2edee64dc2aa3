"""Lab 2b: what the check of `run_stage` runs: a stage that notes what is done with it, and the same in one process."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.lab.evidence import Aside
from course_lib.lab.exercise import Astray, Case, random_tensor
from course_lib.parallel.pipeline.simple import gpipe_order, one_f_one_b_order
from course_lib.spmd.record import installed
from course_lib.spmd.report import Op
from course_lib.timeline import span

DIM = 3
PACE_S = 0.003  # a forward of the timed stage; its backward takes twice that
TIMED = 8  # micro-batches of the timed call

FEW = 2  # micro-batches
WAYS = "an output goes to the next rank, a gradient to the one before"

Order = list[tuple[str, int]]


class Stage(nn.Module):
    """y = tanh(x W). events: what happened to it, "F0" for a forward of the micro-batch that is due, "B0" for the
    backward of that one. kept: the most micro-batches whose input was still in memory, though their backward was done.

    rank, n: of this stage, set before it runs. given: on the ranks after the first, what `inputs` holds, and memory,
    where it lies.
    """

    def __init__(self, weight: Tensor, order: Order) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.events: list[str] = []
        self.kept = 0
        self.rank, self.n = 0, 1
        self.given: Sequence[Tensor] = ()
        self.memory: set[int] = set()
        self._due = [mb for kind, mb in order if kind == "F"]
        self._done: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.look()
        self._input_is_received(x)
        at = self.ran("F")
        mb = self._due[at] if at < len(self._due) else -1
        self.events.append(f"F{mb}")
        y = torch.tanh(x @ self.weight)
        if y.requires_grad:
            of = weakref.ref(x)
            y.register_hook(lambda grad: self._backward(grad, mb, of))
        return y

    def ran(self, kind: str) -> int:
        """How many forwards or backwards there were so far."""
        return sum(event[0] == kind for event in self.events)

    def _backward(self, grad: Tensor, mb: int, x: weakref.ref[Tensor]) -> None:
        self.look()
        if self.rank < self.n - 1 and bool((grad == 1).all()):
            raise Astray(f"starts its backward from ones: the gradient of its output comes from rank {self.rank + 1}")
        self.events.append(f"B{mb}")
        self._done.append(x)

    def look(self) -> None:
        """Count what is kept. A few may still stand in variables of the loop."""
        if self._alive() > FEW:
            gc.collect()
        if (alive := self._alive()) > FEW:
            self.kept = max(self.kept, alive)

    def _alive(self) -> int:
        return sum(x() is not None for x in self._done)

    def _input_is_received(self, x: Tensor) -> None:
        if not self.rank:
            return
        before = self.rank - 1
        if x.data_ptr() in self.memory:
            raise Astray("receives into a tensor of `inputs`, which are the caller's: `receive` makes one")
        if any(x.shape == given.shape and bool((x == given).all()) for given in self.given):
            raise Astray(
                f"gives its stage a tensor of `inputs`. That has only the shape of what is to be received from rank "
                f"{before}"
            )
        if not x.requires_grad:
            raise Astray(
                "gives its stage an input that wants no gradient, so there will be none to send back to rank "
                f"{before}. What is received has no past: `requires_grad_()`"
            )


class PacedStage(Stage):
    """The same, taking the time it is told to, and no processor: four devices on any machine. It is on the timeline."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_Pace.apply(x, self.weight))


class _Pace(Function):
    """The identity, which takes its time both ways. weight is there so that backward always comes by."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        with span("forward"):
            time.sleep(PACE_S)
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        with span("backward"):
            time.sleep(2 * PACE_S)
        return grad, None


@dataclass
class Losses:
    """loss_of, for the last rank alone."""

    targets: Sequence[Tensor]
    rank: int
    n: int

    def __call__(self, y: Tensor, i: int) -> Tensor:
        if self.rank < self.n - 1:
            raise Astray(f"calls `loss_of`, and is not the last: its output goes to rank {self.rank + 1}")
        return share(y, self.targets, i)


class Line:
    """Sees to it that messages go along the line of stages: an output to the next rank, a gradient to the one before.

    A watcher of the recorder. A receive may be asked for early, so only its rank counts; a send has something to send.
    """

    def __init__(self, stage: Stage, members: list[int]) -> None:
        self.stage, self._members, self._sent = stage, members, {1: 0, -1: 0}

    def begins(self, op: Op, tensor: Any) -> None:
        if not op.point_to_point or op.peer not in self._members:
            return
        rank, n, peer = self.stage.rank, self.stage.n, self._members.index(op.peer)
        send, step = "send" in op.name, peer - rank
        if not send and step not in self._sent:
            why = {0: "the first rank's input is in `inputs`", n - 1: "the last rank's backward starts at its loss"}
            raise Astray(f"waits for rank {peer}, which is no neighbour: {why.get(rank, 'a pipeline is a line')}")
        if send and step not in self._sent:
            raise Astray(f"sends to rank {peer}, which is no neighbour: {WAYS}")
        if send:
            self._sent[step] += 1
            kind, what = ("F", "forward") if step == 1 else ("B", "backward")
            count, ran = self._sent[step], self.stage.ran(kind)
            if count > ran:
                raise Astray(f"sends rank {peer} message {count} after {ran} {what}{'s' * (ran != 1)}: {WAYS}")

    def ended(self, op: Op) -> None:
        pass


@contextmanager
def in_line(stage: Stage, group: dist.ProcessGroup | None) -> Iterator[None]:
    line, recorder = Line(stage, dist.get_process_group_ranks(group or dist.group.WORLD)), installed()
    recorder.watchers.append(line)
    try:
        yield
    finally:
        recorder.watchers.remove(line)


def share(y: Tensor, targets: Sequence[Tensor], i: int) -> Tensor:
    """The loss of a micro-batch: its share of the mean over all rows, which differ in number by micro-batch."""
    return (y - targets[i]).square().sum() / sum(map(len, targets))


def ran(
    answer: Callable,
    build: Callable[[Tensor, Order], Stage],
    weight: Tensor,
    order: Order,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    **group: Any,
) -> dict[str, Any]:
    """One step of a rank: its losses, the gradient of its stage, what it did in which order, and what it keeps."""
    stage = build(weight, order)
    stage.rank, stage.n = dist.get_rank(group.get("group")), dist.get_world_size(group.get("group"))
    rank, last = stage.rank, stage.rank == stage.n - 1
    if rank:
        stage.given, stage.memory = [x.clone() for x in inputs], {x.data_ptr() for x in inputs}
    with in_line(stage, group.get("group")):
        found = answer(stage, list(order), list(inputs), Losses(targets, rank, stage.n), **group)
    stage.look()
    return {
        "losses": as_numbers(found, last),
        "gradient": stage.weight.grad,
        "order": " ".join(stage.events),
        "kept": stage.kept if rank else 0,  # the first rank's inputs are the caller's: it cannot let them go
        "seen": Aside({"events": stage.events, "kept": stage.kept}),
    }


def as_numbers(found: Any, last: bool) -> Any:
    """Losses as a tensor, be they tensors or numbers; where there should be none, None is as good as []."""
    if isinstance(found, Tensor):
        found = list(found) if found.dim() else found
    if not isinstance(found, list | tuple) or not all(isinstance(x, Tensor | float | int) for x in found):
        return found if last or found is not None else torch.empty(0, dtype=torch.float64)
    return torch.tensor([float(x) for x in found], dtype=torch.float64)


def in_one_process(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    losses, gradients = losses_and_gradients(inputs, [i for kind, i in inputs[-1][2] if kind == "F"])
    return [
        {
            "losses": losses if rank == n - 1 else losses[:0],
            "gradient": gradients[rank],
            "order": " ".join(f"{kind}{i}" for kind, i in inputs[rank][2]),
            "kept": 0,
        }
        for rank in range(n)
    ]


def losses_and_gradients(inputs: list[tuple], micro_batches: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Of these micro-batches, in one process: the losses, and the gradient of each stage. inputs: what `ran` gets."""
    weights = [args[1].clone().requires_grad_() for args in inputs]
    losses = []
    for i in micro_batches:
        x = inputs[0][3][i]
        for weight in weights:
            x = torch.tanh(x @ weight)
        losses.append(share(x, inputs[-1][4], i))
    return torch.stack(losses).detach(), torch.autograd.grad(sum(losses), weights)


def step(label: str, order_of: Callable[[int, int, int], Order], m: int, uneven: bool = True) -> Case:
    """A case: m micro-batches. uneven: of 1 to 3 rows, and each stage makes its input a number wider."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        width = [DIM + r * uneven for r in range(n + 1)]
        rows = [1 + i % 3 if uneven else 2 for i in range(m)]
        weight = random_tensor((width[rank], width[rank + 1]), rng, torch.float64) / 2
        inputs = [random_tensor((count, width[rank]), rng, torch.float64) for count in rows]
        targets = [random_tensor((count, width[n]), rng, torch.float64) for count in rows]
        return Stage, weight, order_of(rank, n, m), inputs, targets

    return Case(make, label=label)


def newest_first(rank: int, n: int, m: int) -> Order:
    """GPipe as its paper draws it: the last micro-batch is the first to go back."""
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def one_more_under_way(rank: int, n: int, m: int) -> Order:
    """1F1B with a warm-up that is one forward longer on all ranks but the last."""
    return one_f_one_b_order(rank, n + (rank < n - 1), m)


CASES = [
    step("1F1B, 6 micro-batches", one_f_one_b_order, 6, uneven=False),
    step("GPipe, 3 micro-batches of different sizes", gpipe_order, 3),
    step("1F1B, 1 micro-batch", one_f_one_b_order, 1),
    step("GPipe with backward from the newest to the oldest, 4 micro-batches", newest_first, 4, uneven=False),
    step("1F1B with one forward more under way, micro-batches of different sizes", one_more_under_way, 5),
]


def timed(rank: int, n: int, rng: torch.Generator) -> tuple:
    _, *args = step("", one_f_one_b_order, TIMED, uneven=False).make(rank, n, rng)
    return PacedStage, *args


def sent_bytes(n: int, rank: int, args: tuple) -> int:
    """What a rank must send: its output to the next rank, the gradient of its input to the one before."""
    _, weight, order, inputs, _ = args
    rows = sum(len(inputs[i]) for kind, i in order if kind == "F")
    numbers = weight.shape[1] * (rank < n - 1) + weight.shape[0] * (rank > 0)
    return rows * numbers * inputs[0].element_size()
