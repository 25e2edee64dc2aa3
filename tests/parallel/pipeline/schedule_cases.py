"""Schedules for tests: any of a known kind, or a table written down; and what is wrong with one."""

from hypothesis import strategies as st

from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.text import loads
from course_lib.parallel.pipeline.validate import problems

MAKERS = [gpipe, one_f_one_b, interleaved, zb_h1, zbv]
valid = st.builds(lambda make, p, m: make(p, m), st.sampled_from(MAKERS), st.integers(1, 4), st.integers(1, 5))


def table(text: str, placement: str = "") -> Schedule:
    """A schedule from its orders, one line per rank."""
    lines = [f"rank {rank}: {line}" for rank, line in enumerate(text.strip().splitlines())]
    return loads("\n".join([f"placement: {placement}"] * bool(placement) + lines))


def reasons(schedule: Schedule, **options) -> list[str]:
    return [str(problem) for problem in problems(schedule, **options)]
