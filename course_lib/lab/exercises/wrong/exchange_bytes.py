"""Wrong answers to `exchange_bytes`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

Bytes = tuple[int, int]


def way(tokens: int, dim: int, top_k: int, n: int, itemsize: int) -> int:
    """One way, as it should be."""
    return tokens * top_k // n * (n - 1) * dim * itemsize


def one_way(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    there = way(tokens, dim, top_k, n, itemsize)
    return there, there


def without_k(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * tokens * (n - 1) * dim * itemsize // n
    return total, total


def one_way_without_k(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    there = tokens * (n - 1) * dim * itemsize // n
    return there, there


def with_its_own(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * tokens * top_k * dim * itemsize
    return total, total


def to_one_rank(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * tokens * top_k // n * dim * itemsize
    return total, total


def all_to_each(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * tokens * top_k * (n - 1) * dim * itemsize
    return total, total


def numbers(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * way(tokens, dim, top_k, n, 1)
    return total, total


def rows_of_one(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * way(tokens, 1, top_k, n, itemsize)
    return total, total


def with_backward(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 4 * way(tokens, dim, top_k, n, itemsize)
    return total, total


def backward_twice(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    total = 2 * way(tokens, dim, top_k, n, itemsize)
    return total, 2 * total


def backward_half(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    there = way(tokens, dim, top_k, n, itemsize)
    return 2 * there, there


def no_backward(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> Bytes:
    return 2 * way(tokens, dim, top_k, n, itemsize), 0


def added_up(tokens: int, dim: int, top_k: int, n: int, itemsize: int = 4) -> int:
    return 4 * way(tokens, dim, top_k, n, itemsize)
