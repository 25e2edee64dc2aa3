"""Lab 2a: tensor parallel, from the pair f and g to the bytes of a layer."""

from __future__ import annotations

from course_lib.lab.exercises.lab2a_pair import COPY_TO, REDUCE_FROM

EXERCISES = [COPY_TO, REDUCE_FROM]
