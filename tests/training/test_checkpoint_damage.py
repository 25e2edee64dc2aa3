"""Damaged checkpoints: told on load, with the numbers, and never loaded."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_cases import everything_in, same, state_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint import DamagedCheckpoint, latest, load, save


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
