"""The cost-model explorer: alpha, bandwidth and ranks on sliders, the time of each all-reduce as a curve."""

from __future__ import annotations

from ipywidgets import FloatLogSlider, SelectionSlider

from course_lib.lab.widgets.cost_curves import all_reduce_costs, reigns, size_text, time_text
from course_lib.lab.widgets.cost_picture import LARGEST, SMALLEST, draw
from course_lib.lab.widgets.stage import Stage, slider
from course_lib.timeline.picture import Picture

MICROSECONDS = (-1, 4)  # what the sliders reach, as powers of ten
GB_PER_SECOND = (-2, 3)
RANKS = (*range(2, 17), 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def cost_explorer(alpha: float, beta: float, ranks: int = 4) -> Stage:
    """Start from a machine's own alpha (seconds a message) and beta (seconds a byte), with at least 2 ranks.

    A value beyond a slider's end (a fit may find an alpha or a beta of 0) starts at that end.
    """
    if not (alpha >= 0 and beta >= 0):
        raise ValueError(f"alpha and beta are times of 0 s or more; {alpha:g} s and {beta:g} s a byte were given.")
    if ranks < 2:
        raise ValueError(f"An all-reduce needs at least 2 ranks to cost anything; {ranks} were given.")
    gb_per_second = 1e-9 / beta if beta else float("inf")
    controls = {
        "microseconds": _log_slider("alpha (µs a message)", 1e6 * alpha, MICROSECONDS),
        "gb_per_second": _log_slider("1 / beta (GB/s)", gb_per_second, GB_PER_SECOND),
        "ranks": slider(SelectionSlider, "ranks", ranks, options=sorted({ranks, *RANKS})),
    }
    return Stage(
        name="All-reduce by the cost model",
        controls=controls,
        draw=_picture,
        words=_words,
        still=lambda: _picture(**{name: control.value for name, control in controls.items()}),
    )


def _log_slider(label: str, value: float, powers: tuple[int, int]) -> FloatLogSlider:
    low, high = powers
    value = min(max(value, 10.0**low), 10.0**high)
    return slider(FloatLogSlider, label, value, min=low, max=high, step=0.01, readout_format=".3g")


def _picture(microseconds: float, gb_per_second: float, ranks: int) -> Picture:
    return draw(ranks, 1e-6 * microseconds, 1e-9 / gb_per_second)


def _words(microseconds: float, gb_per_second: float, ranks: int) -> str:
    alpha, beta = 1e-6 * microseconds, 1e-9 / gb_per_second
    first, *others = reigns(all_reduce_costs(ranks), SMALLEST, LARGEST, alpha, beta)
    fastest = f"Fastest: {first.name}" + "".join(f"; from {size_text(r.smallest)} {r.name}" for r in others)
    return f"{ranks} ranks, {time_text(alpha)} a message, {gb_per_second:.3g} GB/s. {fastest}."
