"""Lab 1: data parallel training, from the mean of the gradients to mixed precision."""

from __future__ import annotations

from course_lib.lab.exercises.lab1_average import AVERAGE_GRADIENTS
from course_lib.lab.exercises.lab1_buckets import PACK_BUCKETS
from course_lib.lab.exercises.lab1_compress import BF16_COMPRESS
from course_lib.lab.exercises.lab1_loss import SHARE_OF_MEAN
from course_lib.lab.exercises.lab1_order import EPOCH_SHARE
from course_lib.lab.exercises.lab1_overlap import BACKWARD_WITH_OVERLAP
from course_lib.lab.exercises.lab1_powersgd import POWER_SGD_ROUND
from course_lib.lab.exercises.lab1_precision import SCALED_STEP
from course_lib.lab.exercises.lab1_windows import TRAIN_IN_WINDOWS

EXERCISES = [
    AVERAGE_GRADIENTS,
    SHARE_OF_MEAN,
    PACK_BUCKETS,
    BACKWARD_WITH_OVERLAP,
    TRAIN_IN_WINDOWS,
    EPOCH_SHARE,
    SCALED_STEP,
    BF16_COMPRESS,
    POWER_SGD_ROUND,
]
