"""Data parallelism: every rank holds the whole model and takes its own part of the batch.

`simple.py` and `compress.py`: the ideas in a few lines each. `ddp.py`: DistributedDataParallel, in earnest.
"""

from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.data.hooks import PowerSGD, bf16

__all__ = ["DistributedDataParallel", "PowerSGD", "bf16"]
