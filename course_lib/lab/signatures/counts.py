"""Right shares, counted wrongly: scaled, one missing, one twice, partial sums, shares of different chunks."""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, tolerance
from course_lib.lab.signatures.words import place, signature


@signature
def scaled(e: Evidence) -> str | None:
    if not e.comparable:
        return None
    factors = {r: _factor(e.observed[r], e.expected[r]) for r in e.wrong}
    if None in factors.values():
        return None
    first = factors[e.wrong[0]]
    if len(set(factors.values())) > 1:
        each = ", ".join(f"rank {r} {_times(f)}" for r, f in factors.items())
        return f"every value is off by a factor, and the factor differs by rank: {each}"
    if len(e.wrong) < e.n:
        return f"{show.ranks(e.wrong)}: every value is exactly {_times(first)}; the other ranks are right"
    if e.on_ranks and first == e.n:
        return f"every value is exactly {e.n} times too large: a sum where a mean is needed"
    if e.on_ranks and first == Fraction(1, e.n):
        return f"every value is exactly {_times(first)}: a mean where a sum is needed, or divided by n twice"
    if first == -1:
        return "every value has the wrong sign"
    return f"every value is exactly {_times(first)}"


@signature
def share_missing(e: Evidence) -> str | None:
    if not _in_chunks(e) or any(int(c.max()) > 1 for c in e.counts.values()):
        return None
    r, row, place = _first_row(e)
    lost = [j for j in range(e.n) if row[j] == 0]
    had = [j for j in range(e.n) if row[j]]
    if len(lost) == e.n:
        return f"{place}: nothing arrived there, the values are all zero"
    if lost == [r]:
        return f"{place}: rank {r}'s own values are missing"
    if len(lost) == e.n - 1 and r not in lost:
        return f"{place}: only its own values, those of {show.ranks(lost)} are missing"
    if len(had) == 1:
        return f"{place}: only the values of {show.ranks(had)}, nothing is added to them"
    return f"{place}: the values of {show.ranks(lost)} are missing"


@signature
def share_twice(e: Evidence) -> str | None:
    if not _in_chunks(e) or any(int(c.min()) < 1 or int(c.max()) > 2 for c in e.counts.values()):
        return None
    r, row, place = _first_row(e)
    twice = [j for j in range(e.n) if row[j] == 2]
    whose = f"rank {r}'s own values are" if twice == [r] else f"the values of {show.ranks(twice)} are"
    return f"{place}: {whose} counted twice"


@signature
def partial_sums(e: Evidence) -> str | None:
    if not _in_chunks(e):
        return None
    _, row, place = _first_row(e)
    counted = ", ".join(f"rank {j}'s {_count(c)}" for j, c in enumerate(row) if c != 1)
    return f"{place}: a sum, but of the wrong shares: {counted}"


@signature
def mixed_chunks(e: Evidence) -> str | None:
    """Each rank keeps a chunk of a sum, and here the ranks' shares come from different chunks."""
    if not e.comparable or e.shares is None or not 1 < e.n <= 4:
        return None
    if any(s.shape != e.expected[0].shape for row in e.shares for s in row):
        return None
    # stacked[c, j]: rank j's share of chunk c; one more row, of zeros, for a share that is left out.
    stacked = torch.stack([torch.stack([s.flatten().double() for s in row]) for row in e.shares])
    stacked = torch.cat([stacked, torch.zeros_like(stacked[:1])])
    picks = torch.tensor(list(itertools.product(range(e.n + 1), repeat=e.n)))
    sums = sum(stacked[picks[:, j], j] for j in range(e.n))
    bound = tolerance(e.expected[0].dtype) * stacked.abs().max()
    for r in e.wrong:
        hits = ((sums - e.observed[r].flatten().double()).abs() <= bound).all(1)
        if not hits.any():
            return None
    r = e.wrong[-1]
    pick = picks[((sums - e.observed[r].flatten().double()).abs() <= bound).all(1).float().argmax()].tolist()
    by_chunk = {c: [j for j in range(e.n) if pick[j] == c] for c in dict.fromkeys(pick) if c < e.n}
    taken = show.listing(f"chunk {c} of {show.ranks(ranks)}" for c, ranks in by_chunk.items())
    if sum(map(len, by_chunk.values())) == 1:
        taken += " alone: nothing is added to it"
    return f"rank {r} should hold chunk {r} of every rank, added; it holds {taken}"


def _in_chunks(e: Evidence) -> bool:
    """Whether the counts are known and change from element to element no more often than chunks do.

    A maximum is, element by element, a sum of which all shares but one are missing; but each time other ones.
    """
    return e.counts is not None and all(
        int((c[1:] != c[:-1]).any(1).sum()) < max(1, min(e.n, len(c) // 2 + 1)) for c in e.counts.values()
    )


def _first_row(e: Evidence) -> tuple[int, list[int], str]:
    """The first wrong rank, how often its first wrong element counts each rank's share, and where on it that is so."""
    r = e.wrong[0]
    counts, where = e.counts[r], e.wrong_elements(r)[: len(e.counts[r])]
    alike = where[(counts == counts[0]).all(1)]
    return r, counts[0].tolist(), place(e, r, alike)


def _count(times: int) -> str:
    return ("not at all", "once", "twice")[times] if times < 3 else f"{times} times"


def _times(factor: Fraction) -> str:
    if factor.denominator == 1:
        return f"{factor} times too large"
    return f"{factor} of what it should be"


def _factor(got: Tensor, want: Tensor) -> Fraction | None:
    """The simple fraction that every element of `got` is of `want`; None if there is none, or it is 1 or 0."""
    dtype, want, got = want.dtype, want.flatten().double(), got.flatten().double()
    if not want.numel() or not want.any():
        return None
    i = int(want.abs().argmax())
    ratio = (got[i] / want[i]).item()
    if not abs(ratio) < 1e6:  # NaN too
        return None
    rounding = tolerance(dtype)
    factor = Fraction(ratio).limit_denominator(64 if rounding < 1e-3 else 4)
    near = max(1e-4, rounding)
    if factor in (0, 1) or not torch.allclose(
        got, want * float(factor), rtol=near, atol=near * want.abs().max().item()
    ):
        return None
    return factor
