"""Wrong answers to `ring_all_gather`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import neighbours, rank_and_size, send_recv


def short(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 2):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def rotated(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[right] = chunk
    for step in range(n - 1):
        send_recv(gathered[(right - step) % n], right, gathered[(right - step - 1) % n], left)
    return gathered.flatten()


def own_chunk_only(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        send_recv(chunk, right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def in_order_of_arrival(chunk: Tensor) -> Tensor:
    _, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[0] = chunk
    for step in range(n - 1):
        send_recv(gathered[step], right, gathered[step + 1], left)
    return gathered.flatten()


def everything(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_zeros(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        incoming = torch.empty_like(gathered)
        send_recv(gathered, right, incoming, left)
        gathered[(left - step) % n] = incoming[(left - step) % n]
    return gathered.flatten()


def wrong_shape(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered


def by_gloo(chunk: Tensor) -> Tensor:
    parts = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, chunk)
    return torch.cat(parts)


def one_step_too_many(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n):
        incoming = torch.empty_like(chunk)
        send_recv(gathered[(rank - step) % n], right, incoming, left)
        gathered[(rank - step - 1) % n] = incoming
    return gathered.flatten()


def without_its_own(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered, passing = chunk.new_empty(n, chunk.numel()), chunk
    for step in range(n - 1):
        passing = send_recv(passing, right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def from_an_empty_row(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered = chunk.new_empty(n, chunk.numel())
    for step in range(n - 1):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()


def into_its_own_row(chunk: Tensor) -> Tensor:
    rank, n = rank_and_size()
    left, right = neighbours()
    gathered, passing = chunk.new_empty(n, chunk.numel()), chunk
    gathered[rank] = chunk
    for _ in range(n - 1):
        incoming = torch.empty_like(chunk)
        send_recv(passing, right, incoming, left)
        gathered[rank] = passing = incoming
    return gathered.flatten()


def to_everybody(chunk: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    rank, n = rank_and_size(group)
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    others = [peer for peer in range(n) if peer != rank]
    works = [dist.irecv(gathered[peer], group=group, group_src=peer) for peer in others]
    works += [dist.isend(chunk, group=group, group_dst=peer) for peer in others]
    for work in works:
        work.wait()
    return gathered.flatten()


def without_group(chunk: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    rank, n = rank_and_size(group)
    left, right = neighbours(group)
    gathered = chunk.new_empty(n, chunk.numel())
    gathered[rank] = chunk
    for step in range(n - 1):
        send_recv(gathered[(rank - step) % n], right, gathered[(rank - step - 1) % n], left)
    return gathered.flatten()
