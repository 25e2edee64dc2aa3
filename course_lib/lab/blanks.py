"""The blank of an exercise: what stands between `# BEGIN SOLUTION` and `# END SOLUTION` in its source."""

from __future__ import annotations

import re

BLANK = re.compile(
    r"^(?P<indent>[ \t]*)# BEGIN SOLUTION[ \t]*\n(?P<code>.*?)^[ \t]*# END SOLUTION[ \t]*$", re.MULTILINE | re.DOTALL
)
MARKER = re.compile(r"^[ \t]*# (BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)


def filled(text: str) -> str:
    """`text` with its solution in place, without the markers."""
    return MARKER.sub("", text)


def stubbed(text: str) -> str:
    """`text` with `raise NotImplementedError` in place of each blank."""
    return BLANK.sub(lambda blank: f"{blank['indent']}raise NotImplementedError", text)
