"""Collectives from scratch: made of send and receive, readable, and about as fast as gloo's own.

simple.py        the taught versions; Lab 0 has you write them
p2p.py           ranks within a group, chunks, safe exchange
ring.py          pipelined ring: reduce-scatter, all-gather, all-reduce     large tensors
halving.py       recursive halving and doubling: the same three             small tensors
tree.py          binomial tree: broadcast, reduce, gather, scatter, all-reduce
hierarchical.py  two-level all-reduce, for nodes x local ranks
exchange.py      all-to-all with uneven counts; reduce-scatter that adds in float32
ops.py handle.py front.py   reductions; collectives in flight; the functions below
native.py        torch's own under one name whatever the version; autograd.py: collectives with gradients
cost.py measure.py          the alpha-beta model; time and bandwidth, ours against torch's
"""

from course_lib.collectives.front import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    two_level_all_reduce,
)
from course_lib.collectives.handle import Handle
from course_lib.collectives.hierarchical import Levels, levels
from course_lib.collectives.ops import AVG, MAX, MIN, PREMUL, SUM, Op

__all__ = [
    "AVG",
    "MAX",
    "MIN",
    "PREMUL",
    "SUM",
    "Handle",
    "Levels",
    "Op",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "levels",
    "reduce",
    "reduce_scatter",
    "scatter",
    "two_level_all_reduce",
]
