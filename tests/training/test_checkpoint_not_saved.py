"""Checkpoints that cannot be saved: it is told, and the older one stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_cases import everything_in, parts_of

from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint import CheckpointError, latest, load, save


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [(np.zeros(3), r"numpy\S*"), (np.float64(1.0), r"numpy\S*"), (Custom(), r"\S*Custom")],
)
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path, value, named):
    save(tmp_path, 1, {"a": 1})
    before = everything_in(tmp_path)
    with pytest.raises(CheckpointError, match=rf"step 2 was not saved. state holds a {named}: only tensors.* step 1\."):
        save(tmp_path, 2, {"deep": [value]})
    assert everything_in(tmp_path) == before


def test_a_full_disk_leaves_the_older_one_and_nothing_else(tmp_path):
    """In a process whose files cannot grow beyond 64 kB, as on a disk that is full."""
    program = (
        "import resource, sys, torch; from course_lib.training.checkpoint import save\n"
        "save(sys.argv[1], 1, {'x': torch.zeros(10)})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))\n"
        "try: save(sys.argv[1], 2, {'x': torch.zeros(100_000)})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    said = f"CheckpointError The checkpoint of step 2 was not saved. Rank 0: OSError: [Errno {errno.EFBIG}]"
    assert said in ended.stdout
    assert "The last one saved is that of step 1." in ended.stdout
    assert parts_of(tmp_path) == ["latest", "step-00000001/manifest", "step-00000001/state"]
    assert load(tmp_path).step == 1


@pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "replace"])
@pytest.mark.parametrize("step", [1, 2])
def test_whatever_fails_the_older_one_stays(tmp_path, monkeypatch, call, step):
    """Step 2 is new; step 1 is there already and saved again."""
    save(tmp_path, 1, {"a": "old"}, rank_state="old")
    before = everything_in(tmp_path)

    def fails(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(*{"mkdir": (Path, "mkdir"), "open": ("builtins.open",)}.get(call, (os, call)), fails)
        with pytest.raises(CheckpointError, match=r"No space left on device.*The last one saved is that of step 1\."):
            save(tmp_path, step, {"a": "new"}, rank_state="new")
    assert everything_in(tmp_path) == before
    assert not (tmp_path / "step-00000002").exists()
    assert load(tmp_path) == (1, {"a": "old"}, "old", 1)


def test_what_fails_once_the_manifest_is_in_place_breaks_nothing(tmp_path, monkeypatch):
    """The last flush fails: it may not be on the disk, so an error; but what is there is whole and stays."""
    save(tmp_path, 1, {"a": "old"})
    calls = iter(range(100))

    def fails_late(_):
        if next(calls) == 2:  # after the rename
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(files, "flush_folder", fails_late)
        with pytest.raises(CheckpointError, match="step 1 was not saved.*Input/output error"):
            save(tmp_path, 1, {"a": "new"})
    assert load(tmp_path).state == {"a": "new"}


def test_what_fails_after_the_save_does_not_undo_it(tmp_path, monkeypatch):
    save(tmp_path, 1, {"a": 1}, keep=1)

    def fails(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "point_at", fails)
        save(tmp_path, 2, {"a": 2}, keep=1)
    assert latest(tmp_path) == 2 and (tmp_path / "latest").read_text() == "step-00000001\n"
    save(tmp_path, 3, {"a": 3}, keep=1)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000003"]
