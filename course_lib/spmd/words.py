"""How an explanation says things: ranks, calls, places, deaths."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Iterable

from .report import Op, RankReport
from .server import OWN_FAILURE


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 1 to 7`."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def alike(texts: dict[int, str]) -> list[tuple[list[int], str]]:
    """Ranks with the same text together, in the order of the first of them."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, text in sorted(texts.items()):
        groups[text].append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def ordinal(index: int) -> str:
    if index < 3:
        return ("first", "second", "third")[index]
    number = index + 1
    return (
        f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') if number % 100 not in (11, 12, 13) else 'th' }"
    )


def is_are(ranks: Iterable[int]) -> str:
    return "is" if len(list(ranks)) == 1 else "are"


def call_text(op: Op | None) -> str:
    if op is None:
        return "nothing"
    text = f"{op.describe()}, at {op.frame}"
    if op.waits is not None and op.waits != op.frame:
        text += f" (waits at {op.waits})"
    return text


def without_it(report: RankReport, awaited: Iterable[Op | None]) -> str:
    """How a rank that has returned came to miss the calls that others wait in."""
    failed = report.failed_in
    if failed is not None and any(op is not None and op.name == failed.name for op in awaited):
        return f": its own {failed.name}, at {failed.frame}, had failed with {report.error_text.splitlines()[0][:200]}"
    calls = [op for op in report.ops if op.key != "rendezvous"]
    if not calls:
        return " without that call, after no collective at all"
    return f" without that call; its last collective was {calls[-1].name} at {calls[-1].frame}"


def place(report: RankReport) -> str:
    if report.waiting is not None:
        return call_text(report.waiting)
    where = str(report.where) if report.where is not None else "an unknown place"
    return f"{where} (stopped by a signal)" if report.status == "stopped" else where


def death(report: RankReport) -> str:
    code = report.exit_code or 0
    if code == OWN_FAILURE and "Traceback" in report.output:
        last = report.output.strip().splitlines()[-1]
        return f"could not start or could not leave its results behind: {last[:300]}"
    if code >= 0:
        return f"left with exit code {code} before its function returned (os._exit, or a library ended the process)."
    name = signal.Signals(-code).name
    meaning = {
        "SIGKILL": "killed from outside, as the out-of-memory killer does",
        "SIGSEGV": "a wild memory access in native code",
        "SIGABRT": "native code gave up: see what it wrote",
        "SIGTERM": "asked to end from outside",
    }.get(name, "a signal")
    return f"died by {name} ({meaning})."


def last_words(output: str) -> list[str]:
    """The lines in which native code says why it ends the process."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"what\(\)|terminate called|Error|error|assert|enforce", line)]
    return [line[:300] for line in telling[-2:]]
