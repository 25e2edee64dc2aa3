"""Which of the known schedules is this?"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.parallel.pipeline import generators
from course_lib.parallel.pipeline.passes import merge_backward
from course_lib.parallel.pipeline.schedule import Schedule, loop, v_shape


def recognise(schedule: Schedule) -> str | None:
    """The name of the known schedule that runs the same actions in the same order on the same ranks; None: a new one.

    I and W in a row are a B. Where two known ones are the same (on one rank, or for one micro-batch), the first of
    `known` gives the name. Sends and receives must not be in it.
    """
    n_micro_batches = schedule.n_micro_batches
    if n_micro_batches == 0:
        return None
    whole = merge_backward(schedule)
    for candidate in known(schedule.placement, n_micro_batches):
        if merge_backward(candidate).orders == whole.orders:
            return candidate.name
    return None


def known(placement: tuple[int, ...], n_micro_batches: int) -> Iterator[Schedule]:
    """The known schedules of a placement, such as a learner's has to beat; none if the placement is a new one."""
    n_ranks = max(placement) + 1
    chunks = len(placement) // n_ranks
    if placement == loop(n_ranks):
        yield generators.gpipe(n_ranks, n_micro_batches)
        yield generators.one_f_one_b(n_ranks, n_micro_batches)
        yield generators.zb_h1(n_ranks, n_micro_batches)
    elif placement == loop(n_ranks, chunks):
        yield generators.interleaved(n_ranks, n_micro_batches, chunks)
    if placement == v_shape(n_ranks):
        yield generators.zbv(n_ranks, n_micro_batches)
