"""One action of a pipeline: a stage, what it does, and the micro-batch it does it to. Written "2F0": stage 2, F, 0."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a stage does with a micro-batch. The first four compute; the others move what was computed to its user."""

    F = "F"  # forward
    B = "B"  # the whole backward
    I = "I"  # noqa: E741  backward, gradient of the input only: the previous stage waits for it
    W = "W"  # backward, gradient of the weights only: nobody waits for it
    SEND_F = "SEND_F"  # send the activations that this stage made
    RECV_F = "RECV_F"  # receive the activations that the previous stage made
    SEND_B = "SEND_B"  # send the gradient of this stage's input
    RECV_B = "RECV_B"  # receive the gradient of this stage's output


COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})

_TEXT = re.compile(rf"(\d{{1,6}})({'|'.join(Kind)})(\d{{1,6}})", re.ASCII)


class Action(NamedTuple):
    """Stage `stage` does `kind` with micro-batch `micro_batch`; both count from 0."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that `str` writes as `text`. Raises ValueError for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no action: write the stage, one of {', '.join(Kind)}, and the micro-batch, as in 2F0"
            )
        stage, kind, micro_batch = match.groups()
        return cls(int(stage), Kind(kind), int(micro_batch))
