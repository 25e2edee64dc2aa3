"""Ranks that call different collectives, told in the answer's own lines: who calls what, and who has returned."""

from __future__ import annotations

import math
from collections.abc import Callable

from course_lib import spmd
from course_lib.lab import show
from course_lib.lab.attempt import quoted
from course_lib.lab.written import file_of
from course_lib.spmd.compare import first_mismatch
from course_lib.spmd.report import Op
from course_lib.spmd.words import alike

ORDER = "All ranks must call the same collectives, in the same order"
RULE = f"{ORDER}, with tensors of one size and dtype."


def explain_mismatch(reports: list[spmd.RankReport], answer: Callable) -> tuple[str, str] | None:
    """(name, sentence) for the first place where the ranks' collectives part; None where they do not."""
    found = first_mismatch({r.rank: r.ops for r in reports}, all(r.status == "returned" for r in reports))
    if found is None or found.what in ("root", "splits", "order"):
        return None
    file = file_of(answer)
    # The barrier is the trial's, which comes when an answer has returned.
    left = [r for r, op in found.ops.items() if op is None or op.name == "barrier" and op.frame.file != file]
    calls = alike({rank: _text(op, answer, file) for rank, op in found.ops.items() if rank not in left})
    told = "; ".join(f"{show.ranks(ranks)} call{'s' * (len(ranks) == 1)} {text}" for ranks, text in calls)
    exchange = any(op is not None and op.name.startswith("all_to_all") for op in found.ops.values())  # of any size
    rule = f"{ORDER}." if exchange else RULE
    if left:
        gone = f"{show.ranks(left)} {'has returned and calls' if len(left) == 1 else 'have returned and call'} nothing"
        return "calls_left_out", f"the ranks do not make the same calls. Where {gone}, {told}. {rule}"
    return "calls_differ", f"the ranks do not make the same calls: {told}. {rule}"


def _text(op: Op, answer: Callable, file: str) -> str:
    line = f" ({quoted(answer, op.frame.line)})" if op.frame.file == file else ""
    if op.shape is None or op.dtype == "ranks":
        return op.name + line
    count = math.prod(op.shape)
    kind = "" if op.reduce in (None, "SUM") else f" ({op.reduce})"
    return f"{op.name}{kind} of {count} element{'s' * (count != 1)}, {op.dtype}{line}"
