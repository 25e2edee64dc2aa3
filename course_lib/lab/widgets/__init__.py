"""Pictures that follow a slider. Each stands on an engine without any UI; each is also a still picture.

`ring_stepper()`: ring all-reduce, step by step.
"""

from course_lib.lab.widgets.ring_stepper import ring_stepper

__all__ = ["ring_stepper"]
