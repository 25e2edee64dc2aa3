"""How the lab speaks: numbers in words a reader takes in at once, and messages that read well in any theme.

Colours are JupyterLab's own variables, so a message follows the light and the dark theme; outside of it they fall back
to mid tones that stand out on white and on black.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

COLOURS = {
    "passed": "var(--jp-success-color1, #388e3c)",
    "not yet": "var(--jp-warn-color1, #e08a00)",
    "not attempted": "var(--jp-border-color1, #9e9e9e)",
    "hint": "var(--jp-info-color1, #0288d1)",
}

escape = html.escape


@dataclass
class Message:
    """One message to the learner. kind: a key of COLOURS. text: sentences with `code` and **strong** words.

    code: a block kept as it is (a drawing, a solution). details: further lines, smaller.
    """

    kind: str
    text: str
    details: list[str] = field(default_factory=list)
    code: str = ""

    def __str__(self) -> str:
        lines = [re.sub(r"\*\*(.+?)\*\*", r"\1", self.text), *([self.code] if self.code else [])]
        return "\n".join(lines + [f"  {line}" for line in self.details])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        details = "".join(
            f"<div style='opacity:.8;font-size:92%;white-space:pre-wrap'>{_inline(d)}</div>" for d in self.details
        )
        code = f"<pre style='margin:.4em 0 0 0'>{escape(self.code)}</pre>" if self.code else ""
        return (
            f"<div class='course-message' data-kind='{self.kind}' style='border-left:4px solid {COLOURS[self.kind]};"
            f"padding:.3em .8em;margin:.2em 0;max-width:60em'>{_inline(self.text)}{code}{details}</div>"
        )


def _inline(text: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def put(thing: object) -> None:
    """Show a message (or a figure): rich in a notebook, as text elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(thing)
    else:
        print(thing)


def seconds(value: float) -> str:
    """A time with a unit that fits: "21 ms", "1.3 s", "52 µs"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value / 1e-6)} µs"


def size(nbytes: float) -> str:
    """Bytes with a unit that fits: "12.0 MB" (10^6), "48 bytes"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def number(value: float) -> str:
    """A number with as many digits as a reader compares: 2.114, 96, 42,667, 1.2e-07."""
    if 10_000 <= abs(value) < 1e15:
        return f"{round(value):,}"
    if isinstance(value, int) or float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}"


def apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart: ("4.0002e-05", "4e-05")."""
    for write in (number, *(f"{{:.{digits}g}}".format for digits in range(5, 17))):
        if write(a) != write(b):
            return write(a), write(b)
    return repr(a), repr(b)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def listing(items: Iterable[object]) -> str:
    """ "2, 3 and 4"."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 1" or "ranks 0, 2 and 3"."""
    numbers = list(numbers)
    return f"rank{'s' * (len(numbers) != 1)} {listing(numbers)}"


def dots(difficulty: int) -> str:
    """ "●●○"."""
    return "●" * difficulty + "○" * (3 - difficulty)
