"""Checkpoints that are whole or not there: a job killed at any moment goes on from the last one that was saved.

    folder/step-00000100/state.<token>.pt      what is the same on all ranks: rank 0 writes it
                         rank-0.<token>.pt     what each rank has of its own, such as its random numbers
                         manifest.json         their sizes and SHA-256, how many ranks, the how-manieth save this is
    folder/latest                              the newest step's name, for people and scripts

Why nothing is lost. A checkpoint exists when its manifest does. The files are written first, under names that no other
save uses, and flushed to the disk (fsync); when all ranks have done so, the manifest is written beside its place and
renamed into it, which the file system does at once or not at all. Only then does `latest` change and an old checkpoint
go, its manifest first. So a kill leaves the older ones as they were and at most some files without a manifest, which
the next save removes.

Left out: saving in the background, and a state whose parts lie on different ranks. All ranks must see one folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint_files import CheckpointError, DamagedCheckpoint, latest

__all__ = ["Checkpoint", "CheckpointError", "DamagedCheckpoint", "latest", "load", "save"]

Value = TypeVar("Value")


class Checkpoint(NamedTuple):
    """What was saved. rank_state is None if this rank saved none or was not there; `ranks` is how many were."""

    step: int
    state: Any
    rank_state: Any
    ranks: int


def save(
    folder: str | Path,
    step: int,
    state: Any,
    rank_state: Any = None,
    group: dist.ProcessGroup | None = None,
    keep: int = 3,
) -> Path:
    """Save a checkpoint of `step`, in place of an older one of that step. Returns its own folder.

    All ranks of the group call this together; without torch.distributed the only process does. state: the same on all
    ranks, of which rank 0's is written. rank_state: this rank's own. Both of tensors, numbers, strings, lists, tuples
    and dicts, so that loading them runs no code. The last `keep` that were saved are kept, this one among them.

    Raises CheckpointError on all ranks, with the reason of the first that failed (a full disk, say), and leaves nothing
    of this checkpoint behind. Raises ValueError for a `keep` below 1 or a negative step.
    """
    if keep < 1 or step < 0:
        raise ValueError(f"keep is {keep} and step is {step}: keep at least 1 checkpoint, and count steps from 0.")
    rank = rank_in(group)
    folder = Path(folder)
    place = folder / files.name_of(step)
    parts = {"state": state} if rank == 0 else {}
    if rank_state is not None:
        parts[f"rank-{rank}"] = rank_state
    token = ""
    try:
        token = together(lambda: files.begin(place) if rank == 0 else "", group)[0]
        written = together(lambda: [files.write(place, part, token, value) for part, value in parts.items()], group)
        together(lambda: files.commit(folder, step, written) if rank == 0 else None, group)
    except CheckpointError as error:
        if rank == 0:
            files.discard(place, token)
        older = latest(folder)
        there = "There is none in its folder." if older is None else f"The last one saved is that of step {older}."
        raise CheckpointError(f"The checkpoint of step {step} was not saved. {error} {there}") from error
    if rank == 0:
        files.tidy(folder, step, keep)
    return place


def load(folder: str | Path, step: int | None = None, group: dist.ProcessGroup | None = None) -> Checkpoint:
    """The checkpoint of `step`, or the one saved last. Tensors are on the CPU.

    All ranks of the group call this together; rank 0 says which is the last. Their number may differ from when it was
    saved: a rank that was not there gets the rank_state None. Files are compared with the manifest before they are
    read, and read as data alone (`weights_only`).

    Raises FileNotFoundError where there is none, and DamagedCheckpoint, on all ranks, where one is not whole.
    """
    rank = rank_in(group)
    folder = Path(folder)
    found, others = together(lambda: files.choose(folder, step) if rank == 0 else (None, []), group)[0]
    if found is None:
        steps = f"there are the steps {', '.join(map(str, others))}" if others else "there is none yet"
        raise FileNotFoundError(f"No checkpoint{'' if step is None else f' of step {step}'} in {folder}: {steps}.")
    own = f"rank-{rank}"
    # Rank 0 verifies the state for all: it need not be read twice by each of many ranks on one disk.
    together(lambda: files.verify(folder, found, ["state", own] if rank == 0 else [own]), group)
    place = folder / files.name_of(found)
    return Checkpoint(found, files.read(place, "state"), files.read(place, own), files.read_manifest(place)["ranks"])


# What ranks do together


def rank_in(group: dist.ProcessGroup | None) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def together(work: Callable[[], Value], group: dist.ProcessGroup | None) -> list[Value]:
    """work() on every rank, and what it gave on each, on all. No rank goes on before all are done.

    If it fails on a rank, all raise: else the others would wait in the next collective for one that has left.
    """
    value = failure = cause = None
    try:
        value = work()
    except CheckpointError as error:
        failure = error
    except Exception as error:
        failure, cause = CheckpointError(f"Rank {rank_in(group)}: {type(error).__name__}: {error}."), error
    outcomes = [(value, failure)]
    if dist.is_initialized():
        outcomes = [None] * dist.get_world_size(group)
        dist.all_gather_object(outcomes, (value, failure), group=group)
    for _, failed in outcomes:
        if failed is not None:
            raise failed from cause
    return [value for value, _ in outcomes]
