"""Wrong answers to `bf16_compress`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def cast_after_the_sum(flat: Tensor, group: Group = None) -> Callable[[], None]:
    work = dist.all_reduce(flat, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_((flat / dist.get_world_size(group)).to(torch.bfloat16))

    return finish


def not_asynchronous(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    dist.all_reduce(half, group=group)
    return lambda: flat.copy_(half)


def waiting_at_once(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)
    work.wait()
    return lambda: flat.copy_(half)


def starting_in_finish(flat: Tensor, group: Group = None) -> Callable[[], None]:
    def finish() -> None:
        half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
        dist.all_reduce(half, group=group)
        flat.copy_(half)

    return finish


def never_written_back(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()

    return finish


def rebinding(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat = half.float()  # noqa: F841

    return finish


def sums(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = flat.to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_(half)

    return finish


def never_waiting(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    dist.all_reduce(half, group=group, async_op=True)
    return lambda: flat.copy_(half)


def in_float16(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).half()
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_(half)

    return finish


def returning_the_work(flat: Tensor, group: Group = None) -> dist.Work:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    return dist.all_reduce(half, group=group, async_op=True)


def calling_finish(flat: Tensor, group: Group = None) -> None:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    work = dist.all_reduce(half, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_(half)

    return finish()


def without_group(flat: Tensor, group: Group = None) -> Callable[[], None]:
    half = (flat / dist.get_world_size(group)).to(torch.bfloat16)
    work = dist.all_reduce(half, async_op=True)

    def finish() -> None:
        work.wait()
        flat.copy_(half)

    return finish
