"""The cost-model explorer: alpha, bandwidth and ranks on sliders, the time of each all-reduce as a curve."""

from __future__ import annotations

from collections.abc import Mapping

from ipywidgets import FloatLogSlider, SelectionSlider

from course_lib.lab.widgets.cost_curves import Model, reigns, size_text, time_text
from course_lib.lab.widgets.cost_picture import LARGEST, SMALLEST, draw
from course_lib.lab.widgets.stage import Stage, slider

MICROSECONDS = (0.1, 10_000)  # what the slider for alpha reaches
GB_PER_SECOND = (0.01, 1_000)


def cost_explorer(models: Mapping[str, Model], alpha: float, beta: float, ranks: int = 4) -> Stage:
    """Start from a machine's own alpha (seconds a message) and beta (seconds a byte), at least 2 ranks.

    Values beyond what the sliders reach are refused: a fit that gives such a value has gone wrong.
    """
    microseconds, gb_per_second = 1e6 * alpha, 1e-9 / beta if beta > 0 else float("inf")
    _must_lie_within("alpha", microseconds, MICROSECONDS, "µs")
    _must_lie_within("1 / beta", gb_per_second, GB_PER_SECOND, "GB/s")
    if ranks < 2:
        raise ValueError(f"An all-reduce needs at least 2 ranks to cost anything; {ranks} were given.")
    many = sorted({ranks, *(2**power for power in range(1, 11))})
    controls = {
        "microseconds": slider(
            FloatLogSlider, "alpha (µs a message)", microseconds, min=-1, max=4, step=0.01, readout_format=".3g"
        ),
        "gb_per_second": slider(
            FloatLogSlider, "1 / beta (GB/s)", gb_per_second, min=-2, max=3, step=0.01, readout_format=".3g"
        ),
        "ranks": slider(SelectionSlider, "ranks", ranks, options=many),
    }

    def picture(microseconds: float, gb_per_second: float, ranks: int):
        return draw(models, ranks, 1e-6 * microseconds, 1e-9 / gb_per_second)

    def words(microseconds: float, gb_per_second: float, ranks: int) -> str:
        alpha, beta = 1e-6 * microseconds, 1e-9 / gb_per_second
        found = reigns(models, SMALLEST, LARGEST, ranks, alpha, beta)
        fastest = f"Fastest: {found[0].name}" + "".join(f"; from {size_text(r.smallest)} {r.name}" for r in found[1:])
        return f"{ranks} ranks, {time_text(alpha)} a message, {gb_per_second:.3g} GB/s. {fastest}."

    return Stage(
        name="All-reduce by the cost model",
        controls=controls,
        draw=picture,
        words=words,
        still=lambda: picture(**{name: control.value for name, control in controls.items()}),
    )


def _must_lie_within(what: str, value: float, limits: tuple[float, float], unit: str) -> None:
    low, high = limits
    if not low <= value <= high:
        raise ValueError(f"{what} is {value:.3g} {unit}; the explorer shows {low:g} to {high:,g} {unit}.")
