"""Wrong answers to `layer_bytes`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

Bytes = tuple[int, int]


def once(tokens: int, dim: int, n: int, itemsize: int) -> int:
    """What an all-gather or a reduce-scatter of all tokens sends; right."""
    return tokens * dim * itemsize // n * (n - 1)


def right(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    each = once(tokens, dim, n, itemsize)
    return 4 * each, (6 if sequence_parallel else 4) * each


def one_way_of_a_ring(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    forward, backward = right(tokens, dim, n, itemsize, sequence_parallel)
    return forward // 2, backward // 2


def whole_size(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    size = tokens * dim * itemsize
    return 4 * size, (6 if sequence_parallel else 4) * size


def all_others(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    size = tokens * dim * itemsize * (n - 1)
    return 2 * size, (3 if sequence_parallel else 2) * size


def elements(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    return right(tokens, dim, n, 1, sequence_parallel)


def backward_once(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    forward, backward = right(tokens, dim, n, itemsize, sequence_parallel)
    return forward, backward // 2


def nothing_in_backward(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    return 4 * once(tokens, dim, n, itemsize), 0


def backward_as_flops(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    forward, _ = right(tokens, dim, n, itemsize)
    return forward, 2 * forward


def of_all_ranks(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    forward, backward = right(tokens, dim, n, itemsize, sequence_parallel)
    return n * forward, n * backward


def sequence_parallel_doubled(
    tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False
) -> Bytes:
    forward, backward = right(tokens, dim, n, itemsize, sequence_parallel)
    return (2 * forward, 2 * backward) if sequence_parallel else (forward, backward)


def not_gathered_again(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    return right(tokens, dim, n, itemsize)


def gathered_again_once(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    each = once(tokens, dim, n, itemsize)
    return 4 * each, (5 if sequence_parallel else 4) * each


def gathered_again_in_forward(
    tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False
) -> Bytes:
    each = (6 if sequence_parallel else 4) * once(tokens, dim, n, itemsize)
    return each, each


def of_its_own_tokens(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    forward, backward = right(tokens, dim, n, itemsize, sequence_parallel)
    return (forward // n, backward // n) if sequence_parallel else (forward, backward)


def swapped(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    return right(tokens, dim, n, itemsize, sequence_parallel)[::-1]


def three_matrices(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> Bytes:
    each = 6 * once(tokens, dim, n, itemsize)
    return each, each


def one_number(tokens: int, dim: int, n: int, itemsize: int = 4, sequence_parallel: bool = False) -> int:
    return sum(right(tokens, dim, n, itemsize, sequence_parallel))
