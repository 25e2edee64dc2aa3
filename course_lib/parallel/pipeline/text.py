"""Schedules as text, to save, share and edit: a name, the placement, and one line per rank.

    name: 1F1B
    placement: 0 1
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1

Spaces may be added; empty lines, and what follows a #, are not read. And the CSV of torch.distributed.pipelining: one
line per rank, no header, cells may be empty.
"""

from __future__ import annotations

import re

from course_lib.parallel.pipeline.actions import Action
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError

_LINE = re.compile(r"(name|placement|rank\s+(\d{1,6}))\s*:(.*)", re.ASCII)


def dumps(schedule: Schedule) -> str:
    """The text of a schedule; `loads` gives the same schedule back. Raises ScheduleError for a name of two lines."""
    if schedule.name != " ".join(schedule.name.split()) or "#" in schedule.name:
        raise ScheduleError(f"the name {schedule.name!r} does not survive: write it on one line, with no # in it")
    lines = [f"name: {schedule.name}"] if schedule.name else []
    lines.append("placement: " + " ".join(map(str, schedule.placement)))
    lines += [f"rank {rank}: {' '.join(map(str, order))}".rstrip() for rank, order in enumerate(schedule.orders)]
    return "\n".join(lines) + "\n"


def loads(text: str) -> Schedule:
    """The schedule that a text describes, right or not: see validate. Raises ScheduleError with the line and a reason.

    Without a placement, the stages are where they run.
    """
    name, placement = "", None
    orders: list[tuple[Action, ...]] = []
    seen = set()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise _unreadable(number, f"{_short(line)} is none of 'name: ..', 'placement: ..' and 'rank 0: ..'")
        key, rank, value = match.groups()
        key = "rank " + str(int(rank)) if rank else key
        if key in seen:
            raise _unreadable(number, f"a second line for {key}")
        seen.add(key)
        if key == "name":
            name = " ".join(value.split())
        elif key == "placement":
            placement = _placement(value.split(), number)
        elif int(rank) != len(orders):
            raise _unreadable(number, f"rank {int(rank)}, where rank {len(orders)} comes next: write them in order")
        else:
            orders.append(_order(value.split(), number))
    if not orders:
        raise ScheduleError("no line begins with 'rank 0:', so there is nothing to run")
    return Schedule(tuple(orders), placement or _where_they_run(orders), name)


def to_csv(schedule: Schedule) -> str:
    """The CSV that torch.distributed.pipelining loads: one line per rank. It has no room for name and placement."""
    return "".join(",".join(map(str, order)) + "\n" for order in schedule.orders)


def from_csv(text: str, name: str = "") -> Schedule:
    """The schedule of such a CSV; each stage is on the rank that runs it. Raises ScheduleError with line and reason."""
    lines = text.splitlines()
    orders = [_order([cell.strip() for cell in line.split(",")], i) for i, line in enumerate(lines, 1)]
    if not any(orders):
        raise ScheduleError("no line holds an action, so there is nothing to run")
    return Schedule(tuple(orders), _where_they_run(orders), name)


def _order(words: list[str], number: int) -> tuple[Action, ...]:
    try:
        return tuple(Action.parse(word) for word in words if word)
    except ValueError as error:
        raise _unreadable(number, str(error)) from None


def _placement(words: list[str], number: int) -> tuple[int, ...]:
    for word in words:
        if re.fullmatch(r"\d{1,6}", word, re.ASCII) is None:
            raise _unreadable(number, f"{_short(word)} is no rank: write the rank of each stage, as in 0 1 1 0")
    if not words:
        raise _unreadable(number, "no stages: write the rank of each, as in 0 1 1 0")
    return tuple(map(int, words))


def _where_they_run(orders: list[tuple[Action, ...]]) -> tuple[int, ...]:
    """The rank of each stage: the first that runs it."""
    rank_of: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for action in order:
            rank_of.setdefault(action.stage, rank)
    if sorted(rank_of) != list(range(len(rank_of))):
        gap = next(stage for stage in range(len(rank_of)) if stage not in rank_of)
        raise ScheduleError(f"stage {max(rank_of)} runs, but nothing says where stage {gap} is: write a placement")
    return tuple(rank_of[stage] for stage in range(len(rank_of)))


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _unreadable(number: int, reason: str) -> ScheduleError:
    return ScheduleError(f"line {number}: {reason}")
