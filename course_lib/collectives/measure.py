"""Time and bandwidth of collectives, as nccl-tests define them, several side by side on the same ranks.

algbw = nbytes / seconds: how fast the caller's tensor is done with. It falls as ranks are added, for the same links.
busbw = algbw * factor: how fast the links are used. The factor is the least part of the tensor that must pass a rank's
link (2(n-1)/n for an all-reduce), so busbw can be held against the hardware, and compared between numbers of ranks.
nbytes is the whole tensor: what all ranks hold together, for all-gather, reduce-scatter and all-to-all.
(nccl-tests, PERFORMANCE.md)

Other work on the machine disturbs every measurement. So the candidates take turns, call by call: a disturbance hits
all of them alike, and their ratios stay right when their times do not. A time is that of the slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import front, native
from course_lib.collectives.p2p import rank_and_size

KB, MB = 2**10, 2**20
SIZES = (1 * KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 16 * MB, 64 * MB)

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


@dataclass(frozen=True)
class Timing:
    """One candidate at one size. seconds: the slowest rank's, one for each repeat; all candidates' repeats line up."""

    name: str
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return _median(self.seconds)

    @property
    def algbw(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.median

    def busbw(self, collective: str, n: int) -> float:
        """Bytes per second through each rank's link, at least."""
        return self.algbw * BUS_FACTORS[collective](n)

    def ratio(self, other: Timing) -> float:
        """This one's time over the other's: the median over the repeats, in each of which they took turns."""
        return _median([mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)])


def measure(
    candidates: Mapping[str, Callable[[Tensor], object]],
    sizes: Sequence[int] = SIZES,
    group: dist.ProcessGroup | None = None,
    repeats: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Timing]:
    """Run each candidate on a tensor of each size, in turns, on all ranks of the group. All ranks return the same.

    A candidate takes x, flat and contiguous, of `size` bytes, rounded down to equal chunks for all ranks. repeats: by
    default 50 for small tensors, down to 5 for the largest.
    """
    _, n = rank_and_size(group)
    timings = []
    for size in sizes:
        x = torch.ones(size // (dtype.itemsize * n) * n, dtype=dtype)
        nbytes = x.numel() * dtype.itemsize
        rounds = repeats or max(5, min(50, 64 * MB // max(1, nbytes)))
        taken = torch.zeros(rounds, len(candidates), dtype=torch.float64)
        for repeat in range(-1, rounds):  # the first warms up buffers and connections
            for place, call in enumerate(candidates.values()):
                x.fill_(1)
                dist.barrier(group)
                start = time.perf_counter()
                call(x)
                if repeat >= 0:
                    taken[repeat, place] = time.perf_counter() - start
        dist.all_reduce(taken, dist.ReduceOp.MAX, group=group)
        timings += [Timing(name, nbytes, tuple(taken[:, place].tolist())) for place, name in enumerate(candidates)]
    return timings


def candidates(collective: str, group: dist.ProcessGroup | None = None) -> dict[str, Callable[[Tensor], object]]:
    """Torch's version of a collective and ours, ready for measure(): {"torch": ..., "ring": ..., "halving": ..., ...}.

    Outputs are kept from one call to the next, for both sides, so that no allocation is timed.
    """
    _, n = rank_and_size(group)
    if collective not in _CANDIDATES:
        raise ValueError(f"nothing to measure for {collective!r}: choose one of {', '.join(_CANDIDATES)}")
    outputs: dict[int, Tensor] = {}

    def output(x: Tensor, numel: int) -> Tensor:
        if numel not in outputs:
            outputs.clear()
            outputs[numel] = x.new_empty(numel)
        return outputs[numel]

    return _CANDIDATES[collective](n, group, output)


def _all_reduce(n, group, output):
    calls = {"torch": lambda x: dist.all_reduce(x, group=group)}
    for name in front.ALL_REDUCE:
        calls[name] = lambda x, name=name: front.all_reduce(x, group=group, algorithm=name)
    return calls


def _reduce_scatter(n, group, output):
    calls = {"torch": lambda x: native.reduce_scatter_into(output(x, x.numel() // n), x, group)}
    for name in front.REDUCE_SCATTER:
        calls[name] = lambda x, name=name: front.reduce_scatter(
            x, group=group, out=output(x, x.numel() // n), algorithm=name
        )
    return calls


def _all_gather(n, group, output):
    calls = {"torch": lambda x: native.all_gather_into(output(x, x.numel()), x[: x.numel() // n], group)}
    for name in front.ALL_GATHER:
        calls[name] = lambda x, name=name: front.all_gather(
            x[: x.numel() // n], group, out=output(x, x.numel()), algorithm=name
        )
    return calls


def _broadcast(n, group, output):
    return {
        "torch": lambda x: dist.broadcast(x, group_src=0, group=group),
        "tree": lambda x: front.broadcast(x, 0, group),
    }


def _all_to_all(n, group, output):
    return {
        "torch": lambda x: dist.all_to_all_single(output(x, x.numel()), x, group=group),
        "direct": lambda x: front.all_to_all(x, group=group),
    }


_CANDIDATES: dict[str, Callable[..., dict[str, Callable[[Tensor], object]]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
}


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))
