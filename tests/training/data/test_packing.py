"""Packed sequences against a slow version that goes token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.training.data import Packed
from course_lib.training.loss import IGNORE

END = 9


def slow(stream: list[int], seq_len: int) -> list[tuple[list[int], list[int], list[int]]]:
    """(tokens, labels, documents) of each sequence."""
    sequences = []
    for start in range(0, len(stream) - seq_len, seq_len):
        tokens, labels, documents, number = [], [], [], 0
        for at in range(start, start + seq_len):
            tokens.append(stream[at])
            documents.append(number)
            if stream[at] == END:
                labels.append(IGNORE)
                number += 1
            else:
                labels.append(stream[at + 1])
        sequences.append((tokens, labels, documents))
    return sequences


STREAMS = st.lists(st.lists(st.integers(0, 8), max_size=6), min_size=1, max_size=12).map(
    lambda documents: [token for document in documents for token in [*document, END]]
)


@given(STREAMS, st.integers(1, 12))
def test_as_token_by_token(stream, seq_len):
    expected = slow(stream, seq_len)
    if not expected:
        with pytest.raises(ValueError, match=rf"There are {len(stream)} tokens, one sequence takes seq_len \+ 1 = "):
            Packed(np.array(stream, np.uint16), END, seq_len)
        return
    packed = Packed(np.array(stream, np.uint16), END, seq_len)
    assert len(packed) == len(expected)
    batch = packed.batch(range(len(packed)))
    assert [tuple(rows) for rows in zip(*(x.tolist() for x in batch), strict=True)] == expected
    assert all(x.dtype == torch.int64 and x.shape == (len(packed), seq_len) and x.is_contiguous() for x in batch)


@given(STREAMS, st.integers(1, 12))
def test_every_token_is_a_label_once(stream, seq_len):
    """Except for the first one, those that begin a document, and the rest at the end that fills no sequence."""
    if len(stream) <= seq_len:
        return
    packed = Packed(np.array(stream, np.uint16), END, seq_len)
    labels = packed.batch(range(len(packed))).labels.flatten()
    used = len(packed) * seq_len + 1
    assert 0 <= len(stream) - used < seq_len
    expected = [token for before, token in zip(stream[:used], stream[1:used], strict=False) if before != END]
    assert labels[labels != IGNORE].tolist() == expected


def test_samples_in_the_order_asked_for():
    packed = Packed(np.arange(9, dtype=np.uint16), END, 2)
    assert packed.batch([3, 0, 3]).tokens.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert packed.batch(torch.tensor([1])).labels.tolist() == [[3, 4]]
    assert [tuple(x.shape) for x in packed.batch([])] == [(0, 2)] * 3


@pytest.mark.parametrize(
    ("tokens", "seq_len", "said"), [(5, 5, "at most 4"), (257, 300, "at most 256"), (0, 5, "at most 1")]
)
def test_too_few_tokens(tokens, seq_len, said):
    with pytest.raises(
        ValueError, match=rf"There are {tokens} tokens, one sequence takes seq_len \+ 1 = {seq_len + 1}: .*{said}"
    ):
        Packed(np.zeros(tokens, np.uint16), END, seq_len)


def test_no_length():
    with pytest.raises(ValueError, match="seq_len is 0: it must be at least 1"):
        Packed(np.zeros(10, np.uint16), END, 0)


def test_a_fingerprint_is_equal_only_for_equal_samples():
    stream = np.arange(20, dtype=np.uint16)
    other = stream.copy()
    other[13] += 1
    sets = [
        Packed(stream, END, 4),
        Packed(other, END, 4),
        Packed(stream, END, 5),
        Packed(stream, 8, 4),
        Packed(stream[:19], END, 4),
    ]
    assert len({each.fingerprint for each in sets}) == len(sets)
    assert Packed(stream.copy(), END, 4).fingerprint == sets[0].fingerprint
