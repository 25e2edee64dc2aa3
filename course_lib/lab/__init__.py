"""What a lab's notebook uses: `from course_lib import lab`, then `lab.start`, `lab.check`, `lab.hint`, ..."""

from course_lib.lab import progress
from course_lib.lab.checking import check
from course_lib.lab.hints import hint
from course_lib.lab.machine import figure, ranks, start
from course_lib.lab.predictions import predict, reveal

__all__ = ["check", "figure", "hint", "predict", "progress", "ranks", "reveal", "start"]
