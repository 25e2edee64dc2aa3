"""No moment of a save is a bad one to be killed at."""

import functools
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_cases import everything_in, parts_of, same, save_on_all

from course_lib import spmd
from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint import load, save

MOMENTS = [
    (Path, "mkdir"), (files.Hashing, "write"), (os, "fsync"), (os, "replace"), (Path, "unlink"), (Path, "rmdir"),
]  # fmt: skip


def save_and_die(folder: Path, step: int, moment: int, rank: int = 0) -> None:
    """Save with keep=1; rank `rank` kills itself when it is about to make the call number `moment` to the disk."""
    me = dist.get_rank() if dist.is_initialized() else 0
    calls = 0

    def deadly(call):
        @functools.wraps(call)
        def wrapped(*args, **kwargs):
            nonlocal calls
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return call(*args, **kwargs)

        return wrapped

    os.fsync = no_flush  # a killed process takes nothing along that the system has
    if me == rank:
        for owner, name in MOMENTS:
            setattr(owner, name, deadly(getattr(owner, name)))
    save(folder, step, {"step": step, "x": torch.full((2_000,), step)}, rank_state=me, keep=1)


def no_flush(_) -> None:
    pass


def exit_status(function, *args) -> int:
    """Of a child that runs it: 0, 1 after an error, -9 if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            function(*args)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("step", [1, 2], ids=["the step that is there", "a new step"])
def test_killed_at_any_moment(tmp_path, monkeypatch, step):
    """keep=1, so that at every moment the old one or the new one is all there is."""
    monkeypatch.setattr(os, "fsync", no_flush)
    save(tmp_path / "before", 1, {"step": 1, "x": torch.full((2_000,), 1), "old": True}, rank_state=0)
    outcomes = []
    for moment in range(100):
        folder = shutil.copytree(tmp_path / "before", tmp_path / str(moment))
        status = exit_status(save_and_die, folder, step, moment)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        found = load(folder)
        assert same(found.state["x"], torch.full((2_000,), found.step)) and found.rank_state == 0
        outcomes.append("old" in found.state)
        # One that was about to be removed is whole, or does not exist any more.
        assert [step for step in files.saved(folder) if files.damage_in(folder / files.name_of(step))] == []
        save(folder, 3, {"step": 3}, keep=1)
        assert parts_of(folder) == ["latest", "step-00000003/manifest", "step-00000003/state"]
    assert len(outcomes) >= 15  # the calls of one save
    assert outcomes == sorted(outcomes, reverse=True) and len(set(outcomes)) == 2  # first the old one, then the new


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc")
def test_what_a_name_stands_for_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    """A kill does not show it, a power cut does: so the order of the calls is looked at."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def named(path) -> str:
        return re.sub(r"\.[0-9a-f]{8}\.", ".", str(Path(path).relative_to(tmp_path)))

    def note_fsync(handle):
        calls.append(f"flush {named(os.readlink(f'/proc/self/fd/{handle}'))}")
        fsync(handle)

    def note_replace(old, new):
        calls.append(f"rename {named(new)}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    save(tmp_path, 1, {"a": 1}, rank_state=1)
    assert calls == [
        "flush step-00000001/state.pt",
        "flush step-00000001/rank-0.pt",
        "flush step-00000001/manifest.json.aside",
        "flush step-00000001",
        "rename step-00000001/manifest.json",
        "flush step-00000001",
        "flush .",
        "flush latest.aside",
        "flush .",
        "rename latest",
        "flush .",
    ]


def test_a_rank_killed_in_a_save_leaves_the_older_one(tmp_path):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    for rank, moment in (1, 3), (0, 12):
        with pytest.raises(spmd.SpmdError):
            spmd.run(save_and_die, tmp_path, 6, moment, rank, ranks=3, timeout=20)
        assert load(tmp_path).step == 5
    assert spmd.run(save_on_all, tmp_path, 7, ranks=3) == ["3 ranks"] * 3
    assert {name.split("/")[0] for name in everything_in(tmp_path)} == {"latest", "step-00000005", "step-00000007"}
