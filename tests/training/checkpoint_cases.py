"""A training state to save, and what tests ask of a folder of checkpoints."""

import errno
import os
import random
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.training.checkpoint import CheckpointError, save


def state_of(step: int) -> dict:
    """A training state like the trainer's: nested, with tensors of several kinds and one shared by two names."""
    weight = torch.arange(30, dtype=torch.float64).view(5, 6) + step
    return {
        "model": {"head": weight, "embedding": weight, "half": torch.full((3,), 0.5, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weight * 2}}, "lr": 1e-3},
        "data": {"seen": step, "data": "abc"},
        "random": random.Random(step).getstate(),
        "nothing": None,
    }


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def parts_of(folder: Path) -> list[str]:
    """The files of a folder's checkpoints without the names of single saves: step-00000001/state, ..."""
    return sorted(name.split(".")[0] for name in everything_in(folder))


def save_on_all(folder: Path, step: int, failing: int | None = None) -> str:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == failing:

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        os.fsync = full
    try:
        save(folder, step, {"from": rank}, rank_state={"rank": rank} if rank != 2 else None)
    except CheckpointError as error:
        return str(error)
    return f"{n} ranks"
