"""What runs on the ranks: an answer, tried on every case of its exercise, with a watch on what it does.

What a case gave is written to a folder at once, so that it survives whatever the answer does next: a hang, `exit()`, a
SIGKILL. The kernel reads the folder and believes nothing else. Before the answer, the library's version runs on the
same inputs: its messages are what the answer's can be compared with.
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
from torch import Tensor

from course_lib import spmd
from course_lib.lab import calls, tape
from course_lib.lab.evidence import copy, parts, plain
from course_lib.lab.exercise import Task
from course_lib.lab.watch import watch_library
from course_lib.lab.written import file_of

PATIENCE_S = 4  # seconds an answer gets for all cases on one world size; right ones take milliseconds
PLAIN = int | float | str | None
OURS, THEIRS = "library", "answer"  # whose messages a tape holds


@dataclass
class Seen:
    """What one rank saw the answer do in one case.

    changed: positions of the arguments it changed in place. sent: bytes, those handed to torch's collectives included.
    calls: collectives of torch.distributed, by name; collectives: each of them, in order. library: functions of
    course_lib.collectives it called.
    """

    value: Any
    changed: list[int] = field(default_factory=list)
    sent: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    library: list[str] = field(default_factory=list)
    collectives: list[calls.Collective] = field(default_factory=list)


def try_cases(answer: Callable, task: Task, folder: str, members: list[int] | None = None) -> None:
    """On each rank: the answer on every case for this many ranks, what it did written to `folder`.

    members: world ranks of a group; then the answer runs on these alone, and gets it as `group`.
    """
    group = dist.new_group(members) if members else None
    if members and dist.get_rank() not in members:
        return
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    passed = {"group": group} if members else {}
    # torch.empty then gives NaN, not what happens to lie there: a value never written cannot be right by luck.
    torch.use_deterministic_algorithms(True, warn_only=True)
    file = file_of(answer)
    for index, _ in task.cases_on(n):
        with tape.record(tape_file(folder, OURS, index, rank, n), members or list(range(n)), ""):
            task.call(task.reference, *task.arguments(index, rank, n), **passed)
    dist.barrier(group)
    for index, _ in task.cases_on(n):
        args = task.arguments(index, rank, n)
        before = copy(args)
        with (
            spmd.traffic() as traffic,
            tape.record(tape_file(folder, THEIRS, index, rank, n), members or list(range(n)), file),
            calls.record(file) as log,
            watch_library(answer, task) as library,
        ):
            value = task.call(answer, *args, **passed)
        moved = traffic.sent + sum(traffic.collective_bytes.values())
        seen = Seen(plain(value), _changed(before, args), moved, dict(traffic.calls), library, log.collectives)
        write(Path(folder), index, rank, n, seen)
        dist.barrier(group)  # a message too many must not reach the next case


def tape_file(folder: Path | str, whose: str, index: int, rank: int, n: int) -> Path:
    return Path(folder) / f"{n}.{index}.{rank}.{whose}"


def tapes(folder: Path, whose: str, index: int, n: int) -> list[list[tape.Message]]:
    """By rank: the messages of one case, the library's or the answer's."""
    return [tape.read(tape_file(folder, whose, index, rank, n)) for rank in range(n)]


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
    """Positions of the arguments whose tensors, or whose lists of plain values, are others than they were."""

    def seen(value: Any) -> list:
        return [_bits(x) if isinstance(x, Tensor) else x for _, x in parts(value) if isinstance(x, Tensor | PLAIN)]

    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if seen(a) != seen(b)]


def _bits(x: Tensor) -> bytes:
    return x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if x.numel() else b""
