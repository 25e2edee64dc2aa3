"""Lab 1: how an answer to `backward_with_overlap` is run, and what is seen of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter

from course_lib.lab import calls
from course_lib.lab.evidence import Aside
from course_lib.lab.exercise import Case, random_tensor
from course_lib.lab.written import file_of
from course_lib.parallel.data.buckets import make_bucket
from course_lib.timeline import span, spans

LATE_S = 0.02
LAYERS, WIDTH, ROWS = 6, 512, 256  # of the timed model: a millisecond or more of backward for each layer

Built = tuple[list[Parameter], Callable[[], Tensor]]  # a model's parameters, and its forward, which returns the loss


def terms(shares: Sequence[Tensor], order: Sequence[int], late: bool) -> Built:
    """A loss of one term for each parameter, whose gradient is its share. order: in which the terms are computed.

    Backward takes the last one first. late: it begins a little later than on other ranks.
    """
    parameters = [Parameter(torch.zeros_like(share)) for share in shares]

    def forward() -> Tensor:
        loss = torch.zeros((), dtype=shares[0].dtype)
        for i in order:
            loss = loss + (parameters[i] * shares[i]).sum()
        if late:
            loss.register_hook(lambda grad: time.sleep(LATE_S))
        return loss

    return parameters, forward


def chain(x: Tensor) -> Built:
    """A chain of layers, each a matrix product. What backward does for each is on the timeline."""
    parameters = [Parameter(torch.eye(x.shape[1])) for _ in range(LAYERS)]
    began = [0]

    def layer_done(_: Any = None) -> None:
        now = time.monotonic_ns()
        if began[0]:
            spans.record("backward", began[0], now)
        began[0] = now

    # The first layer's input has no gradient whose coming would tell that this layer is done.
    parameters[0].register_post_accumulate_grad_hook(layer_done)

    def forward() -> Tensor:
        with span("forward"):
            out = x
            for p in parameters:
                out = out @ p
                out.register_hook(layer_done)
            return out.square().mean()

    return parameters, forward


def reduced(answer: Callable, build: Callable, layout: list[list[int]], *args: Any, **group: Any) -> dict[str, Any]:
    """The buckets after the answer, and when it launched what. layout: the parameters of each bucket."""
    parameters, forward = build(*args)
    buckets = [make_bucket([parameters[i] for i in indices]) for indices in layout]
    there: dict[int, int] = {}  # by parameter, when its gradient came
    ended: list[int] = []
    file = file_of(answer)
    with calls.record(file) as log:

        def comes(i: int) -> None:
            if not there:
                Variable._execution_engine.queue_callback(lambda: ended.append(log.tick()))
            there[i] = log.tick()

        for i, p in enumerate(parameters):
            p.register_post_accumulate_grad_hook(lambda _, i=i: comes(i))
        answer(forward(), buckets, **group)
    end = ended[0] if ended else 0
    memory = [bucket.flat.data_ptr() for bucket in buckets]
    launched = [memory.index(call.memory) if call.memory in memory else None for call in log.collectives]
    early = [
        (index, sum(there.get(i, log.now) < call.begun for i in layout[index]))
        for index, call in zip(launched, log.collectives, strict=True)
        if index is not None and any(there.get(i, log.now) > call.begun for i in layout[index])
    ]
    waits = [call.line for call in log.collectives if call.ended is not None and call.ended < end]
    found: dict[str, Any] = {f"bucket {i}": bucket.flat for i, bucket in enumerate(buckets)}
    return found | {
        "all-reduces": len(log.collectives),
        "launched too early": len(early),
        "waits in backward": bool(waits),
        "launched in backward": sum(call.begun < end for call in log.collectives),
        "seen": Aside({"launched": launched, "early": early, "waits": waits, "backward": bool(there)}),
    }


def reduced_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    _, layout, shares, *_ = inputs[0]
    means = [sum(args[2][i] for args in inputs) / n for i in range(len(shares))]
    found: dict[str, Any] = {
        f"bucket {b}": torch.cat([means[i].flatten() for i in indices]) for b, indices in enumerate(layout)
    }
    return [
        found
        | {
            "all-reduces": len(layout),
            "launched too early": 0,
            "waits in backward": False,
            "launched in backward": len(layout),
        }
    ] * n


def gradients(
    label: str,
    sizes: Sequence[int],
    layout: list[list[int]],
    order: Callable[[int], list[int]] | None = None,
    late: bool = False,
) -> Case:
    """order(rank): in which the terms of the loss are computed; None: as they are numbered. late: on the last rank."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        shares = [random_tensor((size,), rng) for size in sizes]
        return terms, layout, shares, order(rank) if order else list(range(len(sizes))), late and rank == n - 1

    return Case(make, label=label)


def step_bytes(n: int, rank: int, args: tuple) -> int:
    if args[0] is chain:
        return LAYERS * WIDTH * WIDTH * 4
    return sum(share.numel() * 4 for share in args[2])


def large(rank: int, n: int, rng: torch.Generator) -> tuple:
    """The timed input: a bucket for each layer of the chain."""
    return chain, [[i] for i in reversed(range(LAYERS))], random_tensor((ROWS, WIDTH), rng)
