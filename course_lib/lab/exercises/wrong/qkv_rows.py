"""Wrong answers to `qkv_rows`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

import torch
from torch import Tensor


def three(weight: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values; right."""
    head_dim = weight.shape[0] // (n_heads + 2 * n_kv_heads)
    return weight.split([n_heads * head_dim, n_kv_heads * head_dim, n_kv_heads * head_dim])


def place(n_kv_heads: int, rank: int, n: int) -> tuple[int, int]:
    """(parts that keys and values are cut into, this rank's); right."""
    parts = min(n, n_kv_heads)
    return parts, rank * parts // n


def plain_chunk(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    return weight.chunk(n)[rank]


def kv_by_query_counts(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    each = weight.shape[0] // (n_heads + 2 * n_kv_heads) * n_heads // n
    return torch.cat([part[rank * each : (rank + 1) * each] for part in three(weight, n_heads, n_kv_heads)])


def every_nth_head(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    head_dim, parts = weight.shape[0] // (n_heads + 2 * n_kv_heads), min(n, n_kv_heads)
    q, k, v = (part.view(-1, head_dim, weight.shape[1]) for part in three(weight, n_heads, n_kv_heads))
    return torch.cat([q[rank::n], k[rank % parts :: parts], v[rank % parts :: parts]]).flatten(0, 1)


def parts_of_every_head(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    head_dim = weight.shape[0] // (n_heads + 2 * n_kv_heads)
    return weight.view(-1, head_dim, weight.shape[1]).chunk(n, 1)[rank].flatten(0, 1)


def kv_heads_in_turn(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    parts = min(n, n_kv_heads)
    return torch.cat([q.chunk(n)[rank], k.chunk(parts)[rank % parts], v.chunk(parts)[rank % parts]])


def kv_heads_cut(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    return torch.cat([part.chunk(n)[rank] for part in three(weight, n_heads, n_kv_heads)])


def all_kv_heads(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    return torch.cat([q.chunk(n)[rank], k, v])


def keys_before_queries(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    parts, mine = place(n_kv_heads, rank, n)
    return torch.cat([k.chunk(parts)[mine], q.chunk(n)[rank], v.chunk(parts)[mine]])


def head_by_head(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    parts, mine = place(n_kv_heads, rank, n)
    count = max(n_kv_heads // n, 1)
    mixed = zip(
        q.chunk(n)[rank].chunk(count), k.chunk(parts)[mine].chunk(count), v.chunk(parts)[mine].chunk(count), strict=True
    )
    return torch.cat([part for three in mixed for part in three])


def keys_for_values(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, _ = three(weight, n_heads, n_kv_heads)
    parts, mine = place(n_kv_heads, rank, n)
    return torch.cat([q.chunk(n)[rank], k.chunk(parts)[mine], k.chunk(parts)[mine]])


def none_where_there_are_few(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    head_dim = weight.shape[0] // (n_heads + 2 * n_kv_heads)
    q, k, v = three(weight, n_heads, n_kv_heads)
    each = n_kv_heads // n * head_dim
    return torch.cat([q.chunk(n)[rank], k[rank * each : (rank + 1) * each], v[rank * each : (rank + 1) * each]])


def one_rank_off(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    parts, mine = place(n_kv_heads, (rank + 1) % n, n)
    return torch.cat([q.chunk(n)[(rank + 1) % n], k.chunk(parts)[mine], v.chunk(parts)[mine]])


def one_kv_head(weight: Tensor, n_heads: int, n_kv_heads: int, rank: int, n: int) -> Tensor:
    q, k, v = three(weight, n_heads, n_kv_heads)
    return torch.cat([q.chunk(n)[rank], k.chunk(n_kv_heads)[rank], v.chunk(n_kv_heads)[rank]])
