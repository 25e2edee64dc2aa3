"""Wrong answers to `all_reduce`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import neighbours, rank_and_size, send_recv, split


def _ring_sum(total: Tensor, chunks: list[Tensor], reducing: int, gathering: int) -> Tensor:
    """The right ring, but for its numbers of steps. Adds into `chunks`, views of `total`."""
    rank, n = rank_and_size()
    left, right = neighbours()
    for step in range(reducing + gathering):
        incoming = torch.empty_like(chunks[(rank - step - 1) % n])
        send_recv(chunks[(rank - step) % n], right, incoming, left)
        if step < reducing:
            chunks[(rank - step - 1) % n] += incoming
        else:
            chunks[(rank - step - 1) % n].copy_(incoming)
    return total


def _sum(x: Tensor) -> Tensor:
    """A right all-reduce."""
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, n - 1)


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
