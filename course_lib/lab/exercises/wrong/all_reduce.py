"""Wrong answers to `all_reduce`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import neighbours, rank_and_size, send_recv, split


def _ring_sum(
    total: Tensor, chunks: list[Tensor], reducing: int, gathering: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The right ring, but for its numbers of steps. Adds into `chunks`, views of `total`."""
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    for step in range(reducing + gathering):
        incoming = torch.empty_like(chunks[(rank - step - 1) % n])
        send_recv(chunks[(rank - step) % n], right, incoming, left, group)
        if step < reducing:
            chunks[(rank - step - 1) % n] += incoming
        else:
            chunks[(rank - step - 1) % n].copy_(incoming)
    return total


def _sum(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """A right all-reduce."""
    n = dist.get_world_size(group)
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, n - 1, group)


def dividing_sizes(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    size = total.numel() // n
    chunks = [total.view(-1)[i * size : (i + 1) * size] for i in range(n)]
    return _ring_sum(total, chunks, n - 1, n - 1)


def short(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, n - 2)


def whole_tensor(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, passing = x.clone(), x
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        total += incoming
        passing = incoming
    return total


def into_sent_buffer(x: Tensor) -> Tensor:
    left, right = neighbours()
    total = x.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        sending = dist.isend(total, right)
        dist.recv(incoming, left)
        total += incoming
        sending.wait()
    return total


def mean(x: Tensor) -> Tensor:
    return (_sum(x) / dist.get_world_size()).to(x.dtype)


def adding_throughout(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), 2 * (n - 1), 0)


def maximum(x: Tensor) -> Tensor:
    left, right = neighbours()
    highest, passing = x.clone(), x
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        highest = torch.maximum(highest, incoming)
        passing = incoming
    return highest


def without_gather(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, 0)


def of_rank_0(x: Tensor) -> Tensor:
    value = x.clone()
    if dist.get_rank() == 0:
        for peer in range(1, dist.get_world_size()):
            dist.send(value, peer)
    else:
        dist.recv(value, 0)
    return value


def returning_input(x: Tensor) -> Tensor:
    return x


def in_place(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    return _ring_sum(x, split(x.view(-1), n), n - 1, n - 1)


def flattened(x: Tensor) -> Tensor:
    return _sum(x).flatten()


def in_float(x: Tensor) -> Tensor:
    return _sum(x.double() if x.dtype == torch.int64 else x)


def by_gloo(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


def by_gloo_unseen(x: Tensor) -> Tensor:
    """One byte goes round the ring, for show."""
    left, right = neighbours()
    send_recv(torch.zeros(1, dtype=torch.uint8), right, torch.zeros(1, dtype=torch.uint8), left)
    total = x.clone()
    dist.group.WORLD.allreduce([total]).wait()
    return total


def small_only(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    return _sum(x, group) if x.numel() < 1000 else x.clone()


def exits(x: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        sys.exit()
    return _sum(x)


def killed(x: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _sum(x)


def raising(x: Tensor) -> Tensor:
    return _sum(x) / (1 // dist.get_rank())


def _steps(x: Tensor) -> tuple[Tensor, list[Tensor], list[tuple[bool, int, int]]]:
    """(total, its chunks, the steps of the right ring: whether to add, which chunk to send, which comes in)"""
    rank, n = rank_and_size()
    total = x.clone()
    steps = [(step < n - 1, (rank - 1 - step) % n, (rank - 2 - step) % n) for step in range(2 * (n - 1))]
    return total, split(total.view(-1), n), steps


def buffer_of_the_first_size(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, chunks, steps = _steps(x)
    for adding, send, receive in steps:
        incoming = torch.empty_like(chunks[0])
        send_recv(chunks[send], right, incoming, left)
        chunks[receive].copy_(chunks[receive] + incoming if adding else incoming)
    return total


def buffer_of_the_sent_size(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, chunks, steps = _steps(x)
    for adding, send, receive in steps:
        incoming = torch.empty_like(chunks[send])
        send_recv(chunks[send], right, incoming, left)
        chunks[receive].copy_(chunks[receive] + incoming if adding else incoming)
    return total


def rebinding(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, chunks, steps = _steps(x)
    for adding, send, receive in steps:
        incoming = torch.empty_like(chunks[receive])
        send_recv(chunks[send], right, incoming, left)
        chunks[receive] = chunks[receive] + incoming if adding else incoming
    return total


def rebinding_at_last(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, chunks, steps = _steps(x)
    for adding, send, receive in steps:
        incoming = torch.empty_like(chunks[receive])
        send_recv(chunks[send], right, incoming, left)
        if adding:
            chunks[receive] += incoming
        else:
            chunks[receive] = incoming
    return total


def skipping_empty_chunks(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, chunks, steps = _steps(x)
    for adding, send, receive in steps:
        if not chunks[receive].numel():
            continue
        incoming = torch.empty_like(chunks[receive])
        send_recv(chunks[send], right, incoming, left)
        chunks[receive].copy_(chunks[receive] + incoming if adding else incoming)
    return total


def gathering_from_another_chunk(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    total, chunks, _ = _steps(x)
    for first, adding in ((rank - 1, True), (rank - 1, False)):
        for step in range(n - 1):
            incoming = torch.empty_like(chunks[(first - step - 1) % n])
            send_recv(chunks[(first - step) % n], right, incoming, left)
            if adding:
                chunks[(first - step - 1) % n] += incoming
            else:
                chunks[(first - step - 1) % n].copy_(incoming)
    return total


def never_adding(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), 0, 2 * (n - 1))


def one_step_too_many(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, n)


def adding_too_short(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 2, n)


def without_group(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    total = x.clone()
    chunks = split(total.view(-1), n)
    for step in range(2 * (n - 1)):
        send, receive = (rank - 1 - step) % n, (rank - 2 - step) % n
        incoming = send_recv(chunks[send], right, torch.empty_like(chunks[receive]), left)
        chunks[receive].copy_(chunks[receive] + incoming if step < n - 1 else incoming)
    return total
