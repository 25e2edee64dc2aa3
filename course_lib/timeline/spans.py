"""Record what a rank did and when: `with span("backward", microbatch=3): ...`.

Every process has one buffer. A span goes into it when it ends; `drain()` empties it. The clock is
`time.monotonic_ns()`, which all processes of one machine share, so spans of different ranks can be laid side by
side. (Two machines do not share it.) A span measures this process's own time: on a GPU, kernels that were launched
but not waited for are not in it.

This module is imported in every rank before anything else, so it uses the standard library only.
"""

from __future__ import annotations

import numbers
import threading
from time import monotonic_ns
from typing import NamedTuple

# A span takes about 250 bytes, so a full buffer is about 25 MB. When it is full the first LIMIT spans are kept, later
# ones are counted and let go, and drain() ends with one DROPPED span that says how many and when.
LIMIT = 100_000
COMPUTE, COMM, DROPPED = "compute", "comm", "dropped"
MAIN, NETWORK = "main", "network"
PLAIN = frozenset({int, float, str, bool, type(None)})  # kept as they are


class Span(NamedTuple):
    """A stretch of time on one rank. Lane `main` is the program itself; `network` is a transfer in flight beside it."""

    name: str
    start_ns: int
    end_ns: int
    kind: str = COMPUTE
    lane: str = MAIN
    args: dict | None = None


_buffer: list[Span] = []
_dropped: Span | None = None
_full = threading.Lock()


def record(
    name: str, start_ns: int, end_ns: int, kind: str = COMPUTE, lane: str = MAIN, args: dict | None = None
) -> None:
    """Add a span whose times are known: `monotonic_ns()` readings, start <= end. Raises ValueError otherwise."""
    if (kind != COMPUTE and kind != COMM) or (lane != MAIN and lane != NETWORK) or end_ns < start_ns:
        raise ValueError(_what_is_wrong(name, start_ns, end_ns, kind, lane))
    if args:
        args = {key: value if type(value) in PLAIN else _plain(value) for key, value in args.items()}
    if len(_buffer) < LIMIT:
        _buffer.append(Span(name, start_ns, end_ns, kind, lane, args))
    else:
        _drop(start_ns, end_ns)


class span:
    """Context manager: record the time its block takes, also when the block raises.

    name: what the timeline calls it. kind: "compute" or "comm". args: small facts to keep with it (numbers, strings,
    shapes); of anything bigger only the type's name is kept, so that a span never keeps a tensor alive.
    """

    __slots__ = ("name", "kind", "args", "start_ns")

    def __init__(self, name: str, /, kind: str = COMPUTE, **args) -> None:
        if kind != COMPUTE and kind != COMM:
            raise ValueError(_what_is_wrong(name, 0, 0, kind, MAIN))
        self.name, self.kind, self.args = name, kind, args

    def __enter__(self) -> span:
        self.start_ns = monotonic_ns()
        return self

    def __exit__(self, exc_type, exc, tb) -> None:
        end_ns = monotonic_ns()
        args = self.args
        if exc_type is not None:
            args = {**args, "raised": exc_type.__name__}
        record(self.name, self.start_ns, end_ns, self.kind, MAIN, args or None)


def drain() -> list[Span]:
    """Return this process's spans in the order in which they ended, and forget them.

    If some were dropped, the last span has kind "dropped", args {"count": n}, and covers the time of the lost ones.
    """
    global _buffer, _dropped
    with _full:
        taken, _buffer = _buffer, []
        dropped, _dropped = _dropped, None
    return taken if dropped is None else [*taken, dropped]


def _drop(start_ns: int, end_ns: int) -> None:
    global _dropped
    with _full:
        if _dropped is not None:
            start_ns, end_ns = min(start_ns, _dropped.start_ns), max(end_ns, _dropped.end_ns)
        count = 1 if _dropped is None else _dropped.args["count"] + 1
        _dropped = Span("not recorded", start_ns, end_ns, DROPPED, MAIN, {"count": count})


def _plain(value):
    """A value that is small, pickles anywhere and can be written as JSON."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, (tuple, list)):  # a torch.Size among them
        return tuple(_plain(item) for item in value[:8])
    if isinstance(value, numbers.Integral):  # numpy's integers among them
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return type(value).__name__


def _what_is_wrong(name: str, start_ns: int, end_ns: int, kind: str, lane: str) -> str:
    if kind not in (COMPUTE, COMM):
        return f"span {name!r}: kind is {kind!r}; it can be {COMPUTE!r} or {COMM!r}."
    if lane not in (MAIN, NETWORK):
        return f"span {name!r}: lane is {lane!r}; it can be {MAIN!r} or {NETWORK!r}."
    return f"span {name!r} ends {start_ns - end_ns} ns before it starts; give monotonic_ns() readings, start first."
