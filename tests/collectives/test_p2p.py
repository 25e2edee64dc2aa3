"""Cutting a tensor into chunks: the arithmetic that every ring rests on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.collectives.p2p import chunk_bounds, equal_chunks, split

NUMEL, RANKS = st.integers(0, 10_000), st.integers(1, 64)


@given(NUMEL, RANKS)
def test_chunks_cover_every_element_once_in_order(numel, n):
    bounds = chunk_bounds(numel, n)
    assert len(bounds) == n
    assert [i for start, end in bounds for i in range(start, end)] == list(range(numel))


@given(NUMEL, RANKS)
def test_chunks_differ_by_one_element_at_most_and_the_longer_ones_come_first(numel, n):
    sizes = [end - start for start, end in chunk_bounds(numel, n)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_bounds_by_hand():
    assert chunk_bounds(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert chunk_bounds(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]
    assert chunk_bounds(0, 2) == [(0, 0), (0, 0)]


def test_split_gives_views():
    x = torch.arange(5)
    split(x, 2)[1].zero_()
    assert x.tolist() == [0, 1, 2, 0, 0]


def test_equal_chunks_says_which_lengths_would_do():
    assert equal_chunks(torch.arange(6), 3).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="10 elements cannot be cut into 4 equal.*pad x to 12 elements or pass 8"):
        equal_chunks(torch.arange(10), 4)
