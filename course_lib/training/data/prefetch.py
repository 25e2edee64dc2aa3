"""Work done ahead, in a background thread: the next batches are made while the model computes on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def prefetch(make: Callable[[Item], Made], items: Iterable[Item], ahead: int) -> Iterator[Made]:
    """`make` of each item, in order, at most `ahead` of them before they are asked for. `ahead` 0: no thread.

    One thread runs `make`, and `items` is read here: nothing is read or made twice, or out of order. An error in `make`
    is raised here, when its turn comes, with the thread's own traceback. The thread ends when the iterator does:
    exhausted, closed, dropped, or after an error.
    """
    if ahead == 0:
        yield from map(make, items)
        return
    items = iter(items)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    try:
        pending = deque(thread.submit(make, item) for item in islice(items, ahead))
        while pending:
            made = pending.popleft().result()
            pending.extend(thread.submit(make, item) for item in islice(items, 1))
            yield made
    finally:
        thread.shutdown(cancel_futures=True)
