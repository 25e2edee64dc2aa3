"""Checkpoints: what is saved is loaded, damage is told, and no moment is a bad one to be killed at."""

import errno
import functools
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib import spmd
from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint import CheckpointError, DamagedCheckpoint, latest, load, save


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


# One process


def test_what_is_saved_is_loaded(tmp_path):
    place = save(tmp_path / "new" / "folder", 7, state_of(7), rank_state={"rng": torch.get_rng_state()})
    assert place == tmp_path / "new" / "folder" / "step-00000007"
    found = load(tmp_path / "new" / "folder")
    assert same(found.state, state_of(7)) and same(found.rank_state, {"rng": torch.get_rng_state()})
    assert (found.step, found.ranks) == (7, 1)
    model = found.state["model"]
    assert model["head"].data_ptr() == model["embedding"].data_ptr()  # what was shared is shared again
    assert parts_of(tmp_path / "new" / "folder") == [
        "latest", "step-00000007/manifest", "step-00000007/rank-0", "step-00000007/state",
    ]  # fmt: skip
    assert (tmp_path / "new" / "folder" / "latest").read_text() == "step-00000007\n"


def test_without_a_rank_state_there_is_none(tmp_path):
    save(tmp_path, 0, {"a": 1})
    assert load(tmp_path) == (0, {"a": 1}, None, 1)


def test_the_last_ones_saved_are_kept_and_the_last_is_loaded(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, state_of(step), keep=3)
        assert latest(tmp_path) == step
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000020", "step-00000030", "step-00000040"]
    assert same(load(tmp_path, step=20).state, state_of(20))
    assert load(tmp_path).step == 40


def test_steps_may_go_back(tmp_path):
    # After a spike of the loss one goes on from an older checkpoint: what is then saved is the last, and is kept.
    for step in (100, 200, 300):
        save(tmp_path, step, state_of(step), keep=3)
    save(tmp_path, 150, state_of(150), keep=2)
    assert latest(tmp_path) == 150
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000150", "step-00000300"]
    assert same(load(tmp_path).state, state_of(150))


def test_a_step_saved_again_takes_the_place_of_the_old_one(tmp_path):
    save(tmp_path, 5, {"a": 1}, rank_state=1, keep=1)
    save(tmp_path, 5, {"a": 2}, keep=1)
    assert load(tmp_path) == (5, {"a": 2}, None, 1)
    assert parts_of(tmp_path) == ["latest", "step-00000005/manifest", "step-00000005/state"]


def test_files_of_others_stay(tmp_path):
    mine = ["notes.txt", "step-00000001/plot.png", "step-old/model.pt", "step-00000009/state.pt"]
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        save(tmp_path, step, {"a": step}, keep=1)
    assert set(mine) <= everything_in(tmp_path)
    assert parts_of(tmp_path).count("step-00000001/state") == 0
    assert latest(tmp_path) == 3


@pytest.mark.parametrize(("keep", "step"), [(0, 1), (-1, 1), (1, -1)])
def test_keep_and_step_are_checked(tmp_path, keep, step):
    with pytest.raises(ValueError, match=rf"keep is {keep} and step is {step}"):
        save(tmp_path, step, {}, keep=keep)
    assert everything_in(tmp_path) == set()


def test_nothing_to_load(tmp_path):
    assert latest(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError, match=r"No checkpoint in .*none: there is none yet"):
        load(tmp_path / "none")
    save(tmp_path, 5, {})
    save(tmp_path, 6, {})
    with pytest.raises(FileNotFoundError, match=r"No checkpoint of step 7 in .*: there are the steps 5, 6"):
        load(tmp_path, step=7)


# What cannot be saved


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


# Damage


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        save(folder, step, state_of(step), rank_state={"rng": step})
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(which=st.integers(0, 2), where=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["flip", "cut", "grow"]))
def test_no_byte_changes_unnoticed(two_steps, tmp_path, which, where, how):
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    folder = shutil.copytree(two_steps, tmp_path / "copy")
    path = sorted((folder / "step-00000002").iterdir())[which]
    whole = path.read_bytes()
    at = int(where * len(whole))
    changed = {
        "flip": whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :],
        "cut": whole[:at],
        "grow": whole + whole[:1],
    }[how]
    path.write_bytes(changed)
    with pytest.raises(DamagedCheckpoint, match=rf"step 2 is damaged: \S*{path.name}.*; whole are the steps \[1\]\."):
        load(folder)
    assert same(load(folder, step=1).state, state_of(1))  # and only if asked for


def test_the_sentence_has_the_numbers(tmp_path):
    save(tmp_path, 1, state_of(1))
    [path] = tmp_path.glob("*/state.*")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(
        DamagedCheckpoint,
        match=rf"{path} has 1,000 bytes, {size:,} were saved; no other checkpoint in the folder is whole",
    ):
        load(tmp_path)
    path.write_bytes(bytes(size))
    with pytest.raises(DamagedCheckpoint, match=rf"{path} has the SHA-256 [0-9a-f]{{12}}..., saved was [0-9a-f]{{12}}"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=rf"{path}, {size:,} bytes, is missing"):
        load(tmp_path)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"manifest.json is missing"):
        load(tmp_path)


def test_a_whole_checkpoint_is_only_called_whole_with_all_ranks_files(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, {"a": step}, rank_state=step)
    next(tmp_path.glob("step-00000003/state.*")).unlink()
    next(tmp_path.glob("step-00000002/rank-0.*")).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"whole are the steps \[1\]"):
        load(tmp_path)


def test_a_damaged_one_is_neither_counted_nor_removed(tmp_path):
    save(tmp_path, 1, {"a": 1})
    save(tmp_path, 2, {"a": 2})
    (tmp_path / "step-00000002" / "manifest.json").write_text("{}")
    save(tmp_path, 3, {"a": 3}, keep=2)
    assert {name.split("/")[0] for name in everything_in(tmp_path)} == {
        "latest", "step-00000001", "step-00000002", "step-00000003",
    }  # fmt: skip
    with pytest.raises(DamagedCheckpoint, match=r"manifest.json is not what was saved; whole are the steps \[1, 3\]"):
        load(tmp_path, step=2)


@pytest.mark.parametrize("stale", ["step-00000001\n", "step-00000009\n", "rubbish", "", None])
def test_a_stale_pointer_is_set_right(tmp_path, stale):
    save(tmp_path, 1, {"a": 1})
    save(tmp_path, 2, {"a": 2})
    if stale is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_text(stale)
    assert latest(tmp_path) == 2
    assert load(tmp_path).step == 2
    assert (tmp_path / "latest").read_text() == "step-00000002\n"


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    """Even where somebody made the manifest fit."""

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    save(tmp_path, 1, {"a": 1})
    [path] = tmp_path.glob("*/state.*")
    torch.save(Evil(), path)
    body = files.read_manifest(path.parent)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    body["files"]["state"] |= {"bytes": path.stat().st_size, "sha256": digest}
    files.replace(path.parent / files.MANIFEST, json.dumps({"sha256": files.hash_of(body), "body": body}))
    with pytest.raises(Exception, match="Weights only load failed"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


# Killed at any moment


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


# Several ranks


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


def load_on_all(folder: Path) -> tuple:
    found = load(folder)
    return found.step, found.state, found.rank_state, found.ranks


def load_damaged(folder: Path) -> str:
    try:
        load(folder)
    except DamagedCheckpoint as error:
        return str(error)
    return "loaded"


def test_rank_0_writes_the_state_and_every_rank_its_own(tmp_path):
    assert spmd.run(save_on_all, tmp_path, 5, ranks=3) == ["3 ranks"] * 3
    assert parts_of(tmp_path) == [
        "latest", "step-00000005/manifest", "step-00000005/rank-0", "step-00000005/rank-1", "step-00000005/state",
    ]  # fmt: skip
    own = [{"rank": 0}, {"rank": 1}, None, None]
    for n in (1, 4):
        assert spmd.run(load_on_all, tmp_path, ranks=n) == [(5, {"from": 0}, own[rank], 3) for rank in range(n)]
    assert load(tmp_path) == (5, {"from": 0}, {"rank": 0}, 3)  # without torch.distributed


@pytest.mark.parametrize("failing", [0, 1])
def test_if_one_rank_cannot_write_all_raise_and_nothing_is_left(tmp_path, failing):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    before = everything_in(tmp_path)
    said = spmd.run(save_on_all, tmp_path, 6, failing, ranks=3)
    assert len(set(said)) == 1
    assert said[0] == (
        f"The checkpoint of step 6 was not saved. Rank {failing}: OSError: [Errno 28] No space left on device. "
        "The last one saved is that of step 5."
    )
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("part", ["state", "rank-1"])
def test_all_ranks_hear_of_damage_that_one_finds(tmp_path, part):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    [path] = tmp_path.glob(f"*/{part}.*")
    path.write_bytes(b"x")
    said = spmd.run(load_damaged, tmp_path, ranks=3)
    assert len(set(said)) == 1 and f"{path} has 1 bytes" in said[0]


def test_a_rank_killed_in_a_save_leaves_the_older_one(tmp_path):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    for rank, moment in (1, 3), (0, 12):
        with pytest.raises(spmd.SpmdError):
            spmd.run(save_and_die, tmp_path, 6, moment, rank, ranks=3, timeout=20)
        assert load(tmp_path).step == 5
    assert spmd.run(save_on_all, tmp_path, 7, ranks=3) == ["3 ranks"] * 3
    assert {name.split("/")[0] for name in everything_in(tmp_path)} == {"latest", "step-00000005", "step-00000007"}


def save_in_halves(folder: Path) -> tuple:
    """Two jobs in one world, each with a group and a folder of its own; ranks count within the group."""
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = halves[rank // 2]
    save(folder / str(rank // 2), rank // 2, {"from": rank}, rank_state=rank, group=group)
    return load(folder / str(rank // 2), group=group)


def test_in_a_group_ranks_count_within_it(tmp_path):
    found = spmd.run(save_in_halves, tmp_path, ranks=4)
    assert [tuple(each) for each in found] == [(0, {"from": 0}, 0, 2), (0, {"from": 0}, 1, 2)] + [
        (1, {"from": 2}, 2, 2), (1, {"from": 2}, 3, 2)
    ]  # fmt: skip


def test_a_folder_that_ranks_do_not_share_is_told(tmp_path):
    written = [[{"part": "state", "name": "state.00000000.pt"}], [{"part": "rank-1", "name": "rank-1.00000000.pt"}]]
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "state.00000000.pt").touch()
    with pytest.raises(CheckpointError, match=r"does not see rank-1.00000000.pt in .* that all nodes share"):
        files.commit(tmp_path, 1, written)
    assert latest(tmp_path) is None
