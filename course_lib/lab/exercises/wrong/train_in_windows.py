"""Wrong answers to `train_in_windows`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

Optimizer = torch.optim.Optimizer


def windows(micro_batches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return [micro_batches[start : start + window] for start in range(0, len(micro_batches), window)]


def exchange_for_each(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for micro_batch in taken:
            (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()
        optimizer.zero_grad()


def backward_alone(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            loss = loss_of(model, micro_batch) / len(taken)
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def never_synchronised(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        with model.no_sync():
            for micro_batch in taken:
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()
        optimizer.zero_grad()


def first_in_place_of_last(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == 0 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()
        optimizer.zero_grad()


def rest_dropped(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        if len(taken) < window:
            break
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == window - 1 else model.no_sync():
                (loss_of(model, micro_batch) / window).backward()
        optimizer.step()
        optimizer.zero_grad()


def rest_left_in_the_gradients(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for i, micro_batch in enumerate(micro_batches):
        last = (i + 1) % window == 0
        with nullcontext() if last else model.no_sync():
            (loss_of(model, micro_batch) / window).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def rest_not_exchanged(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == window - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()
        optimizer.zero_grad()


def not_divided(model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                loss_of(model, micro_batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def rest_divided_by_window(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / window).backward()
        optimizer.step()
        optimizer.zero_grad()


def divided_by_all(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()


def without_zero_grad(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()


def zero_grad_each_time(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            optimizer.zero_grad()
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.step()


def step_each_time(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for micro_batch in micro_batches:
        loss_of(model, micro_batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def step_at_the_first(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for i, micro_batch in enumerate(micro_batches):
        last = i % window == 0 or i == len(micro_batches) - 1
        with nullcontext() if last else model.no_sync():
            (loss_of(model, micro_batch) / window).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def one_step_in_all(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for i, micro_batch in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (loss_of(model, micro_batch) / window).backward()
    optimizer.step()
    optimizer.zero_grad()


def without_step(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.zero_grad()


def zero_grad_before_step(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken)).backward()
        optimizer.zero_grad()
        optimizer.step()


def forward_alone(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        for micro_batch in taken:
            with model.no_sync():
                loss = loss_of(model, micro_batch) / len(taken)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def averaged_by_hand_too(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    import torch.distributed as dist

    for taken in windows(micro_batches, window):
        for i, micro_batch in enumerate(taken):
            with nullcontext() if i == len(taken) - 1 else model.no_sync():
                (loss_of(model, micro_batch) / len(taken) / dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_backward_a_window(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        torch.stack([loss_of(model, micro_batch) for micro_batch in taken]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def one_large_batch(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        loss_of(model, torch.cat(list(taken))).backward()
        optimizer.step()
        optimizer.zero_grad()


def all_forwards_first(
    model: Any, optimizer: Optimizer, micro_batches: Sequence[Any], window: int, loss_of: Callable
) -> None:
    for taken in windows(micro_batches, window):
        with model.no_sync():
            losses = [loss_of(model, micro_batch) / len(taken) for micro_batch in taken[:-1]]
            for loss in losses:
                loss.backward()
        (loss_of(model, taken[-1]) / len(taken)).backward()
        optimizer.step()
        optimizer.zero_grad()
