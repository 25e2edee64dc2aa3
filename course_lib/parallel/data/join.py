"""Ranks with different numbers of batches: those that have run out go through the motions until the last has.

    with model.join(step=step):
        for batch in batches:               # more of them on some ranks than on others
            loss(model(batch)).backward()
            step()                          # optimizer.step(), optimizer.zero_grad()

Every forward inside begins with one small all-reduce, in which the ranks say whether they still have input and what
they are about to do. A rank that has none left answers for as long as there are others, and shadows what they do: the
same collectives in the same order, with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from course_lib.parallel.data import agreement

if TYPE_CHECKING:
    from course_lib.parallel.data.ddp import DistributedDataParallel


class Join:
    """The context manager that `DistributedDataParallel.join` returns.

    divide_by_initial_world_size: gradients are divided by the size of the group, so that a batch counts the same
    whenever it comes; with False, by the number of ranks that still have input, so that the gradient stays a mean.
    step: what the loop does after backward. A rank that has run out calls it after each reduction it shadows, with the
    others' gradients in place, so that its optimizer takes part in every step. Without it, parameters and buffers are
    copied at the end from a rank that ran longest, but the optimizer of a rank that ran out early has missed steps: do
    not go on with it if it has a memory (momentum, Adam).

    A rank that runs out in the middle of a window loses what it has accumulated in `no_sync`: nothing is left to reduce
    it with, and the first step it shadows begins without gradients. So it is in torch's. Let ranks end with a window.

    Inside, each forward that is reduced has exactly one backward: RuntimeError otherwise.
    """

    def __init__(self, ddp: DistributedDataParallel, by_initial_size: bool, step: Callable[[], object] | None):
        self.ddp, self.by_initial_size, self.step = ddp, by_initial_size, step
        self._expected = 0  # the number of reductions when the backward of the last forward is done

    def __enter__(self) -> None:
        if self.ddp._join:
            raise RuntimeError("this module is inside a join already: leave it first")
        self.ddp._join = self
        self._expected = self.ddp.reducer.reductions

    def announce(self, reduces: bool, syncs: bool) -> None:
        """A rank with input, before its forward: tell the others what comes, and learn how many still take part."""
        self._require_one_backward()
        self._expected += reduces
        self._meet(1, reduces, syncs)

    def _require_one_backward(self) -> None:
        done = self.ddp.reducer.reductions
        if done != self._expected:
            raise RuntimeError(
                f"{abs(self._expected - done)} backward too {'few' if done < self._expected else 'many'} inside join: "
                "ranks that have run out shadow exactly one for each forward outside no_sync"
            )

    def _meet(self, *mine: int) -> tuple[int, ...]:
        """The sums over the ranks of: has input, will reduce its backward, syncs buffers."""
        reducer = self.ddp.reducer
        told = torch.tensor(mine, device=reducer.parameters[0].device)
        dist.all_reduce(told, group=self.ddp.group)
        active, reduces, syncs = told.tolist()
        reducer.divisor = reducer.n if self.by_initial_size else max(active, 1)
        return active, reduces, syncs

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ddp = self.ddp
        try:
            if error is None:
                self._require_one_backward()
                self._shadow_the_others()
        finally:
            ddp._join = None
            ddp.reducer.divisor = ddp.reducer.n

    def _shadow_the_others(self) -> None:
        reducer = self.ddp.reducer
        ran_longest = True
        while (met := self._meet(0, 0, 0))[0]:
            ran_longest = False
            _, reduces, syncs = met
            if reduces:
                reducer.rebuild()
            if syncs:
                self.ddp.sync_buffers()
            if reduces:
                reducer.shadow(attach=self.step is not None)
                if self.step:
                    self.step()
        self._copy_from_who_ran_longest(ran_longest)

    def _copy_from_who_ran_longest(self, ran_longest: bool) -> None:
        module, group = self.ddp.module, self.ddp.group
        root = torch.tensor(dist.get_rank(group) if ran_longest else -1, device=self.ddp.reducer.parameters[0].device)
        dist.all_reduce(root, dist.ReduceOp.MAX, group=group)
        agreement.broadcast_together([*module.parameters(), *module.buffers()], group, int(root))
