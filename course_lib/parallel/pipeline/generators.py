"""The known schedules, for any number of ranks and micro-batches: fewer of these than ranks, or no multiple, included.

What each is good for, with m micro-batches on p ranks. F, I, W: time of a stage's forward, input and weight backward,
of all the layers that a rank holds; memory in micro-batches of them, for the rank that holds most.

    schedule      idle per rank                 memory                        messages of a micro-batch
    GPipe         (p - 1) (F + I + W)           m                             p - 1 each way
    1F1B          (p - 1) (F + I + W)           p                             p - 1
    interleaved   (p - 1) (F + I + W) / chunks  p (1 + (p - 1) / (p chunks))  p chunks - 1
    ZB-H1         (p - 1) (F + I - W)           p                             p - 1
    ZBV           (p - 1) F / 2, if F = I = W   p                             2 (p - 1)

Same tables as torch.distributed.pipelining's, where it has them; the tests say where not, and why.
"""

from __future__ import annotations

from collections import Counter

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.schedule import Schedule, from_kinds, loop, v_shape
from course_lib.parallel.pipeline.simple import gpipe_order, one_f_one_b_order

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


def gpipe(n_ranks: int, n_micro_batches: int) -> Schedule:
    """Every forward, then every backward. Huang et al. (1811.06965), but backward in forward's order, as torch has it.

    The paper's figure runs the last micro-batch backward first. That takes as long and holds as much.
    """
    _check(n_ranks, n_micro_batches)
    return from_kinds((gpipe_order(rank, n_ranks, n_micro_batches) for rank in range(n_ranks)), "GPipe")


def one_f_one_b(n_ranks: int, n_micro_batches: int) -> Schedule:
    """One forward, one backward, in turns. PipeDream-Flush in Narayanan et al. (2104.04473), section 2.2.1."""
    _check(n_ranks, n_micro_batches)
    return from_kinds((one_f_one_b_order(rank, n_ranks, n_micro_batches) for rank in range(n_ranks)), "1F1B")


def interleaved(n_ranks: int, n_micro_batches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: each rank holds `chunks` stages, n_ranks apart. Narayanan et al. (2104.04473), section 2.2.2.

    Micro-batches go through in groups: a rank runs a whole group through its first stage, then the same group through
    its second, and so on. The paper wants groups of n_ranks, so a multiple of that. Here there are as many groups as
    ranks' worths, and they are as equal as can be, the larger ones first: 11 on 4 ranks are 6 and 5. With one chunk
    this is 1F1B.
    """
    _check(n_ranks, n_micro_batches)
    if chunks < 1:
        raise ValueError(f"{chunks} stages per rank are too few: give each rank 1 or more")
    groups = _groups(n_ranks, n_micro_batches)
    forward = [(chunk, mb) for group in groups for chunk in range(chunks) for mb in group]
    backward = [(chunk, mb) for group in groups for chunk in reversed(range(chunks)) for mb in group]
    per_hop = 1 if chunks == 1 else 2  # with more chunks, messages travel round: keep twice as many under way
    orders = []
    for rank in range(n_ranks):
        warm_up = min((chunks - 1) * len(groups[0]) + per_hop * (n_ranks - 1 - rank), len(forward))
        order = [(F, *visit) for visit in forward[:warm_up]]
        for ahead, behind in zip(forward[warm_up:], backward, strict=False):
            order += [(F, *ahead), (B, *behind)]
        order += [(B, *visit) for visit in backward[len(forward) - warm_up :]]
        orders.append(tuple(Action(chunk * n_ranks + rank, kind, mb) for kind, chunk, mb in order))
    return Schedule(tuple(orders), loop(n_ranks, chunks), f"interleaved 1F1B, {chunks} stages per rank")


def zb_h1(n_ranks: int, n_micro_batches: int) -> Schedule:
    """ZB-H1: 1F1B with the weight's backward put off, to fill the bubble. Qi et al. (2401.10241), section 2.1.

    Nobody waits for a weight's gradient. Rank r runs r of them late: it has as many micro-batches in memory as rank 0
    has under 1F1B. The previous stage gets its gradient earlier, and the end of the step is filled with what was
    put off.
    """
    _check(n_ranks, n_micro_batches)
    orders = []
    for rank in range(n_ranks):
        warm_up = min(n_ranks - 1 - rank, n_micro_batches)
        order = [(F, mb) for mb in range(warm_up)]
        for mb in range(n_micro_batches):
            if warm_up + mb < n_micro_batches:
                order.append((F, warm_up + mb))
            order.append((I, mb))
            if mb >= rank:
                order.append((W, mb - rank))
        order += [(W, mb) for mb in range(max(0, n_micro_batches - rank), n_micro_batches)]
        orders.append(order)
    return from_kinds(orders, "ZB-H1")


def zbv(n_ranks: int, n_micro_batches: int) -> Schedule:
    """ZB-V: two stages per rank in the shape of a V, memory of 1F1B. Qi et al. (2405.15362), section 4.

    The last stage is on rank 0, beside the first, so the first backward starts there, and every rank gets one of its
    two as early as the others. Where forward, input and weight backward take equally long, no rank waits between
    its first action and its last. For that it takes 2 n_ranks - 1 micro-batches; with fewer the table is that of
    2 n_ranks - 1, with gaps.
    """
    _check(n_ranks, n_micro_batches)
    whole = max(n_micro_batches, 2 * n_ranks - 1)
    orders = []
    for rank in range(n_ranks):
        up, down = rank, 2 * n_ranks - 1 - rank
        done: Counter[tuple[int, Kind]] = Counter()
        order: list[Action] = []

        def add(stage: int, *kinds: Kind, order=order, done=done) -> None:
            for kind in kinds:
                order.append(Action(stage, kind, done[stage, kind]))
                done[stage, kind] += 1

        for _ in range(2 * (n_ranks - rank) - 1):  # warm-up: until the first comes back down
            add(up, F)
        for _ in range(rank):  # what comes down has right of way, and makes room for one more to go up
            add(down, F)
            add(up, F)
        for _ in range(n_ranks - rank):  # the way down turns into the way back
            add(down, F, I, W)
        while done[down, F] < whole:  # steady: both stages forward and backward
            if done[up, F] < whole:
                add(up, F)
            add(up, I, W)
            add(down, F, I, W)
        for _ in range(rank):  # cool-down: what others wait for first, weights after
            add(up, I)
            add(down, I)
        for _ in range(n_ranks - rank):
            add(up, I, W)
        for stage in (down, up):
            while done[stage, W] < whole:
                add(stage, W)
        orders.append(tuple(action for action in order if action.micro_batch < n_micro_batches))
    return Schedule(tuple(orders), v_shape(n_ranks), "ZBV")


def _groups(n_ranks: int, n_micro_batches: int) -> list[range]:
    """Micro-batches in groups of n_ranks or a little more; all in one if there are fewer."""
    n_groups = max(1, n_micro_batches // n_ranks)
    size, larger = divmod(n_micro_batches, n_groups)
    starts = [i * size + min(i, larger) for i in range(n_groups + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def _check(n_ranks: int, n_micro_batches: int) -> None:
    if n_ranks < 1 or n_micro_batches < 1:
        raise ValueError(f"{n_micro_batches} micro-batches on {n_ranks} ranks are no pipeline: take 1 or more of each")
