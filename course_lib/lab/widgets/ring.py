"""Ring all-reduce as a machine that can be stopped after any step. No picture, no widget: only who holds what.

n ranks stand in a ring; each sends to its right neighbour, rank + 1. The data is cut into n chunks.

- reduce-scatter, n - 1 steps: a rank adds what arrives to its own chunk. Then rank r holds chunk r complete.
- all-gather, n - 1 steps: a rank keeps what arrives in place of its own. Then every rank holds every chunk.

The chunk that a rank sends is always the one that arrived in the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

REDUCE_SCATTER, ALL_GATHER = "reduce-scatter", "all-gather"


class Move(NamedTuple):
    """One message: `sender` sends its copy of `chunk`, in which the shares of the ranks `content` are summed."""

    sender: int
    receiver: int
    chunk: int
    content: frozenset[int]


@dataclass(frozen=True)
class State:
    """Where the ring stands after `step` steps.

    holds[rank][chunk]: the ranks whose shares are summed in that copy. moves: the messages of the step just made,
    one per rank; none at step 0. phase: that of the step just made; at step 0, of the next one.
    """

    ranks: int
    step: int
    phase: str
    holds: tuple[tuple[frozenset[int], ...], ...]
    moves: tuple[Move, ...]

    def complete(self, rank: int, chunk: int) -> bool:
        """Is every rank's share in this copy?"""
        return len(self.holds[rank][chunk]) == self.ranks

    def spent(self, rank: int, chunk: int) -> bool:
        """Was this copy sent on half-summed, so that it only waits to be overwritten?"""
        sent = {sent_chunk(self.ranks, rank, step) for step in range(min(self.step, self.ranks - 1))}
        return chunk in sent and not self.complete(rank, chunk)

    def text(self) -> str:
        """The state in words."""
        last = 2 * (self.ranks - 1)
        if self.step == 0:
            return f"Start. Each of {self.ranks} ranks holds its own share of each of {self.ranks} chunks."
        verb = "added to" if self.phase == REDUCE_SCATTER else "kept as"
        moves = ", ".join(f"{move.sender} → {move.receiver}: chunk {move.chunk}" for move in self.moves)
        done = sum(self.complete(rank, chunk) for rank in range(self.ranks) for chunk in range(self.ranks))
        return (
            f"Step {self.step} of {last}, {self.phase}. {moves}. What arrives is {verb} the receiver's chunk. "
            f"Complete now: {done} of {self.ranks**2} copies."
        )


def sent_chunk(ranks: int, rank: int, step: int) -> int:
    """The chunk that `rank` sends in step `step`, counted from 0 over both phases."""
    return (rank - 1 - step) % ranks


def run(ranks: int) -> list[State]:
    """All states from the start to the end: 2(n - 1) + 1 of them. ranks: at least 1."""
    if ranks < 1:
        raise ValueError(f"A ring needs at least 1 rank; {ranks} was asked for.")
    holds = tuple(tuple(frozenset([rank]) for _ in range(ranks)) for rank in range(ranks))
    states = [State(ranks, 0, REDUCE_SCATTER, holds, ())]
    for step in range(2 * (ranks - 1)):
        phase = REDUCE_SCATTER if step < ranks - 1 else ALL_GATHER
        states.append(_after(states[-1], phase))
    return states


def _after(state: State, phase: str) -> State:
    """One step: all ranks send at once, from what they held before it."""
    n = state.ranks
    moves = []
    for rank in range(n):
        chunk = sent_chunk(n, rank, state.step)
        moves.append(Move(rank, (rank + 1) % n, chunk, state.holds[rank][chunk]))
    holds = [list(row) for row in state.holds]
    for move in moves:
        own = holds[move.receiver][move.chunk]
        holds[move.receiver][move.chunk] = own | move.content if phase == REDUCE_SCATTER else move.content
    return State(n, state.step + 1, phase, tuple(map(tuple, holds)), tuple(moves))
