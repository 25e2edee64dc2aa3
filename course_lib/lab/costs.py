"""Right values at a wrong price: somebody else's work, too many bytes, time that does not overlap, arguments spoilt.

These are asked once the values are right (`borrowed_work` even before: it explains too much to wait).
"""

from __future__ import annotations

from collections.abc import Iterable

from course_lib.lab import show
from course_lib.lab.evidence import Evidence
from course_lib.lab.signatures.messages import in_n

FREE = frozenset({"barrier", "new_group"})  # synchronise or set up, move nothing
SLACK = 1.02  # a few bytes of bookkeeping are nobody's mistake


def borrowed_work(
    collectives: Iterable[str], library: Iterable[str], may_use: frozenset[str]
) -> tuple[str, str] | None:
    """collectives of torch.distributed and functions of course_lib that the answer called."""
    if used := sorted(set(collectives) - FREE - may_use):
        instead = f"Only {show.listing(sorted(may_use))} may be called here" if may_use else "Use send and receive only"
        return "calls_a_collective", f"This calls `dist.{used[0]}`: torch did the work. {instead}."
    if called := sorted(set(library)):
        return "calls_the_library", f"This calls the library's `{called[0]}`: write it yourself."
    return None


def changed_arguments(changed: list[list[int]], on_ranks: bool = True) -> tuple[str, str] | None:
    """changed[rank]: positions of the arguments that the answer changed in place."""
    for rank, positions in enumerate(changed):
        if positions:
            which = f"argument {positions[0]}" if positions[0] else "its input"
            return "changes_its_input", (
                f"the value is right, but {f'rank {rank}' if on_ranks else 'the answer'} changed {which} in place. "
                "The caller still needs it: "
                "work on a copy."
            )
    return None


def too_few_bytes(e: Evidence) -> tuple[str, str] | None:
    """Right values cannot come from nowhere: fewer bytes than any algorithm needs, and something else did the work."""
    sent = sum(e.sent)
    if sent >= e.total:
        return None
    if e.collectives is not None:
        told = "no rank handed a byte to a collective" if not sent else "too few bytes went to collectives"
        return "too_few_bytes", f"the values are right, but {told}: something else did the work."
    if not sent:
        told = "no rank sent a byte"
    else:
        told = f"all ranks together sent {show.size(sent)}, and that cannot be done with less than {show.size(e.total)}"
    return "too_few_bytes", f"the values are right, but {told}: something else did the work. Use send and receive."


def too_many_bytes(e: Evidence) -> tuple[str, str] | None:
    if e.least is None:
        return None
    rank = max(range(e.n), key=lambda r: e.sent[r] - e.least[r])
    nbytes, least = e.sent[rank], e.least[rank]
    if nbytes <= least * SLACK:
        return None
    mine, theirs = e.history.get(e.n, (0, 0))
    if mine > theirs > 0:
        have, want = (in_n({n: both[i] for n, both in e.history.items()}) for i in (0, 1))
        bytes_too = f"{show.size(nbytes)} where {show.size(least)} are enough"
        return "too_many_messages", f"right, but each rank sends {have} messages where {want} suffice: {bytes_too}."
    times = f"{show.number(round(nbytes / least, 1))} times the bytes" if least else "bytes it need not send"
    return (
        "too_many_bytes",
        f"right, but rank {rank} {sent(e, nbytes)} where {show.size(least)} are enough: {times}.",
    )


def sent(e: Evidence, nbytes: int) -> str:
    """ "sent 12.0 MB", or where torch's collectives sent them "handed 12.0 MB to all_reduce"."""
    if e.collectives is None:
        return f"sent {show.size(nbytes)}"
    names = sorted({call.name for calls in e.collectives for call in calls} - FREE)
    return f"handed {show.size(nbytes)} to {show.listing(names) if names else 'collectives'}"


def no_ring(e: Evidence) -> tuple[str, str] | None:
    """Where each rank should send to one neighbour alone and sends to more."""
    for rank, tape in enumerate(e.messages or []):
        peers = sorted({m.peer for m in tape if m.kind == "send" and m.peer is not None})
        if len(peers) > 1:
            return "no_ring", (
                f"right, but this is no ring: rank {rank} sends to {show.ranks(peers)}. In a ring each rank sends to "
                "its right neighbour alone."
            )
    return None


def no_overlap(e: Evidence) -> tuple[str, str] | None:
    """Where communication should hide behind computation and hides less than a tenth of itself."""
    if e.timeline is None:
        return None
    times = e.timeline.summary()
    if sum(t.overlapped for t in times) >= 0.1 * sum(t.communicating for t in times):
        return None
    t = max(times, key=lambda t: t.communicating)
    return "no_overlap", (
        f"right, but nothing overlaps: rank {t.rank} computes {show.seconds(t.busy)} and communicates "
        f"{show.seconds(t.communicating)}, both at once {show.seconds(t.overlapped)}. Start the communication, "
        "compute, wait last."
    )
