"""Wrong answers to Lab 0, each with one mistake. `exercises/lab0.py` says how each must be explained."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import simple
from course_lib.collectives.p2p import equal_chunks, neighbours, rank_and_size, send_recv, split

# Broadcast


def _tree(x: Tensor, place: int, rounds_for: int, last: int) -> Tensor:
    """The right tree, but for the numbers it is given. last: one more than the last place there is said to be."""
    rank, n = rank_and_size()
    distance = 1
    while distance < rounds_for:
        if place < distance and place + distance < last:
            dist.send(x, (rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(x, (rank - distance) % n)
        distance *= 2
    return x


def broadcast_ignoring_root(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, rank, n, n)


def broadcast_one_round_short(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, (rank - root) % n, n / 2, n)


def broadcast_without_bound(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    return _tree(x, (rank - root) % n, n, 2 * n)


def broadcast_by_root_alone(x: Tensor, root: int = 0) -> Tensor:
    rank, n = rank_and_size()
    if rank != root:
        dist.recv(x, root)
        return x
    for peer in range(n):
        if peer != root:
            dist.send(x, peer)
    return x


def broadcast_all_receive(x: Tensor, root: int = 0) -> Tensor:
    left, right = neighbours()
    dist.recv(x, left)
    dist.send(x, right)
    return x


def broadcast_returning_input(x: Tensor, root: int = 0) -> Tensor:
    return x


def broadcast_by_gloo(x: Tensor, root: int = 0) -> Tensor:
    dist.broadcast(x, root)
    return x


# Ring reduce-scatter


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


def reduce_scatter_off_by_one(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, rank, n - 1)


def reduce_scatter_short(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return _ring_reduce(x, (rank - 2) % n, n - 2)


def reduce_scatter_whole_tensor(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    total, passing = x.clone(), x
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        total += incoming
        passing = incoming
    return equal_chunks(total, n)[rank]


def reduce_scatter_into_sent_buffer(x: Tensor) -> Tensor:
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


def reduce_scatter_never_waiting(x: Tensor) -> Tensor:
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


def reduce_scatter_send_send(x: Tensor) -> Tensor:
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


def reduce_scatter_returning_input(x: Tensor) -> Tensor:
    return x


def reduce_scatter_own_chunk(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return equal_chunks(x, n)[rank].clone()


def reduce_scatter_mean(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    return (_ring_reduce(x, (rank - 1) % n, n - 1) / n).to(x.dtype)


def reduce_scatter_own_chunk_again(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    mine = equal_chunks(x, n)[rank]
    partial = mine.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(partial)
        send_recv(partial, right, incoming, left)
        partial = incoming + mine
    return partial


def reduce_scatter_in_place(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    chunks = equal_chunks(x, n)  # views of x
    for step in range(1, n):
        incoming = torch.empty_like(chunks[0])
        send_recv(chunks[(left - step + 1) % n], right, incoming, left)
        chunks[(left - step) % n] += incoming
    return chunks[(left + 1) % n].clone()


def reduce_scatter_without_return(x: Tensor) -> None:
    rank, n = rank_and_size()
    _ring_reduce(x, (rank - 1) % n, n - 1)


def reduce_scatter_by_gloo(x: Tensor) -> Tensor:
    rank, n = rank_and_size()
    total = x.clone()
    dist.all_reduce(total)
    return equal_chunks(total, n)[rank]


def reduce_scatter_by_library(x: Tensor) -> Tensor:
    return simple.ring_reduce_scatter(x)


def reduce_scatter_endless(x: Tensor) -> Tensor:
    step = 0
    while step < dist.get_world_size():
        pass
    return x


def reduce_scatter_leftover_raise(x: Tensor) -> Tensor:
    _, n = rank_and_size()
    chunks = equal_chunks(x, n).clone()
    chunks += 1
    # YOUR CODE (about 5 lines)
    raise NotImplementedError


# Ring all-gather


def all_gather_short(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 2):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def all_gather_rotated(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[right] = chunk
    for step in range(n - 1):
        send_recv(gathered[(right - step) % n], right, gathered[(right - step - 1) % n], left)
    return gathered.flatten()


def all_gather_own_chunk_only(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        send_recv(chunk, right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def all_gather_in_order_of_arrival(chunk: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[0] = chunk
    for step in range(n - 1):
        send_recv(gathered[step], right, gathered[step + 1], left)
    return gathered.flatten()


def all_gather_everything(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_zeros(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        incoming = torch.empty_like(gathered)
        send_recv(gathered, right, incoming, left)
        gathered[(left - step) % n] = incoming[(left - step) % n]
    return gathered.flatten()


def all_gather_wrong_shape(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered


def all_gather_by_gloo(chunk: Tensor) -> Tensor:
    parts = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, chunk)
    return torch.cat(parts)


# All-reduce


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


def all_reduce_dividing_sizes(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    size = total.numel() // n
    chunks = [total.view(-1)[i * size : (i + 1) * size] for i in range(n)]
    return _ring_sum(total, chunks, n - 1, n - 1)


def all_reduce_short(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, n - 2)


def all_reduce_whole_tensor(x: Tensor) -> Tensor:
    left, right = neighbours()
    total, passing = x.clone(), x
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        total += incoming
        passing = incoming
    return total


def all_reduce_into_sent_buffer(x: Tensor) -> Tensor:
    left, right = neighbours()
    total = x.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        sending = dist.isend(total, right)
        dist.recv(incoming, left)
        total += incoming
        sending.wait()
    return total


def all_reduce_mean(x: Tensor) -> Tensor:
    return (_sum(x) / dist.get_world_size()).to(x.dtype)


def all_reduce_adding_throughout(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), 2 * (n - 1), 0)


def all_reduce_max(x: Tensor) -> Tensor:
    left, right = neighbours()
    highest, passing = x.clone(), x
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        send_recv(passing, right, incoming, left)
        highest = torch.maximum(highest, incoming)
        passing = incoming
    return highest


def all_reduce_without_gather(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    total = x.clone()
    return _ring_sum(total, split(total.view(-1), n), n - 1, 0)


def all_reduce_of_rank_0(x: Tensor) -> Tensor:
    value = x.clone()
    if dist.get_rank() == 0:
        for peer in range(1, dist.get_world_size()):
            dist.send(value, peer)
    else:
        dist.recv(value, 0)
    return value


def all_reduce_returning_input(x: Tensor) -> Tensor:
    return x


def all_reduce_in_place(x: Tensor) -> Tensor:
    n = dist.get_world_size()
    return _ring_sum(x, split(x.view(-1), n), n - 1, n - 1)


def all_reduce_flattened(x: Tensor) -> Tensor:
    return _sum(x).flatten()


def all_reduce_in_float(x: Tensor) -> Tensor:
    return _sum(x.double() if x.dtype == torch.int64 else x)


def all_reduce_by_gloo(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


def all_reduce_exit(x: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        sys.exit()
    return _sum(x)


def all_reduce_killed(x: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _sum(x)


def all_reduce_raising(x: Tensor) -> Tensor:
    return _sum(x) / (1 // dist.get_rank())
