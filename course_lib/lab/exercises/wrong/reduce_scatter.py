"""Wrong answers to `ring_reduce_scatter`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import simple
from course_lib.collectives.p2p import equal_chunks, neighbours, rank_and_size, send_recv


def _ring_reduce(x: Tensor, first: int, steps: int) -> Tensor:
    """The right ring, but for the chunk it starts with and the number of its steps."""
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[first].clone()
    for step in range(1, steps + 1):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial = incoming + chunks[(first - step) % n]
    return partial


def off_by_one(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, rank, n - 1)


def short(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, (rank - 2) % n, n - 2)


def whole_tensor(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    total, passing = x.clone(), x
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        total += incoming
        passing = incoming
    return equal_chunks(total, n)[rank]


def into_sent_buffer(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        sending = dist.isend(partial, right)
        dist.recv(incoming, left)
        partial.copy_(incoming + chunks[(left - step) % n])
        sending.wait()
    return partial


def never_waiting(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial, kept = chunks[left].clone(), []
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        kept.append(dist.isend(partial, right))
        dist.recv(incoming, left)
        partial = incoming + chunks[(left - step) % n]
    return partial


def send_send(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        dist.send(partial, right)
        dist.recv(incoming, left)
        partial = incoming + chunks[(left - step) % n]
    return partial


def returning_input(x: Tensor) -> Tensor:
    return x


def own_chunk(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return equal_chunks(x, n)[rank].clone()


def mean(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return (_ring_reduce(x, (rank - 1) % n, n - 1) / n).to(x.dtype)


def own_chunk_again(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    mine = equal_chunks(x, n)[rank]
    partial = mine.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial = incoming + mine
    return partial


def in_place(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)  # views of x
    for step in range(1, n):
        incoming = torch.empty_like(chunks[0])
        send_recv(chunks[(left - step + 1) % n], right, incoming, left)
        chunks[(left - step) % n] += incoming
    return chunks[(left + 1) % n].clone()


def without_return(x: Tensor) -> None:
    rank, n = rank_and_size()
    _ring_reduce(x, (rank - 1) % n, n - 1)


def by_gloo(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    total = x.clone()
    dist.all_reduce(total)
    return equal_chunks(total, n)[rank]


def by_library(x: Tensor) -> Tensor:
    return simple.ring_reduce_scatter(x)


def endless(x: Tensor) -> Tensor:
    step = 0
    while step < dist.get_world_size():
        pass
    return x


def leftover_raise(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    chunks = equal_chunks(x, n).clone()
    chunks += 1
    # YOUR CODE (about 5 lines)
    raise NotImplementedError


def one_step_too_many(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, (rank - 1) % n, n)


def three_steps(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, (rank - 1) % n, 3)


def own_share_in_each_message(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    total = chunks[rank].clone()
    for _ in range(1, n):
        incoming = torch.empty_like(total)
        send_recv(chunks[rank], right, incoming, left)
        total += incoming
    return total


def into_its_input(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left]
    for _ in range(1, n):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial += incoming
    return partial


def never_adding(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    partial = equal_chunks(x, n)[left].clone()
    for _ in range(1, n):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial = incoming
    return partial


def to_the_left(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        send_recv(partial, left, incoming, right)
        partial = incoming + chunks[(left - step) % n]
    return partial


def another_row(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n).clone()
    for step in range(1, n):
        incoming = torch.empty_like(chunks[0])
        send_recv(chunks[(rank - step) % n], right, incoming, left)
        chunks[(rank - step - 1) % n] += incoming
    return chunks[right]


def from_the_right(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        sending = dist.isend(partial, right)
        dist.recv(incoming, right)
        sending.wait()
        partial = incoming + chunks[(left - step) % n]
    return partial


def in_one_tensor(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        send_recv(partial, right, partial, left)
        partial += chunks[(left - step) % n]
    return partial


def arguments_in_another_order(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    partial = equal_chunks(x, n)[left].clone()
    incoming = torch.empty_like(partial)
    send_recv(partial, incoming, right, left)
    return incoming


def without_stepping(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    partial, step = equal_chunks(x, n)[left].clone(), 1
    while step < n:
        send_recv(partial, right, torch.empty_like(partial), left)
    return partial


def without_group(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    _, n = rank_and_size(group)
    left, right = neighbours(group)
    chunks = equal_chunks(x, n)
    partial = chunks[left].clone()
    for step in range(1, n):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial = incoming + chunks[(left - step) % n]
    return partial
