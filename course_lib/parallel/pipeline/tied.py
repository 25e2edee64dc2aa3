"""A weight that two ranks hold: the tied embedding, used by the first stage and by the last."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from course_lib.collectives.p2p import rank_and_size, send_recv
from course_lib.parallel.pipeline.schedule import Schedule


class TiedWeight:
    """The first stage's embedding and the last stage's head: one weight, of which two ranks may each have a copy.

    stages: those of this rank, as in `Pipeline`. Every rank of the pipeline makes one; it acts on the two ranks that
    hold a copy. Where both stages are on one rank they get the same parameter, and nothing is sent.

    copy: the head's weight, on the rank where it is a copy; None elsewhere. A norm over all stages leaves it out, and
    clipping scales it all the same (training/clip.py).
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], schedule: Schedule, group: dist.ProcessGroup | None = None
    ) -> None:
        first, last = schedule.placement[0], schedule.placement[-1]
        rank, _ = rank_and_size(group)
        self.group, self.weight, self.copy = group, None, None
        if first == last == rank:
            stages[schedule.n_stages - 1].head.weight = stages[0].embedding.weight
        elif rank == first:
            self.weight, self.peer = stages[0].embedding.weight, last
        elif rank == last:
            self.weight = self.copy = stages[schedule.n_stages - 1].head.weight
            self.peer = first

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Give both copies the sum of their gradients. Once per step, after backward, before the norm and the step."""
        if self.weight is None or not self.weight.requires_grad:
            return
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        mine = self.weight.grad.contiguous()
        theirs = send_recv(mine, self.peer, torch.empty_like(mine), self.peer, self.group)
        # a + b is b + a to the bit, so that the copies stay equal.
        self.weight.grad += theirs
