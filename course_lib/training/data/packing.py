"""Packed sequences: the documents one after the other, cut into windows of equal length, with no padding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_lib.training.loss import IGNORE


class Batch(NamedTuple):
    """b sequences of S tokens.

    tokens: (b, S) int64. labels: (b, S) int64, the token that follows each, or IGNORE where none does: a document's
    last token has no successor, what stands behind it belongs to another. documents: (b, S) int64, the number of each
    token's document, counted from 0 in each sequence: attention must not cross from one number to another.
    """

    tokens: Tensor
    labels: Tensor
    documents: Tensor

    def to(self, device: torch.device) -> Batch:
        """On a device. Out of pinned memory the copy is only begun; the device ends it before its next work."""
        return Batch(*(x.to(device, non_blocking=True) for x in self))

    def pinned(self) -> Batch:
        """In memory that a GPU can read by itself, while the CPU goes on."""
        return Batch(*(x.pin_memory() for x in self))


@dataclass(frozen=True)
class Packed:
    """A data set of packed sequences. Sample i is the window of S + 1 tokens from i * S on.

    stream: (tokens,) unsigned integers: the documents, each ended by the token `end`. seq_len: S.

    Neighbours share one token, the last label of one and the first token of the next. So every token of the stream but
    the first is a label exactly once. What is left at the end, fewer than S tokens, is not used.
    """

    stream: np.ndarray
    end: int
    seq_len: int

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ValueError(f"seq_len is {self.seq_len}: it must be at least 1.")
        if len(self) < 1:
            raise ValueError(
                f"There are {len(self.stream):,} tokens, one sequence takes seq_len + 1 = {self.seq_len + 1:,}: "
                f"take more text, or a seq_len of at most {max(len(self.stream) - 1, 1):,}."
            )

    def __len__(self) -> int:
        return max(len(self.stream) - 1, 0) // self.seq_len

    def batch(self, samples: Sequence[int] | Tensor) -> Batch:
        """The samples with these numbers, in this order. Each number: 0 to len(self) - 1."""
        starts = torch.as_tensor(samples, dtype=torch.int64).numpy() * self.seq_len  # (b,)
        windows = self.stream[starts[:, None] + np.arange(self.seq_len + 1)]  # (b, S + 1)
        windows = torch.from_numpy(windows.astype(np.int64))
        tokens = windows[:, :-1].contiguous()
        ends = tokens == self.end
        labels = windows[:, 1:].masked_fill(ends, IGNORE)
        documents = ends.cumsum(1) - ends.long()  # how many have ended before this token; its own end belongs to it
        return Batch(tokens, labels, documents)

    @cached_property
    def fingerprint(self) -> str:
        """Of the tokens and seq_len: equal if all samples are. Ranks, or a job and its continuation, can compare it."""
        digest = hashlib.sha256(f"{self.stream.dtype.str} {self.end} {self.seq_len} ".encode())
        digest.update(np.ascontiguousarray(self.stream))
        return digest.hexdigest()[:16]
