"""The frame of a lab: `start` opens it, `ranks` says how many ranks it uses, `figure` keeps what it measured here."""

from __future__ import annotations

import math
import os

from course_lib.doctor import facts, options
from course_lib.lab import progress

SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
SCALED_UNITS = ("s", "B", "B/s", "FLOP/s", "FLOP")  # the others ("", "%", "steps") are shown as they are

_lab = ""  # the lab this kernel has started: a figure belongs to it


def ranks() -> int:
    """The number of ranks of this lab: 4, or what `make lab0 RANKS=3` says (COURSE_RANKS). Raises OptionError."""
    return options.ranks(os.environ.get("COURSE_RANKS", ""))


def start(lab: str) -> None:
    """Open the lab called `lab` ("lab0"): print what this machine offers and how far this learner has come."""
    global _lab
    _lab = lab
    table = progress.show()
    print("\n".join([*facts.describe(ranks()), f"{lab}     {table.passed(lab)}"]))


def figure(name: str, value: float, unit: str = "") -> None:
    """Keep a figure measured on this machine, and print it: figure("alpha", 52e-6, "s").

    `make labN` lists the figures of a run. value: in `unit` itself, not in thousandths of it. Raises ValueError when it
    is no finite number.
    """
    if not math.isfinite(value):
        raise ValueError(f"figure {name!r} is {value}: only a finite number can be kept")
    progress.record("figures", name, value=float(value), unit=unit, lab=_lab)
    print(f"{name}: {readable(value, unit)}")


def readable(value: float, unit: str = "") -> str:
    """A figure for people: readable(52e-6, "s") is "52 µs", readable(0.5, "") is "0.5"."""
    scale, prefix = 1.0, ""
    if unit in SCALED_UNITS and value:
        scale, prefix = next((s for s in SCALES if abs(value) >= s[0]), SCALES[-1])
    return f"{value / scale:.3g} {prefix}{unit}".rstrip()
