"""Broadcast along a binomial tree as a machine that can be stopped after any round. No picture, no widget.

Places are counted from the root. In the round of distance d = 1, 2, 4, ... places 0 .. d - 1 have the data, and place p
sends it to place p + d. So the number of ranks that have it doubles, and ceil(log2(n)) rounds reach all n.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """Where the broadcast stands after `round` rounds. moves: (sender, receiver) of the round just made."""

    ranks: int
    root: int
    round: int
    have: frozenset[int]
    moves: tuple[tuple[int, int], ...]

    def text(self) -> str:
        """The state in words."""
        if self.round == 0:
            return (
                f"Start. Only rank {self.root} has the data; {rounds(self.ranks)} rounds will reach {self.ranks} ranks."
            )
        moves = ", ".join(f"{sender} → {receiver}" for sender, receiver in self.moves)
        return (
            f"Round {self.round} of {rounds(self.ranks)}. {moves}. "
            f"Now {len(self.have)} of {self.ranks} ranks have the data."
        )


def rounds(ranks: int) -> int:
    """ceil(log2(ranks)), without rounding errors."""
    return (ranks - 1).bit_length()


def run(ranks: int, root: int = 0) -> list[State]:
    """All states from the start to the end: rounds(ranks) + 1 of them."""
    if not 0 <= root < ranks:
        raise ValueError(f"Root {root} is not one of {ranks} ranks.")
    states = [State(ranks, root, 0, frozenset([root]), ())]
    for number in range(rounds(ranks)):
        distance = 2**number
        places = range(min(distance, ranks - distance))
        moves = tuple(((root + place) % ranks, (root + place + distance) % ranks) for place in places)
        have = states[-1].have | {receiver for _, receiver in moves}
        states.append(State(ranks, root, number + 1, have, moves))
    return states
