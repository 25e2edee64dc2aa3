"""Which ranks hold the experts together, and which hold the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from course_lib.collectives.p2p import rank_and_size


@dataclass(frozen=True)
class ExpertMesh:
    """dp: all ranks; each has other tokens, and all have the same dense parameters.
    ep: neighbours, which hold all experts together, each some.    edp: those that hold the same experts as this rank.
    """

    dp: dist.ProcessGroup | None
    ep: dist.ProcessGroup
    edp: dist.ProcessGroup


def expert_mesh(ep_size: int, dp: dist.ProcessGroup | None = None) -> ExpertMesh:
    """Cut the ranks of dp into groups of ep_size neighbours. All ranks of dp must call it.

    ep_size 1: every rank holds all experts. ValueError if ep_size does not divide the number of ranks.
    """
    rank, n = rank_and_size(dp)
    if ep_size < 1 or n % ep_size:
        fits = ", ".join(str(size) for size in range(1, n + 1) if n % size == 0)
        raise ValueError(f"{n} ranks cannot be cut into groups of {ep_size}: an ep_size of {fits} would do")
    ranks = dist.get_process_group_ranks(dp)
    starts = range(0, n, ep_size)
    # Each rank makes its own two groups only, and no other need know of them.
    mine, place = rank - rank % ep_size, rank % ep_size
    ep = dist.new_group(ranks[mine : mine + ep_size], use_local_synchronization=True)
    edp = dist.new_group([ranks[start + place] for start in starts], use_local_synchronization=True)
    return ExpertMesh(dp, ep, edp)
