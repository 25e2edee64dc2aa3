"""Batches for one rank out of an order that all ranks share, and a state from which to go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from course_lib.training.data.order import Order
from course_lib.training.data.packing import Batch, Packed
from course_lib.training.data.prefetch import prefetch


class Loader:
    """This rank's share of each global batch: an iterator over Batch.

    The whole job goes through one order of samples (see `Order`), `batch` of them a step. Rank r of n takes every nth
    of a step's samples, beginning with the rth, as cards are dealt. So a step's samples are the same for any n; none is
    seen by two ranks, none by nobody. Where n does not divide the batch, some ranks get one sequence more than others:
    the loss rule (`training.loss`) weighs by tokens, so the gradient is still that of the whole batch. A batch smaller
    than n would leave ranks with nothing to do in every step and is refused.

    There is no end: epoch follows epoch, and a step may take the last samples of one and the first of the next. So
    every step is a whole batch, and no sample is left out because the batch does not divide their number.

    seed: shuffles each epoch anew; None keeps the order of the data. device: where the batches arrive; for a GPU they
    are made in pinned memory, so that the CPU need not wait for the copy. ahead: how many are made before they are
    asked for, by a thread (0: none), which runs from the first batch until `close`; dropping the loader closes it too.
    Measured on two CPU cores, a batch of 16 x 256 tokens takes 0.1 ms to make, a step of the smallest model hundreds:
    there the thread makes no difference that could be measured, either way.

    Raises ValueError for sizes that do not fit.
    """

    def __init__(
        self,
        dataset: Packed,
        batch: int,
        rank: int = 0,
        n: int = 1,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        ahead: int = 2,
    ) -> None:
        if not 0 <= rank < n:
            raise ValueError(f"Rank {rank} of {n}: ranks count from 0 to n - 1, here {n - 1}.")
        if batch < n:
            raise ValueError(f"A batch of {batch} sequences is too small for {n} ranks: each needs at least one.")
        self.dataset = dataset
        self.batch = batch
        self.rank = rank
        self.n = n
        self.seed = seed
        self.device = torch.device(device)
        self.ahead = ahead
        self.seen = 0  # samples of the whole job, in the steps handed out so far
        self.order = Order(len(dataset), seed)
        self.batches: Iterator[Batch] | None = None  # made ahead, from `seen` on

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if self.batches is None:
            make = Maker(self.dataset, self.order, self.rank, self.n, self.device)
            self.batches = prefetch(make, steps(self.seen, self.batch), self.ahead)
        try:
            batch = next(self.batches)
        except BaseException:  # a second call tries again: an iterator that ended in an error would just seem to end
            self.close()
            raise
        # Counted when handed out, not when made: what was made ahead and never used is made again after a resume.
        self.seen += self.batch
        return batch.to(self.device)

    def close(self) -> None:
        """End the thread. What it made ahead is dropped; the next batch begins anew, at the same sample."""
        if self.batches is not None:
            self.batches.close()
            self.batches = None

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands: the same on all ranks, so one of them can keep it for all."""
        return {"seen": self.seen, "seed": self.seed, "data": self.dataset.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the sample after the last that was handed out; the batch and the number of ranks may be others.

        Raises ValueError if the data, their seq_len or the seed are others: the order would be another too.
        """
        if state["data"] != self.dataset.fingerprint:
            raise ValueError(
                f"The data differ: {self.dataset.fingerprint} here, {state['data']} in the state. To go on at the next "
                f"sample takes the same text, tokens and seq_len (here {self.dataset.seq_len})."
            )
        if state["seed"] != self.seed:
            raise ValueError(f"The seed is {self.seed} here and {state['seed']} in the state: give that one.")
        self.close()
        self.seen = state["seen"]


class Maker:
    """Makes a rank's share of the step that takes the samples at the places start, ..., stop - 1.

    Runs in the thread and knows nothing of the loader: a thread that held it would keep it from being dropped.
    """

    def __init__(self, dataset: Packed, order: Order, rank: int, n: int, device: torch.device) -> None:
        self.dataset, self.order, self.rank, self.n, self.device = dataset, order, rank, n, device

    def __call__(self, step: tuple[int, int]) -> Batch:
        start, stop = step
        samples = self.order.take(start, stop - start)[self.rank :: self.n]
        batch = self.dataset.batch(samples)
        if self.device.type != "cuda":
            return batch
        with torch.cuda.device(self.device):  # a new thread stands on GPU 0: pinning would open it for every rank
            return batch.pinned()


def steps(start: int, batch: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each step, for ever."""
    while True:
        yield start, start + batch
        start += batch
