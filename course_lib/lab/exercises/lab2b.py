"""Lab 2b: pipeline, from the order of a rank to a backward in two parts."""

from __future__ import annotations

from course_lib.lab.exercises.lab2b_bubble import MICRO_BATCHES_FOR
from course_lib.lab.exercises.lab2b_orders import GPIPE_ORDER, ONE_F_ONE_B_ORDER
from course_lib.lab.exercises.lab2b_split import LINEAR_IN_TWO
from course_lib.lab.exercises.lab2b_stage import RUN_STAGE

EXERCISES = [GPIPE_ORDER, MICRO_BATCHES_FOR, ONE_F_ONE_B_ORDER, RUN_STAGE, LINEAR_IN_TWO]
