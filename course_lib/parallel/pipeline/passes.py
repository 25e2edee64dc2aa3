"""From one table to another that does the same: sends and receives put in, halves of a backward put together."""

from __future__ import annotations

from dataclasses import replace

from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.needs import needs, other_end
from course_lib.parallel.pipeline.schedule import Schedule

_SENT_AFTER = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B, Kind.I: Kind.SEND_B}


def lower(schedule: Schedule) -> Schedule:
    """Sends and receives, put in: a send right after what makes it, a receive right before what needs it.

    Nothing is put between two stages of one rank. This is the plainest program: a receive that came earlier could
    wait while the rank computes, and a real runtime posts it so (messages.py). With sends that do not return until
    they are received, most schedules lowered like this stand still: see simulate.Costs.blocking.
    """
    placement = schedule.placement
    orders = []
    for rank, order in enumerate(schedule.orders):
        out: list[Action] = []
        for action in order:
            for need, *_ in needs(action, placement, lowered=True):
                if need.kind in (Kind.RECV_F, Kind.RECV_B):
                    out.append(need)
            out.append(action)
            if action.kind in _SENT_AFTER:
                send = Action(action.stage, _SENT_AFTER[action.kind], action.micro_batch)
                to = other_end(send).stage
                if 0 <= to < len(placement) and placement[to] != rank:
                    out.append(send)
        orders.append(tuple(out))
    return replace(schedule, orders=tuple(orders))


def merge_backward(schedule: Schedule) -> Schedule:
    """Each I that its own W follows at once becomes one B: the same work, in one walk over the graph, not two."""
    orders = []
    for order in schedule.orders:
        out: list[Action] = []
        for action in order:
            if action.kind == Kind.W and out and out[-1] == action._replace(kind=Kind.I):
                out[-1] = action._replace(kind=Kind.B)
            else:
                out.append(action)
        orders.append(tuple(out))
    return replace(schedule, orders=tuple(orders))
