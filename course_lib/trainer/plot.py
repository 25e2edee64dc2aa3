"""The loss curve, drawn from the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def draw_losses(lines: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Write a PNG: the loss of each step, its mean over the last twentieth of the run, and the validation losses."""
    steps = [line for line in lines if "event" not in line]
    validations = [line for line in lines if line.get("event") == "validated"]
    figure = Figure(figsize=(7, 4), layout="constrained")  # not pyplot: there may be no display, and nothing is shown
    axes = figure.subplots()
    xs, losses = [line["step"] for line in steps], [line["loss"] for line in steps]
    width = len(losses) // 20
    if width > 1:
        axes.plot(xs, losses, color="tab:blue", alpha=0.35, linewidth=1, label="training, each step")
        label = f"training, mean of the last {width} steps"
        axes.plot(xs, running_mean(losses, width), color="tab:blue", linewidth=1.8, label=label)
    else:
        axes.plot(xs, losses, color="tab:blue", linewidth=1.8, label="training, each step")
    if validations:
        points = [line["step"] for line in validations], [line["loss"] for line in validations]
        axes.plot(*points, "o-", color="tab:orange", markersize=4, label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=130)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Of each value and those before it, `width` at most."""
    means = []
    for i in range(len(values)):
        window = values[max(0, i + 1 - width) : i + 1]
        means.append(sum(window) / len(window))
    return means
