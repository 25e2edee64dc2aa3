"""The ring all-reduce stepper: choose the number of ranks, go through the steps, see every chunk move."""

from __future__ import annotations

from ipywidgets import IntSlider

from course_lib.lab.widgets.ring import run
from course_lib.lab.widgets.ring_picture import draw_all, draw_step
from course_lib.lab.widgets.stage import Stage, slider


def ring_stepper(ranks: int = 4, step: int = 0) -> Stage:
    """The stepper, standing at `step`. ranks: 2 to 8. Without a front end it is a picture of all steps."""
    if not 2 <= ranks <= 8:
        raise ValueError(f"The stepper draws 2 to 8 ranks; {ranks} were asked for.")
    ranks_slider = slider(IntSlider, "ranks", ranks, min=2, max=8)
    step_slider = slider(IntSlider, "step", step, min=0, max=2 * (ranks - 1))
    return Stage(
        name="Ring all-reduce",
        controls={"ranks": ranks_slider, "step": step_slider},
        draw=draw_step,
        words=lambda ranks, step: run(ranks)[step].text(),
        still=lambda: draw_all(ranks_slider.value),
        limits=lambda ranks, step: {"step": 2 * (ranks - 1)},
    )
