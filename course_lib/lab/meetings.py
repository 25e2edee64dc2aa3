"""Do the messages of the ranks meet? From their tapes: memory that is not free yet, sizes that differ, steps left out.

All of it is certain: what is said here was seen. Ranks are counted within the group of the case, lines are the
answer's; `quote` puts a line into words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from course_lib.lab import show
from course_lib.lab.calls import Collective
from course_lib.lab.tape import Message

Found = tuple[str, str]  # (name, sentence)
Quote = Callable[[int], str]


@dataclass(frozen=True)
class Pair:
    """The messages one rank sent another, and those the other asked for, in order."""

    source: int
    target: int
    sent: list[Message]
    asked: list[Message]


def pairs(tapes: list[list[Message]]) -> list[Pair]:
    """All pairs of ranks between which a message was sent or asked for."""
    found: dict[tuple[int, int], Pair] = {}
    for rank, tape in enumerate(tapes):
        for m in tape:
            if m.peer is not None:
                source, target = (rank, m.peer) if m.kind == "send" else (m.peer, rank)
                pair = found.setdefault((source, target), Pair(source, target, [], []))
                (pair.sent if m.kind == "send" else pair.asked).append(m)
    return [found[key] for key in sorted(found)]


def anybody(tapes: list[list[Message]]) -> bool:
    """Whether some rank receives from whoever comes first: then it is not known which message met which."""
    return any(m.kind == "recv" and m.peer is None for tape in tapes for m in tape)


def shared_memory(tapes: list[list[Message]], quote: Quote) -> Found | None:
    """A message comes into the memory from which another is leaving."""
    for tape in tapes:
        under_way: list[Message] = []
        for later in tape:
            under_way = [m for m in under_way if _still(m, later)]
            for earlier in under_way:
                if earlier.kind != later.kind and _overlap(earlier.memory, later.memory):
                    return "shares_memory", _sharing(earlier, later, quote)
            under_way.append(later)
    return None


def _still(m: Message, later: Message) -> bool:
    # Of a message that nobody waits for, the tensor may be gone and its memory another's; not within one line.
    return m.line == later.line if m.ended is None else m.ended > later.begun


def _sharing(earlier: Message, later: Message, quote: Quote) -> str:
    sends, receives = (earlier, later) if earlier.kind == "send" else (later, earlier)
    what = "so nobody knows which values leave. Receive into a tensor of its own."
    if sends.line == receives.line:
        return f"{_line(quote, sends)} sends and receives in the same memory, {what}"
    return f"{_line(quote, receives)} receives into the memory that {_line(quote, sends)} sends from, {what}"


def careless_send(tapes: list[list[Message]], done: Collection[int], quote: Quote) -> Found | None:
    """A tensor that is changed before its send is waited for; or a send that a rank which is done never waited for."""
    if touched := next((m for tape in tapes for m in tape if m.changed), None):
        return "touches_what_it_sends", (
            f"the tensor sent in {_line(quote, touched)} is changed before that send is waited for, so nobody knows "
            "which values leave. Wait first, or add into another tensor."
        )
    if left := next((m for r in done for m in tapes[r] if m.kind == "send" and m.ended is None), None):
        return "never_waits", (
            f"the send of {_line(quote, left)} is never waited for: its data may not have left when you return."
        )
    return None


def careless_collective(collectives: list[list[Collective]], quote: Quote) -> Found | None:
    """A tensor changed before its collective is waited for; a collective that a rank which is done never waited for.

    collectives: of the ranks that are done.
    """
    if touched := next((call for calls in collectives for call in calls if call.changed), None):
        return "touches_what_it_reduces", (
            f"the tensor given to the {touched.name} of {quote(touched.line) or 'one of your calls'} is changed before "
            "that is waited for, so nobody knows which values are taken."
        )
    left = next((call for calls in collectives for call in calls if call.ended is None and not call.by_future), None)
    if left is None:
        return None
    return "never_waits", (
        f"the {left.name} of {quote(left.line) or 'one of your calls'} is never waited for: nobody knows when its "
        "result is there."
    )


def unequal_sizes(tapes: list[list[Message]], quote: Quote) -> Found | None:
    """A message received into a tensor of another size than was sent."""
    if anybody(tapes):
        return None
    for pair in pairs(tapes):
        for sent, asked in zip(pair.sent, pair.asked, strict=False):
            if sent.nbytes != asked.nbytes:
                have, want = f"{asked.count} element{'s' * (asked.count != 1)}", f"{sent.count}"
                if asked.count == sent.count:
                    have, want = show.size(asked.nbytes), show.size(sent.nbytes)
                return "unequal_sizes", (
                    f"rank {pair.target} received into {have} what rank {pair.source} sent as {want} "
                    f"({_line(quote, asked)}). A receive needs a tensor of the size that was sent."
                )
    return None


def out_of_step(tapes: list[list[Message]]) -> Pair | None:
    """A pair of ranks of which one has sent more than the other has asked for, or the reverse."""
    if anybody(tapes):
        return None
    return next((pair for pair in pairs(tapes) if len(pair.sent) != len(pair.asked)), None)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _line(quote: Quote, m: Message) -> str:
    return quote(m.line) or "one of your calls"
