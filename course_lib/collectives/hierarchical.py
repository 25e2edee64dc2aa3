"""Two-level all-reduce: for ranks that sit together in nodes, with a slow network between the nodes.

1. Within each node, reduce-scatter: local rank i holds chunk i of the node's sum.
2. Across nodes, all-reduce: the ranks of equal local number reduce their chunk. Each node's link carries the tensor
   about once in each direction, shared by all its ranks, instead of once per rank.
3. Within each node, all-gather: every rank has all chunks.

The fast links inside the node carry what a flat ring over all ranks would send through the slow ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import ring
from course_lib.collectives.ops import Op
from course_lib.collectives.p2p import rank_and_size, split


@dataclass(frozen=True)
class Levels:
    """This rank's two groups: the ranks of its own node, and those of its local number on all nodes."""

    node: dist.ProcessGroup
    across: dist.ProcessGroup


def levels(per_node: int) -> Levels:
    """The groups for a world of nodes with `per_node` consecutive ranks each. All ranks of the world must call it."""
    rank, world = rank_and_size()
    if per_node < 1 or world % per_node:
        fits = [size for size in range(1, world + 1) if world % size == 0]
        raise ValueError(f"{world} ranks are not a whole number of nodes of {per_node}: per_node can be one of {fits}")
    node, _ = dist.new_subgroups(per_node)
    columns = [list(range(local, world, per_node)) for local in range(per_node)]
    across, _ = dist.new_subgroups_by_enumeration(columns)
    return Levels(node, across)


def all_reduce_(x: Tensor, op: Op, groups: Levels) -> None:
    """Reduce flat, contiguous x over all nodes, in place. Any size."""
    chunks = split(x, dist.get_world_size(groups.node))
    # The mean over all ranks is the mean over the nodes of the means within them: they have equal numbers of ranks.
    mine = ring.reduce_scatter_in_place(chunks, op, groups.node)
    ring.all_reduce_(chunks[mine], op, groups.across)
    ring.all_gather_in_place(chunks, mine, groups.node)
