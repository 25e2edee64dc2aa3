"""Fully sharded data parallelism: each rank keeps a part of every parameter, and gathers a block when it computes.

`shard.py`: fully_shard, in earnest; what it is made of stands there.
"""

from course_lib.parallel.fsdp.policy import MixedPrecision
from course_lib.parallel.fsdp.shard import fully_shard, no_sync, parts, sharding

__all__ = ["MixedPrecision", "fully_shard", "no_sync", "parts", "sharding"]
