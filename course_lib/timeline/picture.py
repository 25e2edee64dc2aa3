"""How the course draws: a figure that shows itself once, and colours that survive colour blindness and grey print."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, which the common kinds of colour blindness tell apart.
BLUE, SKY, NAVY, ORANGE, VERMILION, GREEN, PURPLE, YELLOW = (
    "#0072B2",
    "#56B4E9",
    "#0B3C5D",
    "#E69F00",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#F0E442",
)
INK, QUIET, FAINT = "#222222", "#6B6B6B", "#ECECEC"

DPI = 100  # of the picture as it is shown; the file has twice as many pixels each way, for sharp screens


class Picture(Figure):
    """A figure made without pyplot: nothing to close, and a notebook shows it once, as the value of its cell."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=DPI, layout="constrained")

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        out = BytesIO()
        self.savefig(out, format="png", dpi=2 * DPI)
        return out.getvalue()

    def size(self) -> tuple[int, int]:
        """(width, height) at which the PNG is meant to be shown, in pixels."""
        width, height = self.get_size_inches() * DPI
        return round(width), round(height)

    def _repr_png_(self) -> tuple[bytes, dict]:
        width, height = self.size()
        return self.png(), {"width": width, "height": height}


def plain_axes(ax: Axes, *, sides: tuple[str, ...] = ("bottom",)) -> None:
    """Keep only the axis lines named; small quiet tick labels."""
    for side, spine in ax.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(QUIET)
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)


def title(ax: Axes, text: str, pad: float = 8) -> None:
    """A title over the left edge. pad: points above the axes, to leave room for a legend."""
    ax.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK, pad=pad)
