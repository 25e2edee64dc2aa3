"""Pictures that follow a slider, and a game. Each stands on an engine without any UI; each is also a still picture.

- `ring_stepper()`: ring all-reduce, step by step.
- `tree_stepper()`: broadcast along a binomial tree, round by round.
- `cost_explorer()`: which all-reduce is the fastest, by the cost model.
- `pipeline_builder()`: a pipeline schedule, made by hand, judged, and run on real ranks.
"""

from course_lib.lab.widgets.cost_explorer import cost_explorer
from course_lib.lab.widgets.pipeline_builder import pipeline_builder
from course_lib.lab.widgets.ring_stepper import ring_stepper
from course_lib.lab.widgets.tree_stepper import tree_stepper

__all__ = ["cost_explorer", "pipeline_builder", "ring_stepper", "tree_stepper"]
