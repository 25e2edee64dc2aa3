"""Lab 1, bonus: half the bytes of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.lab import calls
from course_lib.lab.evidence import Aside, Evidence
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Timing, Wrong, random_tensor
from course_lib.lab.exercises.wrong import bf16_compress as casts
from course_lib.lab.signatures.words import signature
from course_lib.lab.written import file_of
from course_lib.parallel.data import compress

NO_GAIN = (
    "Half the bytes, and no time is gained: here the ranks share one machine, whose memory is the network, and casting "
    "takes the cores' time. It pays where the network is slow."
)
LARGE = 4_000_000  # elements of the timed bucket: 16 MB of float32


def compressed(answer: Callable, flat: Tensor, **group: Any) -> Any:
    """The mean, in bfloat16's precision, and whether its all-reduce ran between the call and `finish()`."""
    flat = flat.clone()
    file = file_of(answer)
    with calls.record(file) as log:
        finish = answer(flat, **group)
        returned = log.tick()
        if callable(finish):
            finish()
        elif isinstance(finish, dist.Work):  # so that it is told what is wrong with it, and not that nobody waits
            finish.wait()
    begun = [call for call in log.collectives if call.begun < returned]
    waits = [call.line for call in begun if call.ended is not None and call.ended < returned]
    if not callable(finish):
        return finish if finish is None else f"an object of type {type(finish).__name__}"
    return {
        "mean": flat.to(torch.bfloat16),
        "waits": bool(waits),
        "started": bool(begun),
        "seen": Aside({"waits": waits, "dtypes": sorted({call.dtype for call in log.collectives})}),
    }


def compressed_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    mean = sum(flat / n for (flat,) in inputs)
    return [{"mean": mean.to(torch.bfloat16), "waits": False, "started": True}] * n


def bucket(size: int, scale: float = 1.0) -> Case:
    many = f"{size} gradients" + (f" of about {scale:.0e}" if scale != 1.0 else "")
    return Case(lambda rank, n, rng: (random_tensor((size,), rng) * scale,), label=many)


def in_float32(flat: Tensor) -> Callable[[], None]:
    """The rival: all of the bytes."""
    work = dist.all_reduce(flat, async_op=True)

    def finish() -> None:
        work.wait()
        flat.div_(dist.get_world_size())

    return finish


@signature
def no_finish(e: Evidence) -> str | None:
    r = e.wrong[0]
    returned = (e.returned or e.observed)[r]
    if isinstance(returned, dict):
        return None
    what = "None" if returned is None else str(returned)
    return f"rank {r} returned {what}. Return the function `finish` itself: it is called later, when the mean is needed"


@signature
def another_16_bits(e: Evidence) -> str | None:
    if e.where != "`mean`":
        return None
    dtypes = e.aside(e.wrong[0]).get("dtypes", [])
    if "float16" in dtypes:
        return "float16 ends at 65,504: larger gradients become infinite. bfloat16 has float32's range"
    return None


@signature
def mean_not_written(e: Evidence) -> str | None:
    if e.where != "`mean`" or not any(e.collectives or []):
        return None
    if not all(bool((e.observed[r] == e.inputs[r][0].to(torch.bfloat16)).all()) for r in range(e.n)):
        return None
    return "`flat` holds each rank's own gradients, as before: write the mean into it, with `flat.copy_(...)`"


@signature
def waits_too_soon(e: Evidence) -> str | None:
    if e.where != "`waits`":
        return None
    line = e.aside(e.wrong[0])["waits"][0]
    quoted = e.quote(line) if line else "the all-reduce"
    how = "Keep the work, and wait in `finish`" if "async_op" in quoted else "`async_op=True`, and wait in `finish`"
    return f"right, but {quoted} is waited for before `finish()` is called, so nothing overlaps with it. {how}"


@signature
def starts_too_late(e: Evidence) -> str | None:
    if e.where != "`started`":
        return None
    return "right, but the all-reduce starts in `finish()`, when its result is needed already. Start it at once"


BF16_COMPRESS = Exercise(
    name="bf16_compress",
    lab="lab1",
    title="Bonus: half the bytes",
    minutes=10,
    difficulty=2,
    reference=compress.bf16_compress,
    cases=[bucket(8), bucket(101), bucket(8, 1e6)],
    expected=compressed_expected,
    call=compressed,
    may_change=True,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=lambda n, rank, args: 2 * args[0].numel(),
    timing=Timing(
        lambda rank, n, rng: (random_tensor((LARGE,), rng),), "16 MB", {"in float32": in_float32}, no_gain=NO_GAIN
    ),
    signatures=[no_finish, another_16_bits, mean_not_written, waits_too_soon, starts_too_late],
    hints=[
        "Three moments: before the sum, while it is under way, and when `finish()` is called. What belongs to which?",
        "What is where:\n"
        "    before    half = (flat / n) in bfloat16, then all_reduce(half), async\n"
        "    between   backward goes on\n"
        "    finish    wait; copy half into flat",
        "`half = (flat / n).to(torch.bfloat16)`; `work = dist.all_reduce(half, group=group, async_op=True)`; and a "
        "function `finish` that calls `work.wait()` and `flat.copy_(half)`.",
    ],
    advice={
        "too_many_bytes": "Cast to bfloat16 before the sum, not after it.",
        "never_waits": "Wait in `finish`.",
        "scaled": "Divide by n.",
    },
    wrong=[
        Wrong(casts.cast_after_the_sum, "Cast to bfloat16 before the sum"),
        Wrong(casts.not_asynchronous, "`async_op=True`, and wait in `finish`"),
        Wrong(casts.waiting_at_once, "Keep the work, and wait in `finish`"),
        Wrong(casts.starting_in_finish, "starts in `finish()`, when its result is needed"),
        Wrong(casts.never_written_back, "write the mean into it"),
        Wrong(casts.rebinding, "each rank's own gradients, as before"),
        Wrong(casts.sums, "a sum where a mean is needed"),
        Wrong(casts.never_waiting, "is never waited for"),
        Wrong(casts.in_float16, "bfloat16 has float32's range"),
        Wrong(casts.returning_the_work, "Return the function `finish` itself"),
        Wrong(casts.calling_finish, "returned None. Return the function `finish`"),
        Wrong(casts.without_group, "ight on the whole world, wrong in a group"),
    ],
)
