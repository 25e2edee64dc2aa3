"""A pipeline schedule as data: the actions of every rank, in order, and the rank of every stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind


class ScheduleError(ValueError):
    """A schedule that cannot run. The message says which action of which rank, and why."""


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order. Nothing here says when: an action starts when its rank and its data are there.

    orders: one tuple of actions per rank. placement: the rank of each stage. name: for people; two schedules that
    differ in it alone are equal in all that matters.

    Raises ScheduleError for a placement that names a rank that does not exist. Whether the actions can be run is
    another matter: see validate.problems.
    """

    orders: tuple[tuple[Action, ...], ...]
    placement: tuple[int, ...]
    name: str = ""

    def __post_init__(self) -> None:
        orders = tuple(tuple(Action(a[0], Kind(a[1]), a[2]) for a in order) for order in self.orders)
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "placement", tuple(self.placement))
        if not orders or not self.placement:
            raise ScheduleError(
                f"{len(orders)} ranks and {len(self.placement)} stages are no pipeline: give it one of each or more"
            )
        for stage, rank in enumerate(self.placement):
            if not 0 <= rank < len(orders):
                raise ScheduleError(
                    f"stage {stage} is placed on rank {rank}, but the orders are for ranks 0 to {len(orders) - 1}: "
                    "add an order, or place the stage on one of these"
                )

    @property
    def n_ranks(self) -> int:
        return len(self.orders)

    @property
    def n_stages(self) -> int:
        return len(self.placement)

    @property
    def n_micro_batches(self) -> int:
        """One more than the highest micro-batch that an action names; 0 if there are no actions."""
        return max((action.micro_batch for order in self.orders for action in order), default=-1) + 1

    @property
    def lowered(self) -> bool:
        """Whether sends and receives stand in the orders; else they are understood."""
        return any(action.kind not in COMPUTE for order in self.orders for action in order)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, in the order in which a micro-batch meets them."""
        return tuple(stage for stage, owner in enumerate(self.placement) if owner == rank)

    def renamed(self, name: str) -> Schedule:
        return replace(self, name=name)


def loop(n_ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """A placement: stage s on rank s % n_ranks, so each rank holds `chunks` stages (1: the plain pipeline)."""
    return tuple(range(n_ranks)) * chunks


def v_shape(n_ranks: int) -> tuple[int, ...]:
    """A placement: up the ranks and down again. Rank 0 has the first stage and the last, n_ranks - 1 the middle two."""
    return (*range(n_ranks), *reversed(range(n_ranks)))


def from_kinds(
    orders: Iterable[Iterable[tuple[str, int]]], name: str = "", placement: tuple[int, ...] | None = None
) -> Schedule:
    """A schedule of one stage per rank from what simple.gpipe_order gives for each: pairs (kind, micro-batch)."""
    lists = [list(order) for order in orders]
    actions = tuple(tuple(Action(rank, Kind(kind), mb) for kind, mb in order) for rank, order in enumerate(lists))
    return Schedule(actions, loop(len(lists)), name)
