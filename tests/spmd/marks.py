"""What the tests of failures share: the lines that an explanation must name carry the comment `# here`."""

import inspect
from pathlib import Path

SHORT = 1.5  # seconds: the time-out of runs that must run into it


def marked_lines(function):
    """The marked lines of a function, as an explanation names them: "test_failures.py, line 12:"."""
    lines, first = inspect.getsourcelines(function)
    name = Path(inspect.getsourcefile(function)).name
    return [f"{name}, line {first + i}:" for i, line in enumerate(lines) if "# here" in line]
