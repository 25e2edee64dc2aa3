"""What runs on the ranks: an answer, tried on every case of its exercise, with a watch on what it does.

What a case gave is written to a folder at once, so that it survives whatever the answer does next: a hang, `exit()`, a
SIGKILL. The kernel reads the folder and believes nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.lab.evidence import copy, plain, tensors
from course_lib.lab.exercise import Task
from course_lib.lab.watch import watch_library, watch_sends

PATIENCE_S = 5  # seconds an answer gets for all cases on one world size; right ones take milliseconds


@dataclass
class Seen:
    """What one rank saw the answer do in one case.

    changed: positions of the arguments it changed in place. sent: bytes, those handed to torch's collectives included.
    calls: collectives of torch.distributed, by name. library: functions of course_lib.collectives it called.
    early: (line, why) of the first send whose buffer was touched before it was waited for, or that never was.
    """

    value: Any
    changed: list[int] = field(default_factory=list)
    sent: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    library: list[str] = field(default_factory=list)
    early: tuple[int, str] | None = None


def try_cases(answer: Callable, task: Task, folder: str) -> None:
    """On each rank: the answer on every case for this many ranks, what it did written to `folder`."""
    rank, n = dist.get_rank(), dist.get_world_size()
    # torch.empty then gives NaN, not what happens to lie there: a value never written cannot be right by luck.
    torch.use_deterministic_algorithms(True, warn_only=True)
    file = answer.__code__.co_filename if hasattr(answer, "__code__") else ""
    for index, _ in task.cases_on(n):
        args = task.arguments(index, rank, n)
        before = copy(args)
        with spmd.traffic() as traffic, watch_sends(file) as sends, watch_library(answer, task) as library:
            value = task.call(answer, *args)
        moved = traffic.sent + sum(traffic.collective_bytes.values())
        seen = Seen(plain(value), _changed(before, args), moved, dict(traffic.calls), library, sends.early())
        write(Path(folder), index, rank, n, seen)
        dist.barrier()  # a message too many must not reach the next case


def write(folder: Path, index: int, rank: int, n: int, seen: Seen) -> None:
    try:
        data = cloudpickle.dumps(seen)
    except Exception:  # whatever an answer returns: a generator, an open file
        seen.value = f"an object of type {type(seen.value).__name__}"
        data = cloudpickle.dumps(seen)
    half = folder / f"{n}.{index}.{rank}.half"
    half.write_bytes(data)
    half.rename(folder / f"{n}.{index}.{rank}")


def read(folder: Path, index: int, n: int) -> list[Seen | None]:
    """By rank; None for a rank that did not get through this case."""
    files = [folder / f"{n}.{index}.{rank}" for rank in range(n)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def _changed(before: tuple, after: tuple) -> list[int]:
    def bits(value: Any) -> list[bytes]:
        return [
            t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors(value) if t.numel()
        ]

    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if bits(a) != bits(b)]
